"""Pages as pictures: which letter stands in which cell, and the looks that pages are drawn in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ImageFont

from qvpic_rag.config import RenderProfile
from qvpic_rag.errors import ConfigError
from qvpic_rag.reader import pictures
from qvpic_rag.reader.pictures import CELL, PROFILE, SLOTS, UNSURE, Look, looks, stack
from qvpic_rag.reader.tokens import CHARACTERS
from qvpic_rag.render.fonts import BUNDLED_FONT

DPIS = (72, 120)
EM = 2048  # pixels; at this size advances are the font's own units and nothing is hinted
TEXT = "The badge code of Omar is KX-1234.\nAnna Bell: gate key illi. WWW mm"
LOOK = looks(1, 0)[0]


def cells(look: Look, text: str, dpi: int) -> list[str]:
    """The characters of each visual token, row by row, as :meth:`Look.letters` says."""
    page = look.page(text)
    assert page is not None
    found = look.letters(page, dpi, look.picture(page, dpi).shape)
    return ["".join(CHARACTERS[index] for index in row if index) for row in found]


def expected(text: str, dpi: int) -> list[str]:
    """The same from the advances that Pillow measures, with the numbers of the ``demo`` profile written out."""
    page = LOOK.page(text)
    assert page is not None
    font = ImageFont.truetype(str(BUNDLED_FONT), EM, layout_engine=ImageFont.Layout.BASIC)
    middle = 9 * (font.getmetrics()[0] / EM - 0.27)
    height, width = LOOK.picture(page, dpi).shape
    found = [""] * (height // 16 * (width // 16))
    for number, line in enumerate(page.lines):
        row = int((16 * number + middle) * dpi / 72 / 16)
        for place, character in enumerate(line):
            x = 2 + 9 * (font.getlength(line[:place]) + font.getlength(character) / 2) / EM
            column = int(x * dpi / 72 / 16)
            if column < width // 16:
                found[row * (width // 16) + column] += character
    return [each[:SLOTS] for each in found]


@pytest.mark.parametrize("dpi", DPIS)
def test_letters_are_in_their_cells(dpi: int) -> None:
    assert cells(LOOK, TEXT, dpi) == expected(TEXT, dpi)
    assert "".join("".join(cells(LOOK, TEXT, dpi)).split()) == "".join(TEXT.split())


@given(text=st.text(CHARACTERS[1:], min_size=1, max_size=60).filter(LOOK.fits), dpi=st.sampled_from(DPIS))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_letters_of_any_text(text: str, dpi: int) -> None:
    assert cells(LOOK, text, dpi) == expected(text, dpi)


@pytest.mark.parametrize("dpi", DPIS)
def test_ink_is_where_the_letters_are(dpi: int) -> None:
    page = LOOK.page("mmmm      mmmm")
    assert page is not None
    picture = LOOK.picture(page, dpi)
    named = np.array([bool(each.strip()) for each in cells(LOOK, "mmmm      mmmm", dpi)])
    ink = (255 - picture.reshape(-1, CELL, picture.shape[1] // CELL, CELL).astype(int)).sum((1, 3)).flatten()
    black = ink > 0.4 * ink.max()
    assert black.sum() >= 4
    assert named[black].all()


def test_pictures_are_grey_and_made_of_whole_cells() -> None:
    for text in ("A", "A\nB\nC", TEXT):
        page = LOOK.page(text)
        assert page is not None
        for dpi in DPIS:
            picture = LOOK.picture(page, dpi)
            assert picture.dtype == np.uint8
            assert picture.ndim == 2
            assert all(side % CELL == 0 for side in picture.shape)
            assert picture.min() < 100 < picture.max() == 255


@pytest.mark.parametrize("lines", [1, 2, 3, 4])
def test_a_line_is_a_row_of_cells_at_72_dpi(lines: int) -> None:
    page = LOOK.page("\n".join(["Ag jy"] * lines))
    assert page is not None
    picture = LOOK.picture(page, 72)
    assert picture.shape[0] == lines * CELL
    rows = LOOK.letters(page, 72, picture.shape).reshape(lines, -1)
    for row in rows:
        assert "".join(CHARACTERS[index] for index in row if index) == "Ag jy"


@pytest.mark.parametrize("dpi", DPIS)
def test_cells_on_whose_edge_a_letter_stands_are_unsure(dpi: int) -> None:
    page = LOOK.page(TEXT)
    assert page is not None
    shape = LOOK.picture(page, dpi).shape
    exact, masked = (LOOK.letters(page, dpi, shape, edge=edge) for edge in (0.0, 1.0))
    unsure = (masked == UNSURE).all(axis=1)
    assert (masked[~unsure] == exact[~unsure]).all()
    near = set()
    for _, x, y in LOOK.renderer.centres(page):
        row, column = int(y * dpi / 72 // CELL), x * dpi / 72 / CELL
        for side in (column - 1 / CELL, column + 1 / CELL):
            if int(side) != int(column) and int(side) < shape[1] // CELL:
                near |= {row * (shape[1] // CELL) + int(each) for each in (side, column)}
    assert near == set(np.flatnonzero(unsure))
    assert 0 < unsure.sum() < 0.7 * len(unsure)


def test_more_than_one_page_is_none() -> None:
    assert LOOK.page("\n".join("12345")) is None
    assert not LOOK.fits("\n".join("12345"))
    assert LOOK.page("") is None
    assert LOOK.fits("\n".join("1234"))


def test_a_crowded_cell_keeps_its_first_letters() -> None:
    page = LOOK.page("abcdefghij")
    assert page is not None
    crowded = LOOK.letters(page, 24, (16, 16))[0]
    assert "".join(CHARACTERS[index] for index in crowded) == "abcdefghij"[:SLOTS]


@pytest.mark.usefixtures("same_font")
def test_looks_are_many_and_always_the_same() -> None:
    found, again, others = looks(6, 3), looks(6, 3), looks(6, 4)
    profiles = [look.renderer.profile for look in found]
    assert profiles == [look.renderer.profile for look in again]
    assert profiles[1:] != [look.renderer.profile for look in others][1:]
    assert len({look.renderer.digest for look in found}) == 6
    assert profiles[0] == RenderProfile.load(PROFILE)
    assert looks(1, 9)[0].renderer.digest == found[0].renderer.digest
    for look in found:
        page = look.page("Omar: 12")
        assert page is not None
        for dpi in DPIS:
            picture = look.picture(page, dpi)
            assert all(side % CELL == 0 for side in picture.shape)
            found_ = look.letters(page, dpi, picture.shape)
            assert "".join(CHARACTERS[index] for row in found_ for index in row if index) == "Omar: 12"


def test_a_missing_font_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "system_font", lambda name: None)
    with pytest.raises(ConfigError, match=r"Training needs the font dejavu\w+\.ttf; install the DejaVu fonts"):
        looks(2, 0)
    assert len(looks(1, 0)) == 1


def test_pictures_of_one_size_are_found() -> None:
    sizes = [(16, 32), (16, 16), (16, 32), (32, 16)]
    found = stack([np.zeros(size, dtype=np.uint8) for size in sizes])
    assert found == {(16, 32): [0, 2], (16, 16): [1], (32, 16): [3]}
