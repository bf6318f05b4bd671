"""Pages as the reader sees them: drawn by the engine's renderer, in the profile's look and in others.

Each visual token stands for a cell of 16 x 16 px. What belongs into a cell are the characters whose middles lie in it,
and the language model's tokens whose first visible characters do.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from qvpic_rag.config import RenderProfile
from qvpic_rag.reader.pictures import CELL, Look, training_font
from qvpic_rag.records import Page
from qvpic_rag.render import Renderer

__all__ = ["DPIS", "STARTS", "Sheet", "looks", "sheet", "starts"]

DPIS = (72, 120)
STARTS = 4
"""Language-model tokens that are kept of those that start in one cell."""
_FONTS = ("dejavusans.ttf", "dejavuserif.ttf", "dejavusansmono.ttf")


@dataclass(frozen=True, eq=False)
class Sheet:
    """One page in one look.

    Attributes
    ----------
    page : Page
        Its ``text`` is what the language model should read there: words of a broken line are joined by a space.
    """

    page: Page
    look: Look

    @property
    def text(self) -> str:
        """What the page says."""
        return self.page.text

    def picture(self, dpi: int) -> npt.NDArray[np.uint8]:
        """uint8 ``(height, width)``, grey; both sides multiples of :data:`~qvpic_rag.reader.pictures.CELL` pixels."""
        return _picture(self, dpi)

    def grid(self, dpi: int) -> tuple[int, int]:
        """Rows and columns of visual tokens."""
        height, width = self.picture(dpi).shape
        return height // CELL, width // CELL

    def letters(self, dpi: int) -> npt.NDArray[np.int64]:
        """Characters in each cell, see :meth:`qvpic_rag.reader.pictures.Look.letters`."""
        height, width = self.picture(dpi).shape
        return self.look.letters(self.page, dpi, (height, width))

    def tokens(self, tokenizer: Any, dpi: int) -> npt.NDArray[np.int64]:
        """Language-model tokens that start in each cell: ids ``(cells, STARTS)``, in reading order, -1 for none."""
        encoded = tokenizer(self.text, add_special_tokens=False, return_offsets_mapping=True)
        rows, columns = self.grid(dpi)
        found = np.full((rows * columns, STARTS), -1, dtype=np.int64)
        count = np.zeros(rows * columns, dtype=np.int64)
        places = starts(self.page, self.look.renderer, encoded["offset_mapping"])
        for token, place in zip(encoded["input_ids"], places, strict=True):
            if place is None:
                continue
            column, row = (int(each * dpi / 72) // CELL for each in place)
            cell = row * columns + column
            if row < rows and column < columns and count[cell] < STARTS:
                found[cell, count[cell]] = token
                count[cell] += 1
        return found


@lru_cache(maxsize=1024)
def _picture(sheet: Sheet, dpi: int) -> npt.NDArray[np.uint8]:
    return sheet.look.picture(sheet.page, dpi)


def sheet(text: str, look: Look) -> Sheet | None:
    """The first page of a text of printable ASCII and newlines; None for a blank text."""
    pages = look.renderer.pages(text, "")
    return Sheet(pages[0], look) if pages else None


def starts(page: Page, renderer: Renderer, offsets: Sequence[tuple[int, int]]) -> list[tuple[float, float] | None]:
    """Where tokens start on a page.

    Parameters
    ----------
    offsets : Sequence[tuple[int, int]]
        Of each token: its first character in ``page.text`` and past its last one.

    Returns
    -------
    list[tuple[float, float] | None]
        Middle ``(x, y)`` of each token's first visible character, points; None for a token of blanks.
    """
    text = page.text
    where: dict[int, tuple[float, float]] = {}
    at = 0
    for character, x, y in renderer.centres(page):
        if character != " ":  # blanks at the end of a line are in the text alone
            at = text.index(character, at)
            where[at] = (x, y)
            at += 1
    return [next((where[i] for i in range(first, end) if i in where), None) for first, end in offsets]


def looks(number: int, seed: int, profile: str = "smolglyph") -> list[Look]:
    """A profile's own look and ``number - 1`` others: fonts, sizes, widths, margins, numbers of lines.

    Raises
    ------
    ConfigError
        A font of the DejaVu family is not installed.
    """
    rng = random.Random(seed)
    own = RenderProfile.load(profile)
    profiles = [own]
    while len(profiles) < number:
        lines = min(rng.choice((1, 2, 4, 6, 8, 8)), own.lines_per_page)
        pitch = own.line_height * rng.choice((1, 1, 1, 1, 33 / 32, 17 / 16))
        top = rng.choice((0, 0, 0, 1, 2, 4, 7))
        profiles.append(
            replace(
                own,
                name=f"look {len(profiles)}",
                font=training_font(rng.choices(_FONTS, (5, 3, 2))[0]),
                font_size=own.font_size * rng.choice((0.94, 1, 1, 1.06, 1.12, 1.2)),
                page_width=own.page_width + rng.choice((-96, -32, 0, 0, 0, 16)),
                page_height=top + lines * pitch,
                line_height=pitch,
                margin_top=top,
                margin_left=rng.choice((0.5, 1, 2, 2, 3, 5)),
            )
        )
    return [Look(Renderer(profile)) for profile in profiles]
