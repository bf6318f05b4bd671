"""From text to pages: the whole text, in order, on pages that break where the layout says."""

from __future__ import annotations

import json
import re
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qvpic_rag.errors import ConfigError, UndrawableError
from qvpic_rag.render import Renderer, fonts

Make = Callable[..., Renderer]
GOLDEN = Path(__file__).with_name("golden_layout.json")
ODD = "\t \n\r\f\v\x00\x07\x1c\x85\xad\u0301\u200b\u200d\u2028\ufe0f\ufeff\u202e"
TEXTS = st.text(
    st.one_of(
        st.sampled_from("ab cde. -" + ODD), st.sampled_from("שלום\u05b4مرحب١中（。각é\U0001f600[U+]"), st.characters()
    )
)
# Hypothesis would otherwise complain of fixtures that are not reset between examples; a Renderer keeps no state.
SHARED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def lines_of(renderer: Renderer, text: str) -> list[str]:
    return [line for page in renderer.pages(text, "t") for line in page.lines]


def visible(text: str) -> str:
    """What of a text leaves ink, composed; code points in brackets count as the character they stand for."""
    text = re.sub("[\ud800-\udfff]", "\ufffd", text)
    text = re.sub(r"\[U\+([0-9A-F]{4,6})\]", lambda match: chr(int(match[1], 16)), text)
    kept = [
        character
        for character in text
        if not character.isspace()
        and unicodedata.category(character) not in ("Cc", "Cf", "Zs")
        and not re.match("[\ufe00-\ufe0f\u034f\u180b-\u180f\U000e0000-\U000e0fff\u2800]|\u2065", character)
    ]
    return unicodedata.normalize("NFC", "".join(kept))


@pytest.mark.filterwarnings("ignore:No font draws")
@pytest.mark.parametrize(("name", "changes"), [("glyph", {"page_width": 90.0}), ("glyph-literal", {}), ("demo", {})])
@SHARED
@given(text=TEXTS)
def test_no_text_is_lost(make: Make, name: str, changes: dict[str, float], text: str) -> None:
    pages = make(name, **changes).pages(text, "t")
    drawn = "".join(line for page in pages for line in page.lines)
    assert visible(drawn) == visible(text)
    assert visible("".join(page.text for page in pages)) == visible(text)
    assert [page.number for page in pages] == list(range(len(pages)))


@SHARED
@given(words=st.lists(st.text("abcdefgh", min_size=1, max_size=12), max_size=120))
def test_page_text_neither_splits_nor_glues_words(make: Make, words: list[str]) -> None:
    pages = make(page_width=120.0, page_height=100.0).pages(" ".join(words), "t")
    assert [word for page in pages for word in page.text.split()] == words


@pytest.mark.filterwarnings("ignore:No font draws")
@SHARED
@given(text=TEXTS)
def test_lines_fit_the_page(make: Make, text: str) -> None:
    renderer = make(page_width=200.0)
    for page in renderer.pages(text, "t"):
        assert len(page.lines) <= renderer.profile.lines_per_page
        assert renderer.image(page, 72).width <= 201


def test_golden_layout(make: Make) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    for case in golden["cases"]:
        renderer = make(case["profile"], font="bundled", **case["changes"])
        assert [list(page.lines) for page in renderer.pages(golden["text"], "t")] == case["pages"], case["profile"]


def test_glyph_pages_have_81_lines(make: Make) -> None:
    pages = make().pages("line\n" * 200, "t")
    assert [len(page.lines) for page in pages] == [81, 81, 38]


@pytest.mark.parametrize("text", ["", " ", "\n \t\n", "\f\f", "\u200b\xad", "\x00", "\u3000"])
def test_blank_text_has_no_pages(make: Make, cjk_font: Path, text: str) -> None:
    assert make(fallback_fonts=(str(cjk_font),)).pages(text, "t") == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a\r\nb\rc\x85d\u2028e\u2029f\vg", list("abcdefg")),
        ("soft\xadhyphen zero\u200bwidth \ufeffmark", ["softhyphen zerowidth mark"]),
        ("a  b   c", ["a  b   c"]),
        ("  indented\n\tby tab", ["  indented", "    by tab"]),
        ("x\ty", ["x    y"]),
        ("bell\x07 unit\x1fseparator", ["bell unit separator"]),
        ("thin\u2009space no\xa0break", ["thin space no\xa0break"]),
        ("trailing   \nnext", ["trailing", "next"]),
        ("one\n\ntwo\n\n", ["one", "", "two"]),
        ("e\u0301 a\u030a", ["é å"]),
        ("q\u0307", ["q\u0307"]),
        ("red\u2764\ufe0fheart", ["red\u2764heart"]),
        ("woman\u200dman", ["womanman"]),
        ("direction\u202e\u200f", ["direction"]),
        ("lone \ud800", ["lone \ufffd"]),
    ],
)
def test_odd_characters(make: Make, text: str, lines: list[str]) -> None:
    assert lines_of(make(), text) == lines


def test_form_feed_ends_the_page(make: Make) -> None:
    pages = make().pages("one\n\n\ftwo\f\f \n\fthree", "t")
    assert [page.lines for page in pages] == [("one",), ("two",), ("three",)]
    assert [page.text for page in pages] == ["one", "two", "three"]


def test_blank_pages_are_left_out(make: Make) -> None:
    pages = make().pages("first" + "\n" * 500 + "last", "t")
    assert [page.lines[-1] for page in pages if page.lines[-1]] == ["last"]
    assert [page.number for page in pages] == [0, 1]


