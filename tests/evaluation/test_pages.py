"""Pages for suites: chunks that cover a text, and drawn pages with and without their newlines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from qvpic_rag.config import RenderProfile
from qvpic_rag.evaluation.cutting import cut_middle
from qvpic_rag.evaluation.pages import RenderedPages, TextChunks
from qvpic_rag.models import BUNDLED
from tests.tiny.templates import chat_template
from tests.tiny.tokenizer import build_tokenizer

LAW = settings(deadline=None, derandomize=True, max_examples=150)
TEXTS = st.one_of(
    st.text("ab c\n.😀é\u2028", max_size=120),
    st.text(max_size=60),
    st.lists(st.sampled_from(["the", "What is", "\n\n", "x" * 40, "KX-12", "😀" * 9, "  ", "é"])).map(" ".join),
)
SPLIT = "😀" * 5 + "." * 30  # the sixteenth token is part of a character


@pytest.fixture(scope="module")
def reader() -> Any:
    """The bundled reader's tokenizer: characters, and whole words of questions."""
    return AutoTokenizer.from_pretrained(BUNDLED["demo"])


@pytest.fixture(scope="module")
def byte_level() -> Any:
    """Bytes, some of which join: a character may be four tokens."""
    return build_tokenizer("qwen3_vl", chat_template("qwen3_vl"))


def length(tokenizer: Any, text: str) -> int:
    return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def without_space(text: str) -> str:
    return "".join(text.split())


def check(tokenizer: Any, text: str, tokens: int) -> None:
    chunks = TextChunks(tokenizer, tokens, None)
    pages = chunks.pages(text, "note.txt")
    assert without_space("".join(page.text for page in pages)) == without_space(text)
    at = 0
    for number, page in enumerate(pages):
        assert 0 < length(tokenizer, page.text) <= tokens
        assert page.text == page.text.strip() == "\n".join(page.lines)
        at = text.index(page.text, at) + len(page.text)
        assert (page.source, page.number) == ("note.txt", number)
    assert chunks.fits_one(text) == (len(pages) == 1)


@given(text=TEXTS, tokens=st.integers(4, 40))
@example(text=SPLIT, tokens=17)
@example(text="x" * 3000, tokens=16)
@example(text=" " * 900 + "a", tokens=16)
@LAW
def test_chunks_cover_a_text(byte_level: Any, text: str, tokens: int) -> None:
    check(byte_level, text, tokens)


@given(text=TEXTS, tokens=st.integers(4, 40))
@LAW
def test_chunks_by_the_bundled_reader_s_tokenizer(reader: Any, text: str, tokens: int) -> None:
    check(reader, text, tokens)


def test_chunks_end_at_lines_else_at_words(byte_level: Any) -> None:
    chunks = TextChunks(byte_level, 16, None)
    assert [page.text for page in chunks.pages("12345 6789\n12345 6789 1234", "")] == ["12345 6789", "12345 6789 1234"]
    assert [page.text for page in chunks.pages("12345 6789 12345 6789", "")] == ["12345 6789", "12345 6789"]
    assert [page.text for page in chunks.pages("1" * 40, "")] == ["1" * 16, "1" * 16, "1" * 8]
    # A line that ends in the first half would leave a chunk half empty.
    assert chunks.pages("1\n23456 7890 12345 6789", "")[0].text == "1\n23456 7890"


def test_a_text_of_long_tokens_is_read_in_part(byte_level: Any) -> None:
    """Spaces are few tokens; what is looked at is bounded, and nothing is lost."""
    check(byte_level, "a" + " " * 500 + "b" + " " * 500 + "c", 16)


def test_nothing_makes_no_chunk(byte_level: Any) -> None:
    chunks = TextChunks(byte_level, 16, None)
    for text in ("", " \n\t "):
        assert chunks.pages(text, "") == []
        assert not chunks.fits_one(text)
        assert chunks.fits_one("one" + text)


def test_literal_changes_no_chunk(byte_level: Any) -> None:
    chunks = TextChunks(byte_level, 16, None)
    assert chunks.pages("a\nb", "s", literal=True) == chunks.pages("a\nb", "s")


def test_cutting(reader: Any) -> None:
    text = "What is the badge code of Ada Brook?"
    for pages in (TextChunks(reader, 16, None), RenderedPages(RenderProfile.load("demo"), reader, None)):
        assert pages.cut(text, 6) == cut_middle(reader, text, 6)
        assert pages.cut(text, 6)[1]
        assert pages.embedder is None


@pytest.fixture(scope="module")
def drawn(reader: Any) -> RenderedPages:
    return RenderedPages(RenderProfile.load("demo"), reader, None)


def red(pages: RenderedPages, page: Any) -> bool:
    """Whether a picture has red in it."""
    picture = np.asarray(pages.image(page, 120)).astype(int)
    assert picture.shape[2] == 3
    return bool((picture[..., 0] > picture[..., 1] + 50).any())


def test_newlines_are_drawn_where_that_is_asked_for(drawn: RenderedPages) -> None:
    text = "Ada is in B2.\nOmar is in B3."
    [plain], [literal] = drawn.pages(text, "s"), drawn.pages(text, "s", literal=True)
    assert plain.text == literal.text == text
    assert plain.digest != literal.digest
    assert not red(drawn, plain)
    assert red(drawn, literal)
    [one], [alike] = drawn.pages("Ada is in B2.", "s"), drawn.pages("Ada is in B2.", "s", literal=True)
    assert one == alike
    assert not red(drawn, alike)
    [spelt] = drawn.pages("Ada\\nOmar", "s")
    assert not red(drawn, spelt)


def test_a_picture_needs_no_memory_of_its_page(drawn: RenderedPages, reader: Any) -> None:
    """Pages come back from a file, in another process."""
    another = RenderedPages(RenderProfile.load("demo"), reader, None)
    [page] = drawn.pages("Ada.\nOmar.", "s", literal=True)
    assert another.image(page, 72).tobytes() == drawn.image(page, 72).tobytes()


@given(text=TEXTS)
@LAW
@pytest.mark.filterwarnings("ignore:No font draws")
def test_fitting_one_page(drawn: RenderedPages, text: str) -> None:
    assert drawn.fits_one(text) == (len(drawn.pages(text, "s")) == 1)


def test_a_profile_with_newlines_drawn_anyway(reader: Any) -> None:
    pages = RenderedPages(RenderProfile.load("glyph-literal"), reader, None)
    assert pages.pages("a\nb", "s") == pages.pages("a\nb", "s", literal=True)
    assert red(pages, pages.pages("a\nb", "s")[0])
