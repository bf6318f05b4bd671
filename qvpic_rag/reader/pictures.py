"""Pages as the reader sees them in training: drawn by the engine's own renderer, in many looks.

The first look is the profile that a reader is trained for. The others vary font, size, margins and page height,
so that the reader reads letters and not one pixel pattern.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from qvpic_rag.config import RenderProfile
from qvpic_rag.errors import ConfigError
from qvpic_rag.models.reader_images import MERGE, PATCH
from qvpic_rag.reader.tokens import CHARACTERS
from qvpic_rag.records import Page
from qvpic_rag.render import Renderer
from qvpic_rag.render.fonts import system_font

__all__ = ["CELL", "PROFILE", "SLOTS", "UNSURE", "Look", "looks", "stack", "training_font"]

PROFILE = "demo"
"""The render profile that a reader is trained for."""
CELL = PATCH * MERGE  # pixels that one visual token is wide and high
SLOTS = 7
"""Characters that one visual token can hold; of a denser cell the rest is not asked for."""
UNSURE = -1
_CLASSES = {character: index for index, character in enumerate(CHARACTERS)}  # 0, a newline, stands for nothing there
_FONTS = ("dejavusans.ttf", "dejavuserif.ttf", "dejavusansmono.ttf")


@dataclass(frozen=True)
class Look:
    """One way of drawing pages."""

    renderer: Renderer

    def page(self, text: str) -> Page | None:
        """The text's page; None unless it is exactly one."""
        pages = self.renderer.pages(text, "")
        return pages[0] if len(pages) == 1 else None

    def fits(self, text: str) -> bool:
        """Whether a text fits one page."""
        return self.page(text) is not None

    def picture(self, page: Page, dpi: int) -> npt.NDArray[np.uint8]:
        """uint8 ``(height, width)``, grey; both sides multiples of :data:`CELL` pixels."""
        return np.asarray(self.renderer.image(page, dpi))[:, :, 0]

    def letters(self, page: Page, dpi: int, shape: tuple[int, int], *, edge: float = 0.0) -> npt.NDArray[np.int64]:
        """Which characters stand in which visual token.

        Parameters
        ----------
        shape : tuple[int, int]
            The picture's ``(height, width)`` in pixels.
        edge : float
            Pixels around the edge between two cells within which a character's middle makes both :data:`UNSURE`: whose
            it is cannot be seen.

        Returns
        -------
        NDArray[int64]
            ``(tokens, SLOTS)``: indices into ``CHARACTERS`` of the characters whose middle lies in the token's cell,
            left to right; 0 where there is none.
        """
        rows, columns = shape[0] // CELL, shape[1] // CELL
        found = np.zeros((rows * columns, SLOTS), dtype=np.int64)
        count = np.zeros(rows * columns, dtype=np.int64)
        unsure: set[int] = set()
        for character, x, y in self.renderer.centres(page):
            row, (column, place) = int(y * dpi / 72) // CELL, divmod(x * dpi / 72, CELL)
            if row < rows and column < columns:
                cell = row * columns + int(column)
                if place < edge and column > 0:
                    unsure |= {cell - 1, cell}
                elif place > CELL - edge and column < columns - 1:
                    unsure |= {cell, cell + 1}
                if count[cell] < SLOTS:
                    found[cell, count[cell]] = _CLASSES[character]
                    count[cell] += 1
        found[sorted(unsure)] = UNSURE
        return found


def looks(number: int, seed: int) -> list[Look]:
    """The look of :data:`PROFILE` and ``number - 1`` others.

    Raises
    ------
    ConfigError
        A font of the DejaVu family is not installed.
    """
    rng = random.Random(seed)
    own = RenderProfile.load(PROFILE)
    profiles = [own]
    while len(profiles) < number:
        lines = rng.choice((2, 3, 4, 4, 5, 6))
        pitch = rng.choice((16, 16, 16, 16.5, 17, 18))
        top = rng.choice((0, 0, 1, 2, 4, 7))
        profiles.append(
            replace(
                own,
                name=f"look {len(profiles)}",
                font=training_font(rng.choices(_FONTS, (4, 3, 2))[0]),
                font_size=own.font_size * rng.choice((0.95, 1, 1, 1.06, 1.12, 1.2)),
                page_width=own.page_width + rng.choice((-32, -16, 0, 0, 0, 16)),
                page_height=top + lines * pitch,
                line_height=pitch,
                margin_top=top,
                margin_left=rng.choice((0.5, 1, 2, 2, 3, 5)),
            )
        )
    return [Look(Renderer(profile)) for profile in profiles]


def training_font(name: str) -> str:
    """Path of a font file of the system; ``ConfigError`` where it is missing."""
    found = system_font(name)
    if found is None:
        raise ConfigError(f"Training needs the font {name}; install the DejaVu fonts (package fonts-dejavu).")
    return str(found)


def stack(pictures: Sequence[npt.NDArray[np.uint8]]) -> dict[tuple[int, int], list[int]]:
    """Indices of pictures by ``(height, width)``: equal ones can be computed together."""
    groups: dict[tuple[int, int], list[int]] = {}
    for index, picture in enumerate(pictures):
        groups.setdefault((picture.shape[0], picture.shape[1]), []).append(index)
    return groups
