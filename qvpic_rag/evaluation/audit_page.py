"""The HTML of an audit: its index, and one page about one wrong answer. What comes from outside is escaped."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from PIL import Image

from qvpic_rag.evaluation.document import Table, html_table, page
from qvpic_rag.evaluation.records import Answered, Example
from qvpic_rag.records import Page

__all__ = ["failure_page", "failure_title", "index_page"]


def index_page(
    counts: Table, routed: Sequence[tuple[str, Table]], links: Sequence[tuple[str, str, str, bool | None]], total: int
) -> str:
    """The index.

    Parameters
    ----------
    counts : Table
        Right and wrong answers of every method.
    routed : Sequence[tuple[str, Table]]
        For each method that routes its name and what became of the evidence.
    links : Sequence[tuple[str, str, str, bool | None]]
        For each failure page its file, method, question and whether the evidence was promoted.
    total : int
        How many wrong answers of these methods there are.
    """
    body = ["<p>An answer is right where its exact match is 1.</p>", html_table(counts)]
    for name, table in routed:
        body += [f"<h2>{html.escape(name)}</h2>", html_table(table)]
    if not routed:
        body.append("<p>No method here chooses pages, so there is no route to look at.</p>")
    else:
        body.append("<h2>Wrong answers</h2>")
        body.append(
            f"<p>{len(links)} of {total} wrong answers of methods that route have a page; --most sets how many.</p>"
        )
        items = "\n".join(
            f'<li><a href="{html.escape(name)}">{html.escape(question)}</a> '
            f'<span class="soft">{html.escape(method)}, {_evidence(promoted)}</span></li>'
            for name, method, question, promoted in links
        )
        body.append(f"<ol>{items}</ol>")
    return page("Audit", "\n".join(body))


def failure_title(number: int) -> str:
    """Of the page about a wrong answer."""
    return f"Wrong answer {number}"


def failure_page(
    number: int,
    model: str,
    example: Example,
    answer: Answered,
    promoted: bool | None,
    rank: int | None,
    picture: Callable[[Page, int], Image.Image] | None,
) -> str:
    """One wrong answer: what was asked, expected and said, the route, and the pages as the model saw them.

    Parameters
    ----------
    promoted, rank
        Of the evidence; None where it is not known.
    picture : Callable[[Page, int], PIL.Image.Image] | None
        Draws a page at a resolution; None where the model read text.
    """
    evidence = set(example.evidence or ())
    said = html.escape(answer.text) or "(empty answer)"
    failed = f"<p><b>Failed:</b> {html.escape(answer.error)}</p>" if answer.error else ""
    where = "" if rank is None else f", rank {rank + 1}"
    tags = f", tags {html.escape(', '.join(example.tags))}" if example.tags else ""
    figures = "\n".join(
        _figure(place, routed, example.pages[routed["place"]], routed["place"] in evidence, picture)
        for place, routed in enumerate(answer.route, 1)
    )
    missing = sorted(evidence - {routed["place"] for routed in answer.route})
    left = "".join(
        f"<p><b>Evidence that was not in the request:</b> {html.escape(_called(example.pages[place]))}</p>"
        for place in missing
    )
    if example.missed:
        left += "<p><b>There is evidence that retrieval missed.</b></p>"
    return page(
        failure_title(number),
        f"""<p><a href="index.html">All</a></p>
<p class="soft">{html.escape(model)}, {html.escape(answer.method)}, example {html.escape(example.id)}{tags};
{_evidence(promoted)}{where}; F1 {answer.f1:.3f}, ended by {html.escape(answer.finish_reason)}.</p>
<h2>Question</h2><p dir="auto">{html.escape(example.query)}</p>
<h2>Expected</h2><div class="answer" dir="auto">{html.escape(" / ".join(example.answers))}</div>
<h2>Answer</h2><div class="answer" dir="auto">{said}</div>{failed}
<h2>Route</h2>{html_table(_route(example, answer, evidence))}{left}
<h2>Pages as the model saw them</h2><div class="pages">
{figures}
</div>
<details><summary>The user turn</summary><pre dir="auto">{html.escape(example.before)}</pre>
<p class="soft">the pages</p><pre dir="auto">{html.escape(example.after)}</pre></details>""",
    )


def _route(example: Example, answer: Answered, evidence: set[int]) -> Table:
    rows = [
        [
            _called(example.pages[routed["place"]]), _seen_as(routed), f"{routed['score']:.3f}",
            str(routed["rank"] + 1), "yes" if routed["promoted"] else "no", str(routed["tokens"]),
            "yes" if routed["place"] in evidence else "no" if example.evidence is not None else "not known",
        ]
        for routed in answer.route
    ]  # fmt: skip
    return Table(["page", "seen as", "score", "rank", "promoted", "tokens", "evidence"], rows)


def _figure(
    place: int,
    routed: Mapping[str, Any],
    shown: Page,
    evidence: bool,
    picture: Callable[[Page, int], Image.Image] | None,
) -> str:
    called = html.escape(_called(shown))
    if picture is None or routed["dpi"] is None:
        body = f'<pre dir="auto">{html.escape(shown.text)}</pre>'
    else:
        buffer = io.BytesIO()
        picture(shown, routed["dpi"]).save(buffer, "PNG")
        data = base64.b64encode(buffer.getvalue()).decode("ascii")
        body = f'<img alt="{called}" src="data:image/png;base64,{data}">'
    mark = "<b>evidence</b>, " if evidence else ""
    kind = "evidence" if evidence else "other"
    caption = f"{place}. {called}: {mark}{_seen_as(routed)}, rank {routed['rank'] + 1}"
    return f'<figure class="{kind}"><figcaption>{caption}</figcaption>{body}</figure>'


def _called(shown: Page) -> str:
    return f"{shown.source}, page {shown.number + 1}"


def _seen_as(routed: Mapping[str, Any]) -> str:
    return "text" if routed["dpi"] is None else f"{routed['dpi']} DPI"


def _evidence(promoted: bool | None) -> str:
    if promoted is None:
        return "evidence not known"
    return "evidence promoted" if promoted else "evidence not promoted"
