"""Examinations: how answers are counted, and that every method and resolution is asked through the engine."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qvpic_rag.config import GenerateConfig, RenderProfile
from qvpic_rag.errors import ConfigError
from qvpic_rag.models import VisionLanguageModel
from qvpic_rag.reader.evaluate import CONDITIONINGS, MODES, Examiner, Outcome, character_errors
from qvpic_rag.reader.facts import QUESTION_KINDS
from qvpic_rag.reader.pictures import PROFILE
from qvpic_rag.reader.words import split_of
from tests.reader import reference

LAW = settings(deadline=None, derandomize=True)
METHODS = ("full", *CONDITIONINGS)


def levenshtein(expected: str, found: str) -> int:
    """The textbook's table."""
    table = {(i, 0): i for i in range(len(expected) + 1)} | {(0, j): j for j in range(len(found) + 1)}
    for i in range(1, len(expected) + 1):
        for j in range(1, len(found) + 1):
            replaced = table[i - 1, j - 1] + (expected[i - 1] != found[j - 1])
            table[i, j] = min(table[i - 1, j] + 1, table[i, j - 1] + 1, replaced)
    return table[len(expected), len(found)]


@given(expected=st.text("abc ", max_size=12), found=st.text("abc ", max_size=12))
@LAW
def test_character_errors_are_the_levenshtein_distance(expected: str, found: str) -> None:
    assert character_errors(expected, found) == levenshtein(expected, found)


@pytest.mark.parametrize(
    ("expected", "found", "errors"),
    [("", "", 0), ("", "abc", 3), ("abc", "", 3), ("kitten", "sitting", 3), ("abcdef", "abXdef", 1), ("ab", "ba", 2)],
)
def test_known_character_errors(expected: str, found: str, errors: int) -> None:
    assert character_errors(expected, found) == errors


def test_right_is_exact() -> None:
    outcome = Outcome(0, 1, "full", "low", "bare", "fact", "What?", "KX-12", "KX-12")
    assert outcome.right
    for answer in ("KX-12 ", "kx-12", "KX-12.", ""):
        assert not Outcome(0, 1, "full", "low", "bare", "fact", "What?", "KX-12", answer).right


@pytest.fixture(scope="module")
def examiner(engine: VisionLanguageModel) -> Examiner:
    found = Examiner(engine, RenderProfile.load(PROFILE), (72, 120))
    found.settings = GenerateConfig(max_new_tokens=4)
    return found


def test_worlds_are_of_the_test_split_and_always_the_same(examiner: Examiner) -> None:
    world, pages = examiner.world(3)
    assert world.split == "test"
    assert len(world.pages) == len(pages) == 16
    assert {split_of(fact.value) for fact in world.facts} == {"test"}
    assert [" ".join(page.lines).split() for page in pages] == [text.split() for text in world.pages]
    assert examiner.world(3)[0] == world
    assert examiner.world(4)[0] != world
    assert examiner.world(3, "validation")[0].split == "validation"


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
def test_pages_are_compiled_alone_and_kept_in_order(examiner: Examiner, conditioning: str) -> None:
    """Equal sizes are compiled together, whatever stands between them."""
    first, other, second = (examiner.renderer.pages(text, "")[0] for text in ("One.", "Two\nlines.", "Six."))
    pages = [first, other, second]
    sizes = [examiner.renderer.image(page, 72).size for page in pages]
    assert sizes[0] == sizes[2] != sizes[1]
    blocks = examiner.compiled(pages, 72, conditioning)
    for page, block in zip(pages, blocks, strict=True):
        [alone] = examiner.compiled([page], 72, conditioning)
        torch.testing.assert_close(block.keys, alone.keys, rtol=0, atol=1e-4)
        torch.testing.assert_close(block.values, alone.values, rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def outcomes(examiner: Examiner) -> list[Outcome]:
    """Two worlds, two questions about three pages of each, in every method and mode."""
    return list(examiner.exact_match(3, [0, 1], 2))


def test_every_method_and_mode_answers_the_same_questions(examiner: Examiner, outcomes: list[Outcome]) -> None:
    assert len(outcomes) == 2 * 2 * len(METHODS) * len(MODES)
    counts = Counter((each.method, each.mode, each.world) for each in outcomes)
    assert set(counts) == {(method, mode, world) for method in METHODS for mode in MODES for world in (0, 1)}
    assert set(counts.values()) == {2}
    asked = {(each.world, each.question, each.expected, each.kind) for each in outcomes}
    assert len(asked) == 4
    for number, question, _, kind in asked:
        [meaning] = reference.meaning(question, reference.QUESTIONS)
        assert meaning.splits == {"test"}
        assert kind in QUESTION_KINDS
        assert number in (0, 1)
    assert {(each.pages, each.style) for each in outcomes} == {(3, "bare")}
    assert len({each.answer for each in outcomes}) > 4


def test_methods_differ_where_they_should(outcomes: list[Outcome]) -> None:
    """Pages see each other in full prefill alone, and what they are compiled behind changes them."""
    answers = {method: [each.answer for each in outcomes if each.method == method] for method in METHODS}
    assert len({tuple(each) for each in answers.values()}) == len(METHODS)


def test_for_one_page_caches_are_full_prefill(examiner: Examiner) -> None:
    found = list(examiner.exact_match(1, [0, 2], 2, methods=("full", "native")))
    assert found
    by_method = {method: [each.answer for each in found if each.method == method] for method in ("full", "native")}
    assert by_method["full"] == by_method["native"]
    # The one page is the evidence, or nothing is.
    evidence = [each.answer for each in found if each.mode == "evidence"]
    high = [each.answer for each in found if each.mode == "high"]
    stated = [each.expected != "not stated" for each in found if each.mode == "high"]
    assert [a == b for a, b, known in zip(evidence, high, stated, strict=True) if known] == [True] * sum(stated)


def test_answers_are_asked_again_alike(examiner: Examiner, outcomes: list[Outcome]) -> None:
    again = examiner.exact_match(3, [0], 1, methods=("native",), modes=("evidence",))
    first = next(each for each in outcomes if (each.method, each.mode) == ("native", "evidence"))
    assert next(again) == first


@pytest.mark.parametrize("kind", ["yes_no", "not_stated", "two_hop"])
def test_one_kind_of_questions(examiner: Examiner, kind: str) -> None:
    """Worlds whose pages hold none of the kind are passed over."""
    found = list(examiner.exact_match(3, range(2), 1, methods=("native",), modes=("low",), kind=kind))
    assert {each.kind for each in found} <= {kind}
    assert len(found) == 2 or kind == "two_hop"


def test_styles_take_turns(examiner: Examiner) -> None:
    styles = ("bare", "llama-index-refine", "langchain-rag-chat")
    found = list(examiner.exact_match(2, [0], 3, methods=("native",), modes=("low",), styles=styles))
    assert [each.style for each in found] == list(styles)


def test_transcriptions(examiner: Examiner) -> None:
    found = list(examiner.transcriptions([5], 72))
    assert [(number, said) for number, said, _ in found] == [
        (5, "\n".join(page.lines)) for page in examiner.world(5)[1][:2]
    ]
    assert all(written for _, _, written in found)


def test_an_unknown_conditioning(examiner: Examiner) -> None:
    _, pages = examiner.world(0)
    with pytest.raises(ConfigError, match="conditioning must be one of native, prefix-free, dummy-4, not 'none'"):
        examiner.compiled(pages[:1], 72, "none")
