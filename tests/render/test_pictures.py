"""From pages to pictures: sizes, the same text at every resolution, nothing but the lines decides."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageDraw, ImageFont, features

from qvpic_rag.config import RenderProfile
from qvpic_rag.errors import ConfigError
from qvpic_rag.records import Page
from qvpic_rag.render import Renderer, fonts, renderer
from qvpic_rag.render.fonts import BUNDLED_FONT
from qvpic_rag.render.sfnt import read_tables
from qvpic_rag.render.shaping import visual_words
from tests.render.tinyfont import write_font

Make = Callable[..., Renderer]
PROSE = (
    "The badge code of Marta Lind is QX-4417, and it opens the north gate only. Whoever needs the vault asks at the "
    "desk before noon; the file number goes on the yellow form. Locker 12 belongs to Tomas Brandt. "
)
MIXED = "naïve q\u0307 Ελληνικά Русский Tiếng Việt שלום 12 (עולם) مرحبا end"


def page(*lines: str) -> Page:
    return Page(lines=lines, text="", source="t", number=0)


def ink(image: Image.Image) -> npt.NDArray[np.float64]:
    """Darkness 0 to 1, ``[height, width]``."""
    return 1 - np.asarray(image.convert("L"), dtype=np.float64) / 255


@pytest.mark.parametrize(
    ("dpi", "size", "tokens"),
    [
        (72, (595, 842), 630),
        (96, (794, 1123), 1120),
        (120, (992, 1404), 1750),
        (144, (1190, 1684), 2520),
        (168, (1389, 1965), 3500),
    ],
)
def test_glyph_page_sizes_and_visual_tokens(make: Make, dpi: int, size: tuple[int, int], tokens: int) -> None:
    image = make(crop=False).image(page("x"), dpi)
    assert (image.mode, image.size) == ("RGB", size)
    # GLM-4.1V rounds each side to whole tokens of 28 pixels.
    assert round(size[0] / 28) * round(size[1] / 28) == tokens


@pytest.mark.parametrize(("dpi", "size"), [(72, (144, 64)), (120, (240, 112))])
def test_demo_page_sizes(make: Make, dpi: int, size: tuple[int, int]) -> None:
    assert make("demo", crop=False).image(page("x"), dpi).size == size


def test_crop(make: Make) -> None:
    full = [page(*["a line of text"] * 81), page(*["a line of text"] * 3)]
    for dpi in (72, 120):
        heights = [make().image(each, dpi).height for each in full]
        assert heights == [-(-842 * dpi // 72), -(-62 * dpi // 72)]
        dark = np.flatnonzero(ink(make().image(full[0], dpi)).any(axis=0))
        width = make().image(full[0], dpi).width
        # The right margin is as white as the left one, up to the letters' own side bearings.
        assert width - dark[-1] == pytest.approx(16 * dpi / 72, abs=3)
        assert dark[0] == pytest.approx(16 * dpi / 72, abs=3)


def test_padding_is_white(make: Make) -> None:
    image = make(pad_to=28).image(page("hello"), 72)
    assert image.width % 28 == image.height % 28 == 0
    plain = make().image(page("hello"), 72)
    canvas = Image.new("RGB", image.size, "white")
    canvas.paste(plain)
    assert np.array_equal(np.asarray(canvas), np.asarray(image))


@pytest.mark.parametrize("name", ["glyph", "demo"])
def test_every_resolution_shows_the_same_lines(make: Make, name: str) -> None:
    renderer = make(name, crop=False)
    pages = renderer.pages(PROSE * 12, "t")
    profile = renderer.profile
    inked = {}
    for dpi in (72, 96, 120, 168):
        scale = dpi / 72
        darkness = ink(renderer.image(pages[0], dpi))
        edges = [round((profile.margin_top + n * profile.line_height) * scale) for n in range(len(pages[0].lines) + 1)]
        inked[dpi] = np.array([darkness[a:b].sum() / scale**2 for a, b in itertools.pairwise(edges)])
    for dpi in (96, 120, 168):
        assert inked[dpi] == pytest.approx(inked[72], rel=0.15 if name == "glyph" else 0.3)


def test_a_line_is_as_wide_as_the_layout_says(make: Make) -> None:
    """Advances are unhinted: 60 letters drift by less than a pixel at any resolution."""
    width = 60 * read_tables(BUNDLED_FONT).advances[ord("i")] * 9
    for dpi in (72, 96, 100, 120):
        dark = np.flatnonzero(ink(make(crop=False).image(page("i" * 60 + "|"), dpi)).any(axis=0))
        start = np.flatnonzero(ink(make(crop=False).image(page("|"), dpi)).any(axis=0))
        assert dark[-1] - start[-1] == pytest.approx(width * dpi / 72, abs=1)


def test_words_do_not_run_together(make: Make) -> None:
    """At 72 DPI the gap between two words stays wider than any gap within them."""
    columns = ink(make(crop=False).image(page("included West"), 72)).sum(axis=0)[16:90] < 0.02
    gaps, run = [], 0
    for white in columns:
        if not white and run:
            gaps.append(run)
        run = run + 1 if white else 0
    assert sorted(gaps)[-1] >= 2
    assert sorted(gaps)[-1] > sorted(gaps)[-2]


@pytest.mark.parametrize("name", ["glyph", "glyph-literal", "demo"])
def test_a_picture_depends_on_lines_alone(make: Make, name: str) -> None:
    text = PROSE + "\n\ttab  and\n" + ("" if name == "demo" else MIXED)
    first, second = make(name), make(name)
    for each in first.pages(text, "t"):
        again = Page(lines=tuple(each.lines), text="other", source="other", number=99)
        for dpi in (72, 120):
            assert first.image(each, dpi).tobytes() == second.image(again, dpi).tobytes()


def test_newline_markers_are_red(make: Make) -> None:
    picture = np.asarray(make("glyph-literal").image(page("a \n b"), 120)).astype(int)
    red = (picture[..., 0] > 240) & (picture[..., 1] < 128)
    dark = picture.max(axis=-1) < 128
    assert red.sum() > 10
    assert dark.sum() > 10
    black_only = np.asarray(make("glyph-literal").image(page(r"a \n b"), 120)).astype(int)
    assert (black_only.max(axis=-1) == black_only.min(axis=-1)).all()
    assert np.array_equal(black_only[..., 1], picture[..., 1])


def test_threads_share_one_renderer(make: Make) -> None:
    shared = make()
    pages = shared.pages((PROSE + MIXED) * 40, "t")
    work = [(each, dpi) for each in pages for dpi in (72, 96, 120)]
    alone = [make().image(*item).tobytes() for item in work]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda item: shared.image(*item).tobytes(), work * 3))
    assert together == alone * 3


def test_digest_follows_profile_fonts_and_version(
    make: Make, cjk_font: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = make().digest
    assert digest == make(name="renamed").digest
    copy = tmp_path / "copy.ttf"
    copy.write_bytes(BUNDLED_FONT.read_bytes())
    changed = [
        make(font_size=9.5),
        make(newline="literal"),
        make(pad_to=28),
        make(crop=False),
        make(fallback_fonts=(str(cjk_font),)),
        make(font=str(write_font(tmp_path / "other.ttf", "abc"))),
    ]
    digests = {each.digest for each in changed}
    monkeypatch.setattr(renderer, "_VERSION", 10_000)
    digests.add(make().digest)
    assert digest not in digests
    assert len(digests) == len(changed) + 1


def test_a_font_installed_later_changes_the_pages_that_need_it_and_no_digest(
    make: Make, cjk_font: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make()
    with pytest.warns(UserWarning, match=r"U\+4E2D"):
        spelt = before.pages("latin \u4e2d", "t")[0]
    assert spelt.lines == ("latin [U+4E2D]",)
    monkeypatch.setattr(fonts, "_system_fonts", lambda: {fonts.SYSTEM_FALLBACKS[0]: cjk_font})
    after = make()
    drawn = after.pages("latin \u4e2d", "t")[0]
    assert drawn.lines == ("latin \u4e2d",)
    assert after.digest == before.digest
    assert drawn.digest != spelt.digest
    assert after.image(spelt, 72).tobytes() == before.image(spelt, 72).tobytes()


def test_digest_follows_the_bytes_of_a_font(make: Make, tmp_path: Path) -> None:
    path = write_font(tmp_path / "font.ttf", "ab")
    before = make(font=str(path)).digest
    write_font(path, "abc")
    assert make(font=str(path)).digest != before


@pytest.mark.parametrize("dpi", [0, 23, 601, 72.0, True, "72"])
def test_resolution_is_checked(make: Make, dpi: object) -> None:
    with pytest.raises(ConfigError, match="24 to 600"):
        make().image(page("x"), dpi)  # type: ignore[arg-type]


def test_a_character_wider_than_the_page_widens_it(make: Make, tmp_path: Path) -> None:
    font = write_font(tmp_path / "wide.ttf", "中", advance=9000)
    renderer = make("demo", page_width=40, fallback_fonts=(str(font),))
    assert renderer.image(renderer.pages("中", "t")[0], 72).width == 96


def test_unhinted_advances_are_the_fonts_own() -> None:
    advances = read_tables(BUNDLED_FONT).advances
    font = ImageFont.truetype(str(BUNDLED_FONT), 2048, layout_engine=ImageFont.Layout.BASIC)
    for character in "aiW.é–中Ж€\U0001d54f\U0001f600":
        if ord(character) in advances:
            assert advances[ord(character)] * 2048 == pytest.approx(font.getlength(character), abs=1)
    assert len(advances) > 5000
    assert ord("中") not in advances


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("one two", ["one", " ", "two"]),
        ("see שלום עולם 12 now", ["see", " ", "12", " ", "עולם", " ", "שלום", " ", "now"]),
        ("שלום (12) abc def.", ["abc", " ", "def.", " ", "(12)", " ", "שלום"]),
        ("רקם 1990.", [".1990", " ", "רקם"]),
    ],
)
def test_right_to_left_words_are_ordered(line: str, words: list[str]) -> None:
    assert visual_words(line) == words


@pytest.mark.skipif(not features.check_feature("raqm"), reason="this Pillow has no raqm")
def test_arabic_letters_join(make: Make) -> None:
    """Joined, three letters are narrower than one by one."""
    joined, alone = make(), make()
    width = joined._layout.metrics.width
    assert width("ببب") < sum(alone._layout.metrics.width(letter) for letter in "ببب") * 0.8


def test_speed(make: Make) -> None:
    """Unhinted drawing and layout cost a small multiple of what Pillow takes to draw the same lines hinted."""
    words = [f"{word.strip('.,;')}{n % 97}" for n, word in enumerate(PROSE.split() * 400)]
    drawing = make()
    start = time.process_time()
    pages = drawing.pages(" ".join(words), "t")[:8]
    for each in pages:
        drawing.image(each, 72)
    ours = time.process_time() - start
    font = ImageFont.truetype(str(BUNDLED_FONT), 9)
    start = time.process_time()
    for each in pages:
        canvas = ImageDraw.Draw(Image.new("RGB", (595, 842), "white"))
        for number, line in enumerate(each.lines):
            canvas.text((16, 16 + 10 * number), line, font=font, fill="black")
    assert ours < 15 * (time.process_time() - start)


def test_profiles_load() -> None:
    assert {name: RenderProfile.load(name).lines_per_page for name in ("glyph", "glyph-literal", "demo")} == {
        "glyph": 81,
        "glyph-literal": 81,
        "demo": 4,
    }
