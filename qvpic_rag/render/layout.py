"""Where lines and pages end: decided once, in points, so that every resolution shows the same text.

Lines break at spaces, around CJK characters, and inside a word only where it is wider than a line. Spaces at a break
hang: they are in the page's text, not in its picture. Leading spaces and runs of spaces keep their width.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from qvpic_rag.config import RenderProfile
from qvpic_rag.render.characters import CJK_TOKEN, cluster_pattern, has_cjk
from qvpic_rag.render.shaping import NEWLINE, Metrics

__all__ = ["TAB", "LaidOutPage", "Layout"]

TAB = "    "  # what a tab is drawn as
_WORDS = re.compile("( +)|(\t+)|(\n)|([^ \t\n]+)")
_CJK_WORDS = re.compile(f"( +)|(\t+)|(\n)|({CJK_TOKEN})")
_TOLERANCE = 1e-6  # points; sums of the same advances in another order differ by less
_SHORT = 512  # a longer word is measured cluster by cluster, so that time stays linear in its length


class LaidOutPage(NamedTuple):
    """``lines`` as drawn and the stretch of text they show."""

    lines: tuple[str, ...]
    text: str


class _Span(NamedTuple):
    """A line: offsets of its first character and past its last drawn one."""

    start: int
    end: int


class Layout:
    """Breaks one section of cleaned text (no form feeds).

    Parameters
    ----------
    profile : RenderProfile
        Page size, margins and newline markup.
    metrics : Metrics
        Widths in points.
    drawable : Callable[[str], str]
        Replaces what no font draws.
    """

    def __init__(self, profile: RenderProfile, metrics: Metrics, drawable: Callable[[str], str]) -> None:
        self.limit = profile.text_width + _TOLERANCE
        self.per_page = profile.lines_per_page
        self.literal = profile.newline == "literal"
        self.metrics = metrics
        self.drawable = drawable
        self.space = metrics.width(" ")
        self.tab = self.space * len(TAB)
        self.marker = metrics.width(NEWLINE)

    def pages(self, section: str) -> Iterator[LaidOutPage]:
        """Pages that show something; a page of blank lines alone is left out."""
        # Blank lines at the end show nothing and would only keep the last page from being cropped.
        section = section.rstrip(" \t\n")
        batch: list[_Span] = []
        for span in self._spans(section):
            batch.append(span)
            if len(batch) == self.per_page:
                yield from self._page(section, batch)
                batch = []
        yield from self._page(section, batch)

    def _page(self, section: str, spans: list[_Span]) -> Iterator[LaidOutPage]:
        lines = tuple(self._draw(section[span.start : span.end]) for span in spans)
        if any(line.strip() for line in lines):
            yield LaidOutPage(lines, section[spans[0].start : spans[-1].end])

    def _draw(self, text: str) -> str:
        """A line as it is stored in :attr:`Page.lines`; in literal mode a newline marker stands between spaces."""
        text = text.replace("\t", TAB)
        if "\n" in text:
            padded = re.sub("\n+", lambda match: f" {' '.join(match[0])} ", text)
            text = padded[1:] if text[0] == "\n" else padded
        return self.drawable(text).rstrip(" ")

    def _spans(self, section: str) -> Iterator[_Span]:
        pattern = _CJK_WORDS if has_cjk(section) else _WORDS
        if self.literal:
            yield from self._fill(section, 0, len(section), pattern)
            return
        start = 0
        while start <= len(section):
            end = section.find("\n", start)
            end = len(section) if end < 0 else end
            if start == end:
                yield _Span(start, end)
            else:
                yield from self._fill(section, start, end, pattern)
            start = end + 1

    def _fill(self, section: str, start: int, end: int, pattern: re.Pattern[str]) -> Iterator[_Span]:
        """Lines of a paragraph, greedily filled."""
        limit, width = self.limit, self.metrics.width
        line, last = start, start  # the current line's first character, and the end of what is placed on it
        used = gap = 0.0  # points placed, and points of spaces waiting for a word to follow
        after_marker = False
        for match in pattern.finditer(section, start, end):
            kind = match.lastindex
            if kind == 1 or kind == 2:
                gap += (self.space if kind == 1 else self.tab) * (match.end() - match.start())
                after_marker = False
                continue
            if kind == 3:
                wide = self.marker
                gap += 0.0 if after_marker or match.start() == line else self.space
            else:
                token = match[0]
                wide = width(self.drawable(token)) if len(token) < _SHORT else limit * 2
            if used + gap + wide > limit and (last > line or gap):
                yield _Span(line, last)
                line = last = match.start()
                used = gap = 0.0
            if wide > limit:
                for piece in self._cut(section, match.start(), match.end()):
                    if last > line:
                        yield _Span(line, last)
                    line, last = piece
                used, gap = width(self.drawable(section[line:last])), 0.0
            else:
                used, last, gap = used + gap + wide, match.end(), 0.0
            after_marker = kind == 3
            if after_marker:
                gap = self.space
        yield _Span(line, last)

    def _cut(self, section: str, start: int, end: int) -> Iterator[_Span]:
        """Cut a word that is wider than a line between its clusters, as late as fits; never empty."""
        width, drawable = self.metrics.width, self.drawable
        line, used = start, 0.0
        ends: list[int] = []  # places to cut the current piece at

        def fitting() -> int:
            # Shaped text may be wider than its clusters one by one.
            while len(ends) > 1 and width(drawable(section[line : ends[-1]])) > self.limit:
                ends.pop()
            return ends[-1]

        for match in cluster_pattern().finditer(section, start, end):
            advance = width(drawable(match[0]))
            if ends and used + advance > self.limit:
                cut = fitting()
                yield _Span(line, cut)
                line, ends = cut, [match.start()] if cut < match.start() else []
                used = width(drawable(section[line : match.start()]))
            ends.append(match.end())
            used += advance
        while line < end:
            cut = fitting()
            yield _Span(line, cut)
            line, ends = cut, [end]
