"""From drawn lines to a picture, at any resolution.

Glyphs are drawn by FreeType several times as large, shifted by quarters of a pixel, and averaged down: Pillow has no
unhinted mode, and words of hinted glyphs run together at 72 DPI. Baselines stand on whole pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from qvpic_rag.config import RenderProfile
from qvpic_rag.render.fonts import FontChain
from qvpic_rag.render.shaping import NEWLINE, Metrics, Piece, pieces, visual_words

__all__ = ["Raster"]

_OVERSAMPLING = 8
_PHASES = 4  # positions within a pixel at which a glyph is drawn
_LARGEST = 1024  # pixels per em to which oversampling enlarges a font; beyond that hinting no longer shows
_CACHED_GLYPHS = 8192
_SLACK = 1e-6  # pixels


class _Ink(NamedTuple):
    """Coverage ``uint16 [height, width]`` (0 to 255) and where its corner lies from the pen, pixels."""

    coverage: npt.NDArray[np.uint16]
    left: int
    top: int


class _Placed(NamedTuple):
    piece: Piece
    x: float
    red: bool


class Raster:
    """Draws lines with one profile; not safe to use from two threads at once."""

    def __init__(self, profile: RenderProfile, chain: FontChain, metrics: Metrics) -> None:
        self.profile = profile
        self.chain = chain
        self.metrics = metrics
        self._glyph = lru_cache(maxsize=_CACHED_GLYPHS)(self._draw_glyph)

    def image(self, lines: Sequence[str], dpi: int) -> Image.Image:
        """The page as an RGB picture of black text on white, newline markers red."""
        profile, scale = self.profile, dpi / 72
        placed = [self._pens(line, scale) for line in lines]
        width, height = self._size(len(lines), max((end for _, end in placed), default=0.0), scale)
        pixels = profile.font_size * scale
        # Ink may reach over the edge of the page; it is cut there.
        edge = math.ceil(2 * pixels)
        black = np.zeros((height + 2 * edge, width + 2 * edge), dtype=np.uint16)
        red = np.zeros_like(black) if any("\n" in line for line in lines) else None
        left = profile.margin_left * scale
        for number, (line, _) in enumerate(placed):
            top = round((profile.margin_top + number * profile.line_height) * scale)
            baseline = edge + top + math.ceil(self.chain.ascent * pixels - _SLACK)
            for piece, x, is_red in line:
                target = black if red is None or not is_red else red
                self._stamp(target, piece, pixels, edge + left + x, baseline)
        inside = (slice(edge, edge + height), slice(edge, edge + width))
        return _colour(black[inside], None if red is None else red[inside])

    def _size(self, lines: int, widest: float, scale: float) -> tuple[int, int]:
        """Width and height in pixels; ``widest`` is the end of the longest line from the left margin."""
        profile = self.profile
        width, height = profile.page_width * scale, profile.page_height * scale
        # A single character may be wider than the page: then the page grows, so that nothing is lost.
        if profile.crop or widest > profile.text_width * scale + 1:
            width = (profile.margin_left + profile.margin_right) * scale + widest
        if profile.crop and lines < profile.lines_per_page:
            height = (profile.margin_top + lines * profile.line_height + profile.margin_bottom) * scale
        step = profile.pad_to
        return _round_up(width, step), _round_up(height, step)

    def _pens(self, line: str, scale: float) -> tuple[list[_Placed], float]:
        """Pieces with their pens in pixels from the left margin, and where the line ends."""
        metrics = self.metrics
        placed: list[_Placed] = []
        x = 0.0
        space = metrics.width(" ")
        for word in visual_words(line):
            if word[0] == " ":
                x += len(word) * space
                continue
            red = word == "\n"
            for piece in pieces(NEWLINE if red else word, self.chain):
                placed.append(_Placed(piece, x * scale, red))
                x += metrics.piece(piece)
        return placed, x * scale

    def _stamp(self, page: npt.NDArray[np.uint16], piece: Piece, pixels: float, x: float, baseline: int) -> None:
        column, phase = divmod(math.floor(x * _PHASES + 0.5), _PHASES)
        ink = self._glyph(piece, pixels, phase)
        if ink is None:
            return
        top, left = baseline + ink.top, column + ink.left
        height, width = ink.coverage.shape
        if top >= 0 and left >= 0:
            view = page[top : top + height, left : left + width]
            view += ink.coverage[: view.shape[0], : view.shape[1]]
            return
        down, right = max(-top, 0), max(-left, 0)
        view = page[top + down : max(top + height, 0), left + right : max(left + width, 0)]
        view += ink.coverage[down : down + view.shape[0], right : right + view.shape[1]]

    def _draw_glyph(self, piece: Piece, pixels: float, phase: int) -> _Ink | None:
        """Coverage of a piece whose pen is ``phase / 4`` pixels right of a pixel's edge; None if it leaves no ink."""
        over = max(1, min(_OVERSAMPLING, int(_LARGEST / pixels)))
        font = self.chain.sized(piece.face, pixels * over, bool(piece.direction))
        direction = piece.direction if piece.direction and self.chain.raqm else None
        x0, y0, x1, y1 = font.getbbox(piece.text, anchor="ls", direction=direction)
        shift = round(phase * over / _PHASES)
        # The canvas starts and ends on whole pixels of the page; its border is as wide as rounding may need.
        left, top = math.floor((x0 + shift) / over) - 1, math.floor(y0 / over) - 1
        right, bottom = math.ceil((x1 + shift) / over) + 1, math.ceil(y1 / over) + 1
        canvas = Image.new("L", ((right - left) * over, (bottom - top) * over))
        pen = (shift - left * over, -top * over)
        ImageDraw.Draw(canvas).text(pen, piece.text, fill=255, font=font, anchor="ls", direction=direction)
        coverage = np.asarray(canvas.reduce(over) if over > 1 else canvas)
        rows, columns = np.flatnonzero(coverage.any(axis=1)), np.flatnonzero(coverage.any(axis=0))
        if not len(rows):
            return None
        trimmed = coverage[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        return _Ink(trimmed.astype(np.uint16), left + int(columns[0]), top + int(rows[0]))


def _round_up(length: float, step: int) -> int:
    """The smallest multiple of ``step`` pixels that holds ``length`` pixels, at least one."""
    return max(1, math.ceil(math.ceil(length - _SLACK) / step)) * step


def _colour(black: npt.NDArray[np.uint16], red: npt.NDArray[np.uint16] | None) -> Image.Image:
    """White paper under black and red ink; overlapping ink saturates."""
    others = (255 - np.minimum(black, 255)).astype(np.uint8)
    if red is None:
        return Image.fromarray(others).convert("RGB")
    without_red = (255 - np.minimum(black + red, 255)).astype(np.uint8)
    return Image.fromarray(np.stack([others, without_red, without_red], axis=-1))
