"""The readable text of an HTML page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from qvpic_rag.errors import DocumentError

__all__ = ["html_text"]

_DROPPED = frozenset({"script", "style", "template", "noscript"})
_BLOCKS = frozenset(
    re.findall(
        r"\w+",
        """address article aside blockquote body br caption center dd details dialog dir div dl dt fieldset figcaption
        figure footer form frameset h1 h2 h3 h4 h5 h6 head header hr html legend li main menu nav ol optgroup option p
        pre section summary table tbody textarea tfoot thead title tr ul""",
    )
)
_CELLS = frozenset({"td", "th"})
_ITEM = "- "
_SPACE = re.compile(r"[ \t\n\f\r\xa0]+")


def html_text(html: str, source: str) -> str:
    """Title and text: one line per block element, list items marked ``- ``, table cells apart by `` | ``.

    Scripts, styles and comments are left out, entities decoded, spaces collapsed except in ``pre``.

    Raises
    ------
    DocumentError
        The markup cannot be parsed.
    """
    parser = _TextParser()
    try:
        parser.feed(html)
        parser.close()
    except (AssertionError, ValueError) as error:  # malformed declarations such as <![/>, endless character numbers
        raise DocumentError(f"{source!r} is not readable HTML ({error}); open and save it again.") from error
    return parser.text()


class _TextParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._lines: list[str] = []
        self._pieces: list[str] = []
        self._dropped: list[str] = []
        self._pre = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _DROPPED:
            self._dropped.append(tag)
        elif not self._dropped:
            if tag in _BLOCKS and (tag == "li" or self._pieces != [_ITEM]):  # <li><p> keeps the item's mark
                self._end_line()
            if tag == "pre":
                self._pre += 1
            elif tag == "li":
                self._pieces.append(_ITEM)
            elif tag in _CELLS and any(piece.strip() for piece in self._pieces):
                self._pieces.append(" | ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _DROPPED:  # <script/> in XHTML has no content to drop
            self.handle_starttag(tag, attrs)
            if tag in _BLOCKS:
                self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._dropped:
            while self._dropped.pop() != tag:
                pass
        elif not self._dropped and tag in _BLOCKS:
            self._end_line()
            if tag == "pre":
                self._pre = max(0, self._pre - 1)

    def handle_data(self, data: str) -> None:
        if self._dropped:
            return
        if not self._pre:
            text = _SPACE.sub(" ", data)
            if text.strip() or self._pieces not in ([], [_ITEM]):
                self._pieces.append(text)
            return
        first, *others = data.split("\n")
        self._pieces.append(first)
        for line in others:
            self._end_line()
            self._pieces.append(line)

    def text(self) -> str:
        """What has been read, once the parser is closed."""
        self._end_line()
        return "\n".join(self._lines)

    def _current(self) -> str:
        return "".join(self._pieces)

    def _end_line(self) -> None:
        line = self._current()
        self._pieces.clear()
        line = line.rstrip() if self._pre else re.sub(" +", " ", line).strip()
        if line and line != _ITEM.strip():
            self._lines.append(line)
