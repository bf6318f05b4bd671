"""Wordings: every split has its own, and together they are all there are."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from qvpic_rag.reader.wordings import FAMILIES, OWNERS, fixed_words, wordings
from qvpic_rag.reader.words import SPLITS

FIELDS = {
    "ask": {"a", "p"},
    "check": {"a", "p", "v"},
    "ask_owner": {"o"},
    "ask_through": {"a", "o"},
    "state": {"a", "p", "v"},
    "state_owner": {"o", "p"},
}
TENTHS = {"ask": 8, "check": 4, "ask_owner": 3, "ask_through": 20, "state": 4, "state_owner": 3}


@pytest.mark.parametrize("family", FIELDS)
def test_splits_share_no_wording(family: str) -> None:
    by_split = {split: wordings(family, split) for split in SPLITS}
    for one, other in combinations(SPLITS, 2):
        # A sentence starts with a capital, so wordings that differ in nothing else are one and the same.
        assert not {each.lower() for each in by_split[one]} & {each.lower() for each in by_split[other]}
    assert len(by_split["validation"]) == len(by_split["test"]) == TENTHS[family]
    for each in by_split.values():
        assert len(set(each)) == len(each)
    assert {each for split in SPLITS for each in by_split[split]} <= set(fixed_words())


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("family", FIELDS)
def test_wordings_have_their_fields_and_end_as_sentences(family: str, split: str) -> None:
    for wording in wordings(family, split):
        assert set(re.findall(r"\{(\w)\}", wording)) == FIELDS[family]
        assert wording[-1] in (".?" if family.startswith(("ask", "check")) else ".")
        assert "  " not in wording
        assert "{b}" not in wording


def test_what_most_people_write_is_learnt_from() -> None:
    for family, wording in {
        "ask": "What is the {a} of {p}?",
        "check": "Is the {a} of {p} {v}?",
        "ask_owner": "Who owns {o}?",
        "ask_through": "What is the {a} of the owner of {o}?",
        "state": "the {a} of {p} is {v}.",
        "state_owner": "{o} belongs to {p}.",
    }.items():
        assert wording in wordings(family, "train")


def test_the_parts_of_held_out_questions_were_seen() -> None:
    """Every word of them is in some wording that is learnt from."""
    for family in FIELDS:
        known = {word for wording in wordings(family, "train") for word in re.findall(r"[A-Za-z']+", wording)}
        for split in SPLITS[1:]:
            assert {word for each in wordings(family, split) for word in re.findall(r"[A-Za-z']+", each)} <= known


def test_fillers_state_nothing_and_serve_every_split() -> None:
    assert wordings("fill", "train") == wordings("fill", "validation") == wordings("fill", "test")
    for wording in wordings("fill", "train"):
        assert not re.search(r"\{[avo]\}", wording)


def test_an_owner_is_asked_through_in_every_way() -> None:
    for owner in OWNERS:
        assert any(owner in wording for wording in wordings("ask_through", "train"))
    assert set(FAMILIES) == {*FIELDS, "fill"}


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="split must be one of train, validation, test, not 'dev'"):
        wordings("ask", "dev")
