"""Scores: against LongBench's rules written down again, known answers, and laws."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qvpic_rag.errors import InputError
from qvpic_rag.evaluation.scoring import SCORINGS, Score, bare_answer, normalise, plain, score, token_f1

LAW = settings(deadline=None, derandomize=True)
# Words that collide often, and what normalisation is about.
TEXT = st.one_of(
    st.lists(st.sampled_from(["a", "The", "an", "Paris", "paris.", "B-12", "b12", "x", "\n", "!", "thé", "İ"])).map(
        " ".join
    ),
    st.text(max_size=30),
)


def words_of(text: str) -> list[str]:
    """Character by character, word by word."""
    kept = "".join("" if character in string.punctuation else character for character in text.lower())
    return [word for word in re.split(r"\s+", re.sub(r"(?<!\w)(a|an|the)(?!\w)", " ", kept)) if word]


def f1_again(text: str, answer: str) -> float:
    found, left, same = words_of(text), words_of(answer), 0
    size = len(found) + len(left)
    for word in found:
        if word in left:
            left.remove(word)
            same += 1
    return 2 * same / size if same else 0.0


def longbench(text: str, answers: list[str], first_line: bool) -> float:
    """The published loop over answers."""
    best = 0.0
    if first_line:
        while text.startswith("\n"):
            text = text[1:]
        text = text[: text.index("\n")] if "\n" in text else text
    for answer in answers:
        best = max(best, f1_again(text, answer))
    return best


@given(text=TEXT, answers=st.lists(TEXT, min_size=1, max_size=4))
@LAW
def test_f1_is_longbench_s(text: str, answers: list[str]) -> None:
    assert score(text, answers, "longbench").f1 == pytest.approx(longbench(text, answers, False))
    assert score(text, answers, "longbench-first-line").f1 == pytest.approx(longbench(text, answers, True))
    assert score(text, answers, "exact").f1 == score(text, answers, "longbench").f1


@given(text=TEXT, answers=st.lists(TEXT, min_size=1, max_size=4), scoring=st.sampled_from(SCORINGS))
@LAW
def test_scores_are_shares_and_another_right_answer_never_hurts(text: str, answers: list[str], scoring: str) -> None:
    found = score(text, answers, scoring)
    assert 0 <= found.f1 <= 1
    assert found.em in (0, 1)
    fewer = [score(text, answers[: size + 1], scoring) for size in range(len(answers))]
    assert fewer == sorted(fewer, key=lambda each: each.f1)
    assert [each.em for each in fewer] == sorted(each.em for each in fewer)
    assert found == score(text, answers[::-1], scoring)


@given(text=TEXT, answer=TEXT)
@LAW
def test_f1_is_symmetric_and_one_for_the_same_words(text: str, answer: str) -> None:
    assert token_f1(text, answer) == pytest.approx(token_f1(answer, text))
    assert token_f1(text, text) == (1.0 if normalise(text) else 0.0)
    if normalise(text) == normalise(answer):
        assert score(text, [answer], "longbench").em == 1
    if not set(normalise(text).split()) & set(normalise(answer).split()):
        assert token_f1(text, answer) == 0


@given(text=TEXT)
@LAW
def test_normalised_text_stays_as_it_is(text: str) -> None:
    once = normalise(text)
    assert normalise(once) == once
    assert not set(once.split()) & {"a", "an", "the"}


@given(text=st.one_of(TEXT, st.text("\"'`.!? aB\u201c\u201d\u0301e", max_size=8)))
@LAW
def test_plain_text_stays_as_it_is_and_equal_texts_share_all_words(text: str) -> None:
    once = plain(text)
    assert plain(once) == once
    assert bool(once) == bool(text.strip())
    if once:
        assert score(once, [text], "plain") == Score(1, 1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1.5", "15"), ("-5", "5"), ("C", "C++"), ("A", "B"), ("A", "The"), ("3,000", "3.000"), ("1/2", "12"),
        ("$5", "5"), ("a.b", "ab"), ("#1", "1"), ("10%", "10"), ("<5", ">5"), ("thé", "the"),
    ],
)  # fmt: skip
def test_plain_keeps_what_tells_answers_apart(one: str, other: str) -> None:
    for text, answer in ((one, other), (other, one)):
        assert score(text, [answer], "plain") == Score(0, 0)
    for text in (one, other):
        for said in (
            text,
            f"{text}.",
            f'"{text}"',
            f" {text.upper()} ",
            f"\u201c{text}!\u201d",
            f"'{text}'.",
            f"`{text}`",
        ):
            assert score(said, [text], "plain") == Score(1, 1), said


@pytest.mark.parametrize(
    ("text", "answers", "scoring", "f1", "em"),
    [
        ("The Eiffel Tower.", ["eiffel tower"], "longbench", 1, 1),
        ("eiffel", ["The Eiffel Tower"], "longbench", 2 / 3, 0),
        ("It is Paris", ["Paris", "City of Light"], "longbench", 0.5, 0),
        ("Paris\nQuestion: next", ["Paris"], "longbench", 0.5, 0),
        ("\n\nParis\nQuestion: next", ["Paris"], "longbench-first-line", 1, 1),
        (" \nParis", ["Paris"], "longbench-first-line", 0, 0),  # only line ends are taken off
        ("paris paris", ["paris"], "longbench", 2 / 3, 0),
        ("", ["Paris"], "longbench", 0, 0),
        ("the", ["a"], "longbench", 0, 1),  # nothing is left of either: no word in common, yet the same
        ("", ["."], "longbench", 0, 1),
        ("well-known", ["well known"], "longbench", 0, 0),
        ("KX-12", ["kx12"], "exact", 1, 0),
        (" KX-12\n", ["KX-12"], "exact", 1, 1),
        ("not stated", ["not stated"], "exact", 1, 1),
        ("It is 1.5", ["1.5"], "plain", 0.5, 0),
        ("  the\nEiffel  TOWER! ", ["The Eiffel Tower"], "plain", 1, 1),
        ("Eiffel Tower", ["The Eiffel Tower"], "plain", 0.8, 0),
        ("STRASSE", ["stra\xdfe"], "plain", 1, 1),
        ("cafe\u0301", ["Caf\xe9"], "plain", 1, 1),
        ('"a" or "b"', ['a" or "b'], "plain", 1 / 3, 0),
        ("...", ["."], "plain", 0, 0),
        ("", ["x"], "plain", 0, 0),
    ],
)
def test_known_scores(text: str, answers: list[str], scoring: str, f1: float, em: float) -> None:
    assert score(text, answers, scoring) == Score(pytest.approx(f1), em)


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("Paris", "Paris"),
        (" Paris \n", " Paris \n"),
        ("<think>Rome? No.\n\nParis.</think>\n\nParis", "Paris"),
        ("<think>a</think>x<think>b</think>y", "xy"),
        ("<think>Rome? No", "<think>Rome? No"),  # cut off: there is no answer
        ("<think>x</think><answer>Paris</answer>", "Paris"),
        ("<answer> Paris\n</answer> and more", "Paris"),
        ("<answer>Par", "Par"),
        ("\n<|begin_of_box|>Paris<|end_of_box|><|user|>", "\nParis"),
        ("The tag <answer> is one", "The tag <answer> is one"),
        ("a <| b |> c", "a <| b |> c"),
    ],
)
def test_what_is_not_the_answer_is_taken_off(text: str, bare: str) -> None:
    assert bare_answer(text) == bare
    assert score(text, ["Paris"], "longbench") == score(bare, ["Paris"], "longbench")


def test_thinking_is_not_the_first_line() -> None:
    assert score("<think>\nHm.\n</think>\n<answer>\nParis</answer>", ["Paris"], "longbench-first-line").em == 1


def test_what_cannot_be_scored() -> None:
    with pytest.raises(InputError, match="where none is right"):
        score("Paris", [], "longbench")
    with pytest.raises(
        InputError, match="scoring must be one of exact, longbench, longbench-first-line, plain, not 'f1'"
    ):
        score("Paris", ["Paris"], "f1")
