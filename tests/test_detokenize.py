"""Answer text: pieces add up, characters are whole, stop strings end it, reasoning is kept apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qvpic_rag.detokenize import AnswerText
from tests.reference import load_tokenizer


class _Bytes:
    """One token per byte, as byte-level tokenizers have for what they do not know; 256 is a special token."""

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return bytes(i for i in ids if i < 256).decode("utf-8", errors="replace")


def _run(text: str, **options: Any) -> tuple[AnswerText, list[str]]:
    answer = AnswerText(_Bytes(), **options)
    pieces = []
    for token in text.encode():
        pieces.append(answer.push(token))
        if answer.stopped:
            break
    pieces.append(answer.finish())
    return answer, pieces


@given(text=st.text(max_size=60), stop=st.lists(st.text(min_size=1, max_size=4), max_size=3))
@settings(max_examples=300)
def test_pieces_make_the_text_and_nothing_is_taken_back(text: str, stop: list[str]) -> None:
    answer, pieces = _run(text, stop=stop)
    assert "".join(pieces) == answer.text
    assert not any(mark in answer.text for mark in stop)


@given(text=st.text(alphabet="ab c\n", min_size=1, max_size=40))
def test_plain_text_comes_back_stripped(text: str) -> None:
    answer, _ = _run(text)
    assert answer.text == text.strip()


@given(text=st.text(min_size=1, max_size=20).filter(lambda t: t == t.strip() and "<" not in t))
def test_characters_are_whole(text: str) -> None:
    answer, pieces = _run(text)
    assert answer.text == text
    assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces) or "\N{REPLACEMENT CHARACTER}" in text


@pytest.mark.parametrize(
    ("text", "opened", "reasoning", "answer"),
    [
        ("<think>why</think>because", False, "why", "because"),
        ("\n<think>\nwhy\n</think>\n\nbecause", False, "why", "because"),
        ("why</think>because", True, "why", "because"),
        ("<think>why</think><answer>because</answer>", False, "why", "because"),
        ("<answer>because</answer>", False, "", "because"),
        ("<think>never ends", False, "never ends", ""),
        ("never ends", True, "never ends", ""),
        ("a < b and <thin", False, "", "a < b and <thin"),
        ("<thin", False, "", "<thin"),
        ("x <think>y</think>", False, "", "x <think>y</think>"),
        ("", False, "", ""),
    ],
)
def test_reasoning_is_kept_apart(text: str, opened: bool, reasoning: str, answer: str) -> None:
    collected, pieces = _run(text, reasoning=opened)
    assert (collected.reasoning, collected.text) == (reasoning, answer)
    assert "".join(pieces) == answer


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("one\ntwo", ["\n"], "one"),
        ("one STOP two", ["STOP"], "one"),
        ("one ST two", ["STOP"], "one ST two"),
        ("aXbYc", ["Y", "X"], "a"),
        ("<think>a STOP b</think>c STOP d", ["STOP"], "c"),
        ("STOP", ["STOP"], ""),
    ],
)
def test_stop_strings(text: str, stop: list[str], expected: str) -> None:
    answer, pieces = _run(text, stop=stop)
    assert answer.text == expected
    assert "".join(pieces) == expected
    assert answer.stopped == (expected != text)


def test_special_tokens_are_not_text() -> None:
    answer = AnswerText(_Bytes())
    assert [answer.push(token) for token in (256, 65, 256, 66)] == ["", "A", "", "B"]


def test_the_last_broken_character_is_shown_not_swallowed() -> None:
    answer, _ = _run("a")
    for token in "é".encode()[:1]:
        answer.push(token)
    assert answer.finish() == "\N{REPLACEMENT CHARACTER}"


@settings(max_examples=50)
@given(data=st.data())
def test_a_real_tokenizer(data: st.DataObject, tokenizer: Any) -> None:
    text = data.draw(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30))
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    answer = AnswerText(tokenizer)
    pieces = [answer.push(token) for token in ids] + [answer.finish()]
    expected = tokenizer.decode(ids, skip_special_tokens=True)
    if "<" not in expected:
        assert answer.text == expected.strip()
    assert "".join(pieces) == answer.text


@pytest.fixture(scope="module")
def tokenizer(tiny_folder: Callable[..., Path]) -> Any:
    return load_tokenizer(tiny_folder("qwen2_vl"))
