"""Names and values: each word belongs to one split for good, and look-alikes differ in one character."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qvpic_rag.reader.words import ADJECTIVES, KINDS, NOUNS, SPLITS, check_split, look_alike, person, split_of, value
from tests.reader.reference import NAME, VALUES

LAW = settings(deadline=None, derandomize=True)
SEEDS = st.integers(0, 100_000)
SPLIT = st.sampled_from(SPLITS)


@pytest.mark.parametrize(
    ("word", "split"),
    [
        ("Anna", "train"),
        ("Berlin", "validation"),
        ("Milan", "test"),
        ("KX-1234", "validation"),
        ("12:30", "validation"),
        ("$48.20", "train"),
    ],
)
def test_a_words_split_never_changes(word: str, split: str) -> None:
    """A reader was trained with this division; another one would put what it learnt by heart into the test."""
    assert split_of(word) == split


def test_most_words_are_for_training() -> None:
    words = [f"word {number}" for number in range(4000)]
    shares = {split: sum(split_of(word) == split for word in words) / len(words) for split in SPLITS}
    assert shares["train"] == pytest.approx(0.8, abs=0.02)
    assert shares["validation"] == pytest.approx(0.1, abs=0.015)
    assert shares["test"] == pytest.approx(0.1, abs=0.015)


@given(seed=SEEDS, split=SPLIT)
@LAW
def test_people(seed: int, split: str) -> None:
    name = person(random.Random(seed), split)
    assert re.fullmatch(NAME, name)
    assert {split_of(word) for word in name.split(" ")} == {split}
    assert name == person(random.Random(seed), split)


@given(seed=SEEDS, split=SPLIT, kind=st.sampled_from(KINDS))
@LAW
def test_values(seed: int, split: str, kind: str) -> None:
    found = value(random.Random(seed), split, kind)
    assert re.fullmatch(VALUES[kind], found)
    assert split_of(found) == split
    assert 1 <= len(found.split()) <= 6
    assert found == value(random.Random(seed), split, kind)


def _sort(character: str) -> str:
    return "digit" if character.isdigit() else "capital" if character.isupper() else "small"


@given(seed=SEEDS, split=SPLIT, kind=st.sampled_from((*KINDS, "name")))
@LAW
def test_look_alikes_differ_in_one_character_of_the_same_sort(seed: int, split: str, kind: str) -> None:
    rng = random.Random(seed)
    word = person(rng, split) if kind == "name" else value(rng, split, kind)
    found = look_alike(rng, split, word, name=kind == "name")
    if found is None:
        return
    assert len(found) == len(word)
    [(old, new)] = [pair for pair in zip(word, found, strict=True) if pair[0] != pair[1]]
    assert old.isalnum()
    assert _sort(old) == _sort(new)
    assert {split_of(part) for part in (found.split(" ") if kind == "name" else [found])} == {split}


@pytest.mark.parametrize("split", SPLITS)
def test_most_words_have_look_alikes(split: str) -> None:
    rng = random.Random(3)
    found = [look_alike(rng, split, person(rng, split), name=True) for _ in range(50)]
    assert sum(each is not None for each in found) >= (45 if split == "train" else 20)


def test_the_language_is_the_same_in_every_split() -> None:
    assert len(set(NOUNS)) == len(NOUNS) == 24
    assert set(VALUES) == set(KINDS)
    assert not set(NOUNS) & (set(KINDS) | set(ADJECTIVES))


@pytest.mark.parametrize("split", ["", "Train", "dev", None])
def test_an_unknown_split_is_refused(split: str) -> None:
    with pytest.raises(ValueError, match="split must be one of train, validation, test, not"):
        check_split(split)
