"""Generated documents: what pages say is what questions are answered by, and no split knows another's words."""

from __future__ import annotations

import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qvpic_rag.reader.facts import NOT_STATED, QUESTION_KINDS, FactQuestion, World, make_world
from qvpic_rag.reader.pictures import looks
from qvpic_rag.reader.words import SPLITS, split_of
from tests.reader import reference

PAGES = 6
SEEDS = st.integers(0, 10_000)
FAMILY_OF = {
    "fact": {"ask"},
    "look_alike": {"ask"},
    "owner": {"ask_owner"},
    "yes_no": {"check"},
    "two_hop": {"ask_through"},
    "not_stated": {"ask", "check"},
}


def short(text: str) -> bool:
    """A page's worth of text, measured more quickly than by laying it out."""
    return len(text) <= 150


@cache
def world(seed: int, split: str, pages: int = PAGES) -> World:
    return make_world(random.Random(f"{split} {seed}"), split, pages, short)


def asked(seed: int, split: str, pages: list[int], kind: str | None = None) -> FactQuestion | None:
    return world(seed, split).ask(random.Random(seed), pages, kind)


@pytest.mark.parametrize("split", SPLITS)
def test_every_page_fits_the_renderers_page(split: str) -> None:
    look = looks(1, 0)[0]
    made = make_world(random.Random(7), split, 16, look.fits)
    assert len(made.pages) == 16
    for text in made.pages:
        page = look.page(text)
        assert page is not None
        assert " ".join(page.lines).split() == text.split()


@given(seed=SEEDS, split=st.sampled_from(SPLITS))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_worlds(seed: int, split: str) -> None:
    made = world(seed, split)
    assert made == make_world(random.Random(f"{split} {seed}"), split, PAGES, short)
    assert made.split == split
    assert len(made.pages) == PAGES
    assert all(text and short(text) for text in made.pages)
    said = [
        (number, each.family, each.fields)
        for number, text in enumerate(made.pages)
        for each in reference.sentences(text)
    ]
    stated = [(n, f["p"], f["a"], f["v"]) for n, family, f in said if family == "state"]
    owned = [(n, f["o"], f["p"]) for n, family, f in said if family == "state_owner"]
    assert stated == [(fact.page, fact.subject, fact.attribute, fact.value) for fact in made.facts]
    assert owned == [(fact.page, fact.subject, fact.value) for fact in made.owned]


@given(
    seed=SEEDS,
    split=st.sampled_from(SPLITS),
    pages=st.lists(st.integers(0, PAGES - 1), min_size=1, unique=True),
    kind=st.sampled_from((None, *QUESTION_KINDS)),
)
@settings(max_examples=400, deadline=None, derandomize=True)
def test_answers_are_what_the_pages_say(seed: int, split: str, pages: list[int], kind: str | None) -> None:
    question = asked(seed, split, pages, kind)
    if question is None:
        return
    assert kind in (None, question.kind)
    texts = world(seed, split).pages
    assert reference.answer((texts[page] for page in pages), question.text) == question.answer
    [meaning] = reference.meaning(question.text, reference.QUESTIONS)
    assert meaning.family in FAMILY_OF[question.kind]
    assert meaning.splits == {split}
    assert question.text[0].isupper() or not question.text[0].isalpha()
    assert 1 <= len(question.answer.split()) <= 6
    # The evidence is among the pages, says enough, and none of it can be spared.
    evidence = set(question.evidence)
    assert evidence <= set(pages)
    assert (question.answer == NOT_STATED) == (question.kind == "not_stated") == (not evidence)
    assert reference.answer((texts[page] for page in evidence), question.text) == question.answer
    for page in evidence:
        rest = [texts[other] for other in pages if other != page]
        assert reference.answer(rest, question.text) == NOT_STATED


@given(seed=SEEDS, split=st.sampled_from(SPLITS), kind=st.sampled_from(("fact", "look_alike", "owner", "two_hop")))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_answers_stand_on_their_evidence(seed: int, split: str, kind: str) -> None:
    question = asked(seed, split, list(range(PAGES)), kind)
    if question is not None:
        pages = [world(seed, split).pages[page] for page in question.evidence]
        assert any(question.answer.lower() in text.lower() for text in pages)  # a value may begin a sentence


def test_look_alike_questions_have_a_double() -> None:
    found = 0
    for seed in range(20):
        question = asked(seed, "train", list(range(PAGES)), "look_alike")
        if question is None:
            continue
        found += 1
        [meaning] = reference.meaning(question.text, reference.QUESTIONS)
        name, attribute = meaning.fields["p"], meaning.fields["a"]
        others = [
            said.fields["p"]
            for text in world(seed, "train").pages
            for said in reference.sentences(text)
            if said.family == "state" and said.fields["a"] == attribute and said.fields["p"] != name
        ]
        assert any(
            set(name.split()) & set(other.split())
            or (len(name) == len(other) and sum(a != b for a, b in zip(name, other, strict=True)) == 1)
            for other in others
        )
    assert found >= 5


def test_every_kind_is_asked_and_drawn_in_proportion() -> None:
    rng = random.Random(5)
    worlds = [world(seed, "train", 16) for seed in range(8)]
    drawn = [question.kind for made in worlds for _ in range(50) if (question := made.ask(rng, range(16)))]
    assert set(drawn) == set(QUESTION_KINDS)
    assert len(drawn) > 350
    assert drawn.count("fact") > drawn.count("yes_no") > 10
    yes_no = [worlds[0].ask(rng, range(16), "yes_no") for _ in range(200)]
    assert 60 < sum(question is not None and question.answer == "yes" for question in yes_no) < 140


def test_the_same_seed_asks_the_same() -> None:
    pages = list(range(PAGES))
    for seed in range(10):
        assert asked(seed, "test", pages) == asked(seed, "test", pages)


def test_nothing_to_ask_is_none() -> None:
    empty = World("train", ("Nothing.",), (), ())
    for kind in QUESTION_KINDS:
        assert empty.ask(random.Random(0), [0], kind) is None
    assert world(1, "train").ask(random.Random(0), [], "fact") is None


def _content(split: str) -> tuple[set[str], set[str], set[str]]:
    """Name words, values and wordings of many worlds and questions, recovered from the texts alone."""
    names: set[str] = set()
    values: set[str] = set()
    used: set[str] = set()
    for seed in range(40):
        made = world(seed, split)
        rng = random.Random(seed)
        questions = [made.ask(rng, range(PAGES)) for _ in range(12)]
        meanings = [each for text in made.pages for each in reference.sentences(text)]
        for question in questions:
            if question is not None:
                meanings += reference.meaning(question.text, reference.QUESTIONS)
        for each in meanings:
            for field, text in each.fields.items():
                if field in "pq":
                    names.update(text.split())
                elif field in "vcd":
                    values.add(text)
                elif field == "o":
                    values.add(text.partition(" ")[2])
            if each.family != "fill":
                used |= each.wordings
                assert each.splits == {split}
    return names, values, used


def test_splits_share_no_name_no_value_and_no_wording() -> None:
    content = {split: _content(split) for split in SPLITS}
    for split, (names, values, used) in content.items():
        assert len(names) > 60
        assert len(values) > 200
        assert len(used) > 20
        assert {split_of(each) for each in names | values} == {split}
        for other in SPLITS:
            if other != split:
                for ours, theirs in zip(content[split], content[other], strict=True):
                    assert not ours & theirs


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="split must be one of train, validation, test, not 'dev'"):
        make_world(random.Random(0), "dev", 1, short)
