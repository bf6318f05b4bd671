"""From a line of text to the pieces that are drawn, in their order on the page.

A piece is a single character, or a run that only the font's shaping tables can draw: a word of a joining script, a
letter with accents. Latin, Greek, Cyrillic and CJK characters stand at their own advances, without kerning: that is
what makes a line as wide on every page picture as it was in the layout.

Right-to-left text is ordered word by word: a line whose first directed character runs right to left is ordered from
its end, other lines have their right-to-left stretches reversed; inside a word raqm applies the full bidirectional
algorithm. Lines stay left aligned. Without raqm the letters of such a word are placed from right to left unjoined.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from qvpic_rag.render.characters import cluster_pattern, has_rtl, needs_shaping
from qvpic_rag.render.fonts import FontChain

__all__ = ["NEWLINE", "Metrics", "Piece", "pieces", "visual_words"]

NEWLINE = "\\n"  # what the red marker of a literal newline spells
_FINE = 2048  # pixels per em at which shaped runs are measured: one per font unit leaves nothing to round
_PARTS = re.compile(r" +|\n|[^ \n]+")
# Punctuation, number, punctuation; signs and units of a number move with it.
_NUMBER = re.compile(r"([^\w%$€£¥#°+-]*)((?:.*[\w%$€£¥#°+-])?)(.*)", re.DOTALL)
_MIRROR = str.maketrans("()[]{}<>«»", ")(][}{><»«")


class Piece(NamedTuple):
    """Something drawn at once: ``direction`` is "" for a plain character, else ``ltr`` or ``rtl``."""

    text: str
    face: int
    direction: str


class Metrics:
    """Advance widths at one font size, in the unit of ``size``."""

    def __init__(self, chain: FontChain, size: float) -> None:
        self.chain = chain
        self.size = size
        self._plain: dict[str, float] = {}
        self.width = lru_cache(maxsize=1 << 16)(self._width)
        self.piece = lru_cache(maxsize=1 << 14)(self._piece)

    def _width(self, text: str) -> float:
        """Width of a text without newlines; every character must be drawable."""
        if needs_shaping(text):
            return sum(self.piece(piece) for piece in pieces(text, self.chain))
        known = self._plain
        try:
            return sum([known[character] for character in text])
        except KeyError:
            return sum(self.piece(piece) for piece in pieces(text, self.chain))

    def _piece(self, piece: Piece) -> float:
        text, face, direction = piece
        if direction:
            font = self.chain.sized(face, _FINE, True)
            width = font.getlength(text, direction=direction if self.chain.raqm else None)
            return width * self.size / _FINE
        width = self.chain.faces[face].tables.advances[ord(text)] * self.size
        self._plain[text] = width
        return width


def pieces(word: str, chain: FontChain) -> Iterator[Piece]:
    """Pieces of a word without spaces to break at, in visual order."""
    if not needs_shaping(word):
        for character in word:
            yield Piece(character, _face(character, chain), "")
        return
    direction = "rtl" if _strong(word) == "R" else "ltr"
    whole = has_rtl(word)  # raqm must see the digits and Latin letters of such a word too
    runs: list[tuple[str, int, bool]] = []
    for cluster in cluster_pattern().findall(word):
        for text, face, needed in _cluster(cluster, chain):
            shaped = needed or whole
            if runs and shaped and runs[-1][1:] == (face, True):
                runs[-1] = (runs[-1][0] + text, face, True)
            else:
                runs.append((text, face, shaped))
    for text, face, shaped in reversed(runs) if direction == "rtl" else runs:
        if not shaped:
            yield Piece(text, face, "")
        elif chain.raqm:
            yield Piece(text, face, direction)
        else:
            for cluster in _unshaped(text, direction):
                yield Piece(cluster, face, direction)


def _face(character: str, chain: FontChain) -> int:
    face = chain.face_of(character)
    # Layout has replaced what no font draws; anything else is drawn by the first font.
    return 0 if face is None else face


def _cluster(cluster: str, chain: FontChain) -> Iterator[tuple[str, int, bool]]:
    """``(text, face, shaped)`` of a cluster: one run where one font has all of it, else one per character."""
    visible = [character for character in cluster if character not in "\u200c\u200d"]
    face = chain.face_of_all(visible)
    if face is not None and visible:
        yield cluster, face, needs_shaping(cluster)
        return
    for character in visible:
        yield character, _face(character, chain), needs_shaping(character)


def _unshaped(text: str, direction: str) -> list[str]:
    """Clusters of a run in visual order, for a Pillow without raqm."""
    clusters: list[str] = cluster_pattern().findall(text)
    kinds = _directions(clusters)
    clusters = [each.translate(_MIRROR) if kind == "R" else each for each, kind in zip(clusters, kinds, strict=True)]
    if direction == "rtl":
        return _reverse_runs(clusters[::-1], kinds[::-1], "L")
    return _reverse_runs(clusters, kinds, "R")


def _strong(text: str) -> str:
    """``L`` or ``R`` for the first directed character; else ``N`` where there are digits, ``""`` where not."""
    digits = ""
    for character in text:
        kind = unicodedata.bidirectional(character)
        if kind == "L":
            return "L"
        if kind in ("R", "AL"):
            return "R"
        if kind in ("EN", "AN"):
            digits = "N"
    return digits


def visual_words(line: str) -> list[str]:
    """Words, runs of spaces and newline markers of a drawn line, left to right."""
    parts: list[str] = _PARTS.findall(line)
    if not has_rtl(line):
        return parts
    kinds = _directions(parts)
    base = next((kind for kind in map(_strong, parts) if kind in ("L", "R")), "L")
    parts = [
        _mirrored(part) if kind == "R" and not has_rtl(part) else part for part, kind in zip(parts, kinds, strict=True)
    ]
    if base == "L":
        return _reverse_runs(parts, kinds, "R")
    return _reverse_runs(parts[::-1], kinds[::-1], "L")


def _mirrored(word: str) -> str:
    """A number within right-to-left text: its digits stay, the punctuation around it changes sides."""
    return _NUMBER.sub(lambda m: m[3][::-1].translate(_MIRROR) + m[2] + m[1][::-1].translate(_MIRROR), word, count=1)


def _directions(parts: list[str]) -> list[str]:
    """``L`` or ``R`` for each part of a line.

    A number goes with the directed part before it; a part without direction goes with its neighbours where they
    agree, else with the line.
    """
    kinds = [_strong(part) for part in parts]
    base = next((kind for kind in kinds if kind in ("L", "R")), "L")
    before = base
    previous = []
    for index, kind in enumerate(kinds):
        if kind == "N":
            kinds[index] = before
        before = kinds[index] or before
        previous.append(before)
    after = base
    for index in range(len(kinds) - 1, -1, -1):
        if kinds[index]:
            after = kinds[index]
        else:
            kinds[index] = after if after == previous[index] else base
    return kinds


def _reverse_runs(parts: list[str], kinds: list[str], kind: str) -> list[str]:
    """Reverse every maximal stretch of parts of one kind."""
    result: list[str] = []
    run: list[str] = []
    for part, each in zip(parts, kinds, strict=True):
        if each == kind:
            run.append(part)
            continue
        result += run[::-1]
        run = []
        result.append(part)
    return result + run[::-1]
