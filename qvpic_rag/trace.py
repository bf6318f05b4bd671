"""One self-contained HTML page about one answer: the pages as the model saw them, their scores, and where time went."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping

from PIL import Image

from qvpic_rag.html_page import html_page
from qvpic_rag.records import Answer, RoutedPage

__all__ = ["trace_html"]

_STAGES = (
    ("embed", "#7c6fd0"),
    ("search", "#5b8fd9"),
    ("route", "#4fb3bf"),
    ("load", "#58b368"),
    ("compile", "#c94f4f"),
    ("assemble", "#d9a441"),
    ("prefill", "#e0773c"),
)
"""What the time to first token is made of; decoding, which is most of a long answer's time, would dwarf it."""

_STYLE = """
:root { color-scheme: light dark; --line: #d4d8df; --soft: #5b6472; --high: #e0773c; --back: #f6f7f9; }
@media (prefers-color-scheme: dark) { :root { --line: #3a4049; --soft: #9aa4b2; --back: #1d2126; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
h1 { font-size: 1.25rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: 2rem 0 .5rem; } p { margin: .5rem 0; }
.answer { font-size: 1.15rem; border-inline-start: 4px solid var(--high); padding: .5rem 1rem; background: var(--back);
  white-space: pre-wrap; overflow-wrap: anywhere; }
details { margin: .75rem 0; } summary { cursor: pointer; } pre { white-space: pre-wrap; overflow-wrap: anywhere; }
.soft { color: var(--soft); } .note { border: 1px solid var(--high); padding: .4rem .8rem; border-radius: 4px; }
.pages { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: 1rem; }
figure { margin: 0; border: 1px solid var(--line); border-radius: 6px; overflow: hidden; }
figure.high { border: 2px solid var(--high); }
figure img { display: block; width: 100%; background: #fff; border-bottom: 1px solid var(--line); cursor: zoom-in; }
figure img:focus { position: fixed; inset: 0; z-index: 1; width: 100%; height: 100%; object-fit: contain;
  border: 0; outline: 0; cursor: zoom-out; }
figcaption { padding: .5rem .7rem; font-size: .85rem; overflow-wrap: anywhere; }
.dpi { float: right; font-weight: 600; margin-left: .5rem; } .high .dpi { color: var(--high); }
.bar { display: flex; height: 1.6rem; border-radius: 4px; overflow: hidden; border: 1px solid var(--line); }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin-top: .5rem; font-size: .85rem; }
.legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin-right: .35rem; }
"""


def trace_html(question: str, answer: Answer, pictures: Mapping[str, Image.Image]) -> str:
    """The page as text.

    Parameters
    ----------
    question : str
        What was asked.
    answer : Answer
        What came back.
    pictures : Mapping[str, PIL.Image.Image]
        RGB pictures by page id, at the resolution that the request used.
    """
    route, usage = answer.route, answer.usage
    figures = "\n".join(_figure(place, page, pictures[page.page_id]) for place, page in enumerate(route.pages, 1))
    notes = [route.note] if route.note else []
    if route.dropped:
        notes.append(f"{len(route.dropped)} page(s) of lowest rank were left out because they do not fit the context.")
    if route.compiled:
        notes.append(f"{len(route.compiled)} page(s) were missing from the bank and compiled during the request.")
    reasoning = f'<details><summary>Reasoning</summary><pre dir="auto">{_text(answer.reasoning)}</pre></details>'
    pages = f"""<h2>Pages in request order</h2>
<p class="soft">Orange ones were promoted to high resolution. Click a page to enlarge it.</p>
<div class="pages">
{figures}
</div>"""
    body = f"""<p class="soft">From the bank: {usage.context_tokens} tokens ({_size(usage.kv_bytes)}).
Prefilled: {usage.query_tokens}. Generated: {usage.output_tokens}, ended by {_text(answer.finish_reason)}.</p>
<div class="answer" dir="auto">{_text(answer.text) or "(empty answer)"}</div>
{reasoning if answer.reasoning else ""}
{"".join(f'<p class="note">{_text(note)}</p>' for note in notes)}
<h2>Time to first token {answer.timing.ttft:.1f} ms, whole answer {answer.timing.total:.1f} ms</h2>
{_bar(answer)}
{pages if route.pages else ""}"""
    return html_page(question, body, style=_STYLE)


def _text(value: str) -> str:
    return html.escape(value, quote=True)


def _size(count: int) -> str:
    for unit in ("bytes", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000  # type: ignore[assignment]
    return f"{count:.1f} GB"


def _figure(place: int, page: RoutedPage, picture: Image.Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    kind = "high" if page.promoted else "low"
    name = f'<bdi dir="ltr">{_text(page.source)}</bdi>, page {page.number + 1}'
    return (
        f'<figure class="{kind}"><img tabindex="0" alt="page {page.number + 1} of {_text(page.source)}" '
        f'src="data:image/png;base64,{data}">'
        f'<figcaption><span class="dpi">{page.dpi} DPI</span>{place}. {name}<br>'
        f'<span class="soft">score {page.score:.3f}, rank {page.rank + 1}, {page.tokens} tokens</span>'
        "</figcaption></figure>"
    )


def _bar(answer: Answer) -> str:
    times = answer.timing.to_dict()
    shown = [(name, color, times[name]) for name, color in _STAGES if times.get(name)]
    total = sum(time for _, _, time in shown) or 1.0
    parts = "".join(
        f'<span style="width:{100 * time / total:.2f}%;background:{color}" title="{name} {time:.2f} ms"></span>'
        for name, color, time in shown
    )
    legend = "".join(
        f'<span><i style="background:{color}"></i>{name} {time:.2f} ms</span>' for name, color, time in shown
    )
    return f'<div class="bar">{parts}</div><div class="legend">{legend}</div>'
