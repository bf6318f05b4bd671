"""Generated facts: what each example says follows from its pages."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from qvpic_rag.config import RenderProfile
from qvpic_rag.errors import ConfigError, InputError
from qvpic_rag.evaluation.records import Example
from qvpic_rag.evaluation.suites import open_suite
from qvpic_rag.reader.facts import QUESTION_KINDS
from qvpic_rag.reader.words import split_of
from qvpic_rag.records import Page
from qvpic_rag.render import Renderer
from tests.evaluation.readers import Words
from tests.reader import reference


def examples(**options: Any) -> list[Example]:
    return list(open_suite("facts", **options).examples(Words()))


@pytest.fixture(scope="module")
def asked() -> list[Example]:
    return examples(pages=(2, 4, 16), questions=40)


def test_as_many_questions_as_asked_for(asked: list[Example]) -> None:
    assert Counter(len(each.pages) for each in asked) == {2: 40, 4: 40, 16: 40}
    for example in asked:
        assert example.id.startswith(f"{len(example.pages)}p-{example.group.removeprefix('world-')}-")
        assert len({page.number for page in example.pages}) == len(example.pages)
        assert {page.source for page in example.pages} == {example.group}
        assert (example.scoring, example.max_new_tokens, example.before) == ("exact", 40, "")
        assert example.kind in QUESTION_KINDS
    per_context = Counter((each.group, len(each.pages)) for each in asked)
    assert max(per_context.values()) == 5
    assert len({(each.group, len(each.pages), each.query) for each in asked}) == len(asked)


def test_answers_follow_from_the_evidence_and_from_nothing_else(asked: list[Example]) -> None:
    """Read back by the tests' own reader of wordings, which knows nothing of how worlds are made."""
    for example in asked:
        texts = [page.text for page in example.pages]
        evidence = set(example.evidence or ())
        assert reference.answer(texts, example.query) == example.answers[0]
        assert reference.answer([texts[place] for place in sorted(evidence)], example.query) == example.answers[0]
        for left_out in evidence:
            without = [text for place, text in enumerate(texts) if place != left_out]
            assert reference.answer(without, example.query) == "not stated"
        assert (not evidence) == (example.kind == "not_stated")


def test_kinds_take_turns() -> None:
    kinds = ("owner", "yes_no", "not_stated")
    found = examples(pages=[8], questions=24, kinds=kinds)
    assert Counter(each.kind for each in found) == dict.fromkeys(kinds, 8)
    assert [each.kind for each in found[:4]] == ["owner", "yes_no", "not_stated", "owner"]


def test_few_pages_hold_scarce_kinds_too() -> None:
    found = examples(pages=[1, 2], questions=12, kinds=["look_alike", "two_hop"])
    assert Counter((len(each.pages), each.kind) for each in found) == dict.fromkeys(
        [(1, "look_alike"), (1, "two_hop"), (2, "look_alike"), (2, "two_hop")], 6
    )


def test_tags_say_what_an_answer_is() -> None:
    found = examples(pages=[16], questions=60, kinds=list(QUESTION_KINDS))
    for example in found:
        [answer] = example.answers
        expected = {
            "number": any("0" <= each <= "9" for each in answer),
            "name": example.kind in ("look_alike", "owner"),
            "negation": answer in ("no", "not stated"),
            "two-hop": example.kind == "two_hop",
        }
        assert {tag: tag in example.tags for tag in expected} == expected
        assert set(example.tags) <= {*expected, "code"}
        if "code" in example.tags:
            assert answer.upper() == answer
            assert " " not in answer
            assert ":" not in answer
    counts = Counter(tag for each in found for tag in each.tags)
    assert {"number", "code", "name", "negation", "two-hop"} <= set(counts)


def test_seed_and_split_make_other_documents() -> None:
    first = examples(questions=2, pages=[2])
    assert examples(questions=2, pages=[2], seed=0) == first
    for other in ({"seed": 1}, {"split": "validation"}):
        found = examples(questions=2, pages=[2], **other)
        assert not {page.text for each in found for page in each.pages} & {p.text for e in first for p in e.pages}
    stated = [each.answers[0] for each in examples(questions=10, pages=[8], kinds=["fact"], split="validation")]
    assert {split_of(answer) for answer in stated} == {"validation"}


def test_fewer_questions_are_the_first_ones(asked: list[Example]) -> None:
    few = examples(pages=(2, 4, 16), questions=10)
    assert [each for each in asked if int(each.group.removeprefix("world-")) < 2] == few


def test_pages_as_the_bundled_reader_reads_them() -> None:
    class Rendered(Words):
        renderer = Renderer(RenderProfile.load("demo"))

        def pages(self, text: str, source: str, *, literal: bool = False) -> list[Page]:
            return self.renderer.pages(text, source)

        def fits_one(self, text: str) -> bool:
            return len(self.renderer.pages(text, "")) == 1

    found = list(open_suite("facts", pages=[4], questions=5).examples(Rendered()))
    assert len(found) == 5
    assert all(1 <= len(page.lines) <= 4 for each in found for page in each.pages)


def test_what_cannot_be_asked() -> None:
    with pytest.raises(InputError, match="No sentence fits a page"):
        list(open_suite("facts").examples(Words(size=1)))
    with pytest.raises(InputError, match=r"worlds hold only \d+ of 5 questions .* about 1 pages; ask for fewer"):
        list(open_suite("facts", pages=[1], questions=5, kinds=["two_hop"]).examples(Words(size=9)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pages": [0]}, "facts.pages must be a whole number from 1 to 16, not 0"),
        ({"pages": [17]}, "facts.pages must be a whole number from 1 to 16, not 17"),
        ({"pages": []}, "facts.pages must be different numbers"),
        ({"pages": [2, 2]}, "facts.pages must be different numbers"),
        ({"pages": 2}, "facts.pages must be different numbers"),
        ({"questions": 0}, "facts.questions must be a whole number"),
        ({"seed": -1}, "facts.seed must be a whole number"),
        ({"split": "dev"}, "facts.split must be one of train, validation, test, not 'dev'"),
        ({"kinds": ["facts"]}, "facts.kinds must be some of fact, look_alike"),
        ({"kinds": []}, "facts.kinds must be some of"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_suite("facts", **options)
