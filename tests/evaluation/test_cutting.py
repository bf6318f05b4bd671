"""Cutting: halves of the text itself, never more tokens than asked for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import qvpic_rag
from qvpic_rag.errors import ConfigError, UnsupportedModelError
from qvpic_rag.evaluation.cutting import cut_middle

LAW = settings(deadline=None, derandomize=True, max_examples=60)


@pytest.fixture(scope="module")
def reader() -> Any:
    """The bundled reader's tokenizer: characters, and whole words of questions."""
    return AutoTokenizer.from_pretrained(Path(qvpic_rag.__file__).parent / "assets" / "reader")


@pytest.fixture(scope="module")
def byte_level() -> Any:
    """Bytes, of which some join: a character may be four tokens, and halves may join to fewer or other tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("a", "b"), ("ab", "c"), ("Ġ", "a"), ("b", "b")]
    vocabulary = {token: number for number, token in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def length(tokenizer: Any, text: str) -> int:
    return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def test_halves_of_a_text(byte_level: Any) -> None:
    text = "0123456789"
    assert cut_middle(byte_level, text, 10) == (text, False)
    assert cut_middle(byte_level, text, 99) == (text, False)
    assert cut_middle(byte_level, text, 6) == ("012789", True)
    assert cut_middle(byte_level, text, 5) == ("01789", True)
    assert cut_middle(byte_level, text, 1) == ("9", True)
    assert cut_middle(byte_level, "", 1) == ("", False)


def test_a_space_goes_with_its_word(byte_level: Any) -> None:
    """Trimmed offsets leave the space out; the text has it all the same."""
    assert cut_middle(byte_level, "x y a z", 3) == ("x z", True)


def test_no_part_of_a_character_stays(byte_level: Any) -> None:
    assert length(byte_level, "😀" * 3) == 12
    assert cut_middle(byte_level, "😀" * 3, 11) == ("😀😀", True)
    assert cut_middle(byte_level, "😀" * 3, 6) == ("", True)  # three tokens of either end are part of one


def test_halves_that_join_to_more_tokens(byte_level: Any) -> None:
    """``a`` and ``bb`` are two tokens, ``abb`` is ``ab`` and ``b``, and with a space before it three."""
    text = "  a  bb "
    assert length(byte_level, "  abb ") > 4
    assert length(byte_level, cut_middle(byte_level, text, 4)[0]) <= 4


@given(text=st.text("abc é😀", max_size=60), tokens=st.integers(1, 40))
@LAW
def test_beginning_and_end_at_most_as_long_as_asked(byte_level: Any, text: str, tokens: int) -> None:
    _check(byte_level, text, tokens)


@given(
    text=st.lists(st.sampled_from(["What", "is", "the", "badge code", "KX-12", "é", "\n"])), tokens=st.integers(1, 30)
)
@LAW
def test_the_bundled_reader_s_tokenizer(reader: Any, text: list[str], tokens: int) -> None:
    _check(reader, " ".join(text), tokens)


def _check(tokenizer: Any, text: str, tokens: int) -> None:
    found, cut = cut_middle(tokenizer, text, tokens)
    assert length(tokenizer, found) <= tokens
    assert cut == (length(tokenizer, text) > tokens)
    if not cut:
        assert found == text
        return
    assert len(found) < len(text)
    assert any(text.startswith(found[:at]) and text.endswith(found[at:]) for at in range(len(found) + 1))


def test_long_texts_are_cut_in_silence(reader: Any, caplog: pytest.LogCaptureFixture) -> None:
    text = "word " * 9000
    found, cut = cut_middle(reader, text, 100)
    assert cut
    assert length(reader, found) <= 100
    assert not caplog.records


def test_what_cannot_be_cut(reader: Any) -> None:
    for tokens in (0, -1, 1.5, True):
        with pytest.raises(ConfigError, match="at least 1 token"):
            cut_middle(reader, "text", tokens)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModelError, match="use a model with a fast tokenizer"):
        cut_middle(SimpleNamespace(is_fast=False), "text", 1)
