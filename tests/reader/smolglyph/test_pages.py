"""Which cell each token starts in, computed again from the font's advances."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ImageFont

import qvpic_rag
from qvpic_rag.config import RenderProfile
from qvpic_rag.errors import ConfigError
from qvpic_rag.reader import pictures
from qvpic_rag.reader.smolglyph import pages
from qvpic_rag.reader.smolglyph.requests import Prompts
from qvpic_rag.reader.tokens import CHARACTERS

FONT = Path(qvpic_rag.__file__).parent / "assets" / "fonts" / "DejaVuSans.ttf"
TEXT = (
    "The locker 4411 belongs to Ann.  It is in the hall, and its code (KX-17) was changed on 4 May 2031.\n"
    "Nobody else knows the code; ask her before noon, or leave a note in the incomprehensibly small box."
)


@pytest.fixture(scope="module")
def own() -> pages.Look:
    return pages.looks(1, 0)[0]


def test_the_profile_has_one_row_of_visual_tokens_per_line(own: pages.Look) -> None:
    profile = RenderProfile.load("smolglyph")
    assert profile.line_height == pages.CELL
    assert profile.lines_per_page == 8
    found = pages.sheet(TEXT, own)
    assert found is not None
    assert found.grid(72)[0] == len(found.page.lines)
    for dpi in pages.DPIS:
        assert all(side % pages.CELL == 0 for side in found.picture(dpi).shape)


@pytest.mark.parametrize("dpi", pages.DPIS)
def test_tokens_stand_where_their_first_character_is_drawn(dpi: int, own: pages.Look, prompts: Prompts) -> None:
    found = pages.sheet(TEXT, own)
    assert found is not None
    profile, large = own.renderer.profile, ImageFont.truetype(FONT, 2000)
    expected: dict[int, list[int]] = {}
    ids = prompts.ids(TEXT)
    _, columns = found.grid(dpi)
    written = at = 0
    for token in ids:  # the tokens one after the other are the text
        piece = prompts.tokenizer.decode([token])
        first = len(piece) - len(piece.lstrip())
        place = at + first
        at += len(piece)
        if not piece.strip():
            continue
        line, offset = _line_of(found.page.lines, TEXT, place)
        before = found.page.lines[line][:offset]
        scale = profile.font_size / 2000
        widths = [large.getlength(each) for each in (*before, TEXT[place])]
        x = profile.margin_left + (sum(widths[:-1]) + widths[-1] / 2) * scale
        y = (line + 0.5) * profile.line_height - 2  # somewhere in the small letters
        cell = int(y * dpi / 72) // 16 * columns + int(x * dpi / 72) // 16
        expected.setdefault(cell, []).append(token)
        written += 1
    drawn = found.tokens(prompts.tokenizer, dpi)
    assert drawn.shape[0] == found.grid(dpi)[0] * columns
    seen = {cell: [int(token) for token in row if token >= 0] for cell, row in enumerate(drawn) if row[0] >= 0}
    assert seen == {cell: tokens[: pages.STARTS] for cell, tokens in expected.items()}
    assert written > 40


def _line_of(lines: tuple[str, ...], text: str, place: int) -> tuple[int, int]:
    """Line and offset in it of the text's character ``place``, found by counting visible characters."""
    visible = sum(not each.isspace() for each in text[:place])
    for number, line in enumerate(lines):
        for offset, character in enumerate(line):
            if character != " ":
                if visible == 0:
                    return number, offset
                visible -= 1
    raise AssertionError("the place is not drawn")


@settings(max_examples=40, deadline=None)
@given(text=st.text(st.sampled_from(CHARACTERS), min_size=1, max_size=120).filter(lambda text: bool(text.strip())))
def test_any_text_has_its_tokens_in_order(text: str, own: pages.Look, prompts: Prompts) -> None:
    found = pages.sheet(text, own)
    if found is None:
        return
    placed = [token for row in found.tokens(prompts.tokenizer, 72) for token in row if token >= 0]
    visible = [token for token in prompts.ids(found.text) if prompts.tokenizer.decode([token]).strip()]
    # Cells are in reading order, and of a crowded cell only the first tokens are kept.
    rest = iter(visible)
    assert all(token in rest for token in placed)
    assert set(placed) or not visible


def test_looks_are_the_same_again_and_differ(own: pages.Look) -> None:
    first, again = pages.looks(8, 3), pages.looks(8, 3)
    assert [each.renderer.digest for each in first] == [each.renderer.digest for each in again]
    assert len({each.renderer.digest for each in first}) == 8
    assert first[0].renderer.digest == own.renderer.digest


def test_a_missing_font_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "system_font", lambda name: None)
    with pytest.raises(ConfigError, match="dejavu"):
        pages.looks(4, 0)