def test_a_word_wider_than_a_line_is_cut(make: Make) -> None:
    lines = lines_of(make(page_width=100.0), "short " + "m" * 30 + " end")
    assert lines == ["short", "mmmmmmm", "mmmmmmm", "mmmmmmm", "mmmmmmm", "mm end"]


def test_indentation_wider_than_a_line_wraps_once(make: Make) -> None:
    assert lines_of(make(page_width=100.0), " " * 500 + "word") == ["", "word"]


def test_marks_stay_with_their_base_when_a_word_is_cut(make: Make) -> None:
    lines = lines_of(make(page_width=100.0), "q\u0307" * 60)
    assert len(lines) > 3
    assert all(len(line) % 2 == 0 and line.startswith("q") for line in lines)


def test_cjk_wraps_without_spaces(make: Make, cjk_font: Path) -> None:
    renderer = make(page_width=32 + 9 * 5, fallback_fonts=(str(cjk_font),))  # five characters a line
    assert lines_of(renderer, "一丁丂七丄丅丆万丈三上") == ["一丁丂七丄", "丅丆万丈三", "上"]
    # Closing punctuation does not start a line, opening punctuation does not end one.
    assert lines_of(renderer, "一丁丂七丄。丅丆万（丈）") == ["一丁丂七", "丄。丅丆万", "（丈）"]
    assert renderer.pages("一丁丂七丄丅丆", "t")[0].text == "一丁丂七丄丅丆"


def test_literal_newlines(make: Make) -> None:
    renderer = make("glyph-literal", page_width=200.0)
    page = renderer.pages("Title\n\nbody \\n text\nthat goes on and on until the line is full\nend\n", "t")[0]
    assert page.lines == ("Title \n \n body \\n text \n that goes", "on and on until the line is full \n end")
    assert page.text == "Title\n\nbody \\n text\nthat goes on and on until the line is full\nend"


def test_undrawable_characters_are_named(make: Make) -> None:
    text = "ok \U0001f984\U0001f984 中 end\ttab\fpage"
    with pytest.warns(UserWarning, match=r"No font draws 3 characters .*U\+1F984 \(2\), U\+4E2D \(1\)") as caught:
        page = make().pages(text, "t")[0]
    assert len(caught) == 1
    assert page.lines == ("ok [U+1F984][U+1F984] [U+4E2D] end    tab",)
    assert page.text == text.split("\f")[0]
    with pytest.raises(UndrawableError, match=r"U\+1F984"):
        make(strict=True).pages(text, "t")


def test_a_long_list_of_undrawable_characters_is_cut(make: Make) -> None:
    with pytest.warns(UserWarning, match="and 80 more"):
        make().pages("".join(map(chr, range(0x4E00, 0x4E64))), "t")


def test_fallback_font_draws_what_the_first_lacks(make: Make, cjk_font: Path) -> None:
    assert lines_of(make(fallback_fonts=(str(cjk_font),), strict=True), "Latin 中丈") == ["Latin 中丈"]


def test_system_fonts_come_last(make: Make, cjk_font: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.ttf"
    damaged.write_bytes(b"\0\1\0\0 no font")
    monkeypatch.setattr(fonts, "_system_fonts", lambda: {"notosans-regular.ttf": damaged, "wqy-zenhei.ttc": cjk_font})
    renderer = make(strict=True)
    assert lines_of(renderer, "中") == ["中"]
    assert [face.path for face in renderer._chain.faces] == [fonts.BUNDLED_FONT, damaged, cjk_font]


def test_verdana_is_preferred_where_the_system_has_it(
    make: Make, cjk_font: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fonts, "_system_fonts", lambda: {"verdana.ttf": cjk_font})
    assert make(font="auto")._chain.faces[0].path == cjk_font
    assert make(font="bundled")._chain.faces[0].path == fonts.BUNDLED_FONT


@pytest.mark.parametrize(
    "content", [None, b"", b"not a font", b"OTTO\0\1", b"\0\1\0\0\0\1" + bytes(6) + b"glyf" + bytes(12)]
)
def test_a_font_that_cannot_be_used(make: Make, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "font.ttf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"font\.ttf.* cannot be used"):
        make(font=str(path))
    with pytest.raises(ConfigError, match=r"font\.ttf.* cannot be used"):
        make(fallback_fonts=(str(path),))


def test_without_raqm_joining_scripts_are_reported(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "has_raqm", lambda: False)
    renderer = make()
    with pytest.warns(UserWarning, match="libfribidi"):
        page = renderer.pages("مرحبا 12 (שלום) x", "t")[0]
    assert renderer.image(page, 72).width > 1
    with pytest.raises(UndrawableError, match="libfribidi"):
        make(strict=True).pages("مرحبا", "t")
    assert lines_of(renderer, "Latin café q\u0307") == ["Latin café q\u0307"]


def test_ten_megabytes(make: Make) -> None:
    sentence = "The quick brown fox jumps over the lazy dog, and then it sleeps until the morning comes. "
    text = sentence * (10_000_000 // len(sentence))
    pages = make().pages(text, "t")
    assert len(pages) > 900
    assert sum(len(page.text.split()) for page in pages) == len(text.split())


@pytest.mark.filterwarnings("ignore:No font draws")
@pytest.mark.parametrize("unit", ["\n", "\f", "x", " ", "\u0301", "ب", "（", "中", "\u200d", "\t\x00"])
def test_a_megabyte_of_one_character_takes_linear_time(make: Make, unit: str) -> None:
    def seconds(size: int) -> float:
        renderer, text = make(), unit * (size // len(unit)) + "end"
        start = time.process_time()
        renderer.pages(text, "t")
        return time.process_time() - start

    seconds(1000)
    assert seconds(1_000_000) < 40 * seconds(100_000) + 0.5  # quadratic would be 100 times
