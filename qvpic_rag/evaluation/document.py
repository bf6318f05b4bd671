"""A report as sections of text, tables and pictures, written as Markdown and as one HTML page.

Every text is plain: both writers escape it, because names of tasks, models and methods come from outside.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from qvpic_rag.html_page import html_page

__all__ = ["Picture", "Section", "Table", "as_html", "as_markdown", "html_table", "page"]

STYLE = """
:root { color-scheme: light dark; --line: #d4d8df; --soft: #5b6472; --mark: #c4510a; --back: #f6f7f9; }
@media (prefers-color-scheme: dark) { :root { --line: #3a4049; --soft: #9aa4b2; --mark: #f0904f; --back: #1d2126; } }
body { font: 15px/1.55 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
h1, h2, p { overflow-wrap: anywhere; } h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
h3 { font-size: 1.05rem; margin-top: 2rem; } p { margin: .6rem 0; }
.wide { overflow-x: auto; margin: 1rem 0; } table { border-collapse: collapse; font-size: .87rem; }
caption { text-align: start; color: var(--soft); padding-bottom: .3rem; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: end; white-space: nowrap; }
.text { text-align: start; } th { background: var(--back); font-weight: 600; }
.plot { display: block; max-width: 100%; height: auto; background: #fff; border-radius: 6px; margin: 1rem 0; }
.soft { color: var(--soft); } pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; font-size: .85rem; }
.answer { border-inline-start: 4px solid var(--mark); background: var(--back); padding: .5rem 1rem;
  white-space: pre-wrap; overflow-wrap: anywhere; }
.pages { display: grid; grid-template-columns: repeat(auto-fill, minmax(18rem, 1fr)); gap: 1rem; }
figure { margin: 0; border: 1px solid var(--line); border-radius: 6px; overflow: hidden; }
figure.evidence { border: 3px solid var(--mark); } figure img { display: block; width: 100%; background: #fff; }
figure pre { padding: .6rem; max-height: 26rem; overflow: auto; }
figcaption { padding: .5rem .7rem; font-size: .85rem; overflow-wrap: anywhere; border-bottom: 1px solid var(--line); }
.evidence b { color: var(--mark); }
"""
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~$!&])")


@dataclass(frozen=True)
class Table:
    """Cells as they are shown; the first ``texts`` columns are text, the others figures."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    texts: int = 1


@dataclass(frozen=True)
class Picture:
    """A PNG file; ``name`` is its file name, ``text`` what it shows."""

    name: str
    text: str
    data: bytes


@dataclass(frozen=True)
class Section:
    """A heading of a level from 2 on, and what stands below it; a tuple of texts is a list of points."""

    title: str
    parts: Sequence[str | tuple[str, ...] | Table | Picture]
    level: int = 2


def as_markdown(title: str, sections: Sequence[Section], folder: str) -> str:
    """Markdown whose pictures are files of a sub-folder."""
    lines = [f"# {_escaped(title)}", ""]
    for section in sections:
        lines += [f"{'#' * section.level} {_escaped(section.title)}", ""]
        for part in section.parts:
            if isinstance(part, str):
                lines += [_escaped(part), ""]
            elif isinstance(part, tuple):
                lines += [*(f"- {_escaped(each)}" for each in part), ""]
            elif isinstance(part, Picture):
                lines += [f"![{_escaped(part.text)}]({folder}/{part.name})", ""]
            else:
                lines += _markdown_table(part)
    return "\n".join(lines).rstrip() + "\n"


def as_html(title: str, sections: Sequence[Section]) -> str:
    """One HTML page that needs no other file."""
    body = []
    for section in sections:
        body.append(f"<h{section.level}>{html.escape(section.title)}</h{section.level}>")
        for part in section.parts:
            if isinstance(part, str):
                body.append(f"<p>{html.escape(part)}</p>")
            elif isinstance(part, tuple):
                body.append(f"<ul>{''.join(f'<li>{html.escape(each)}</li>' for each in part)}</ul>")
            elif isinstance(part, Picture):
                data = base64.b64encode(part.data).decode("ascii")
                body.append(f'<img class="plot" alt="{html.escape(part.text)}" src="data:image/png;base64,{data}">')
            else:
                body.append(html_table(part))
    return page(title, "\n".join(body))


def html_table(table: Table) -> str:
    """A table's HTML."""
    caption = f"<caption>{html.escape(table.caption)}</caption>" if table.caption else ""
    head = _row("th", table.head, table.texts)
    rows = "\n".join(_row("td", row, table.texts) for row in table.rows)
    return f'<div class="wide"><table>{caption}<thead>{head}</thead>\n<tbody>\n{rows}\n</tbody></table></div>'


def page(title: str, body: str) -> str:
    """A whole HTML page around a body; nothing in it can load or run anything.

    ``title`` is plain text, ``body`` is HTML.
    """
    return html_page(title, body, style=STYLE)


def _row(tag: str, cells: Sequence[str], texts: int) -> str:
    kinds = [' class="text"' if place < texts else "" for place in range(len(cells))]
    body = (f"<{tag}{kind}>{html.escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))
    return f"<tr>{''.join(body)}</tr>"


def _escaped(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))


def _markdown_table(table: Table) -> list[str]:
    align = [":---" if place < table.texts else "---:" for place in range(len(table.head))]
    rows = [map(_escaped, table.head), align, *(map(_escaped, row) for row in table.rows)]
    caption = [_escaped(table.caption), ""] if table.caption else []
    return [*caption, *(f"| {' | '.join(row)} |" for row in rows), ""]
