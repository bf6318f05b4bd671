"""Bootstrap intervals: against the textbook's loop, and how often they are right."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qvpic_rag.errors import InputError
from qvpic_rag.intervals import Interval, bootstrap, paired

LAW = settings(deadline=None, derandomize=True, max_examples=40)
GROUPED = st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=40)


def by_hand(values: list[float], groups: list[str], weights: list[float], rounds: int, seed: int) -> list[float]:
    """Resample a dictionary of groups, one round after the other."""
    names = sorted(set(groups))
    draws = np.random.default_rng(seed).integers(len(names), size=(rounds, len(names)))
    means = []
    for row in draws:
        top = bottom = 0.0
        for name in (names[index] for index in row):
            top += sum(v for v, group in zip(values, groups, strict=True) if group == name)
            bottom += sum(w for w, group in zip(weights, groups, strict=True) if group == name)
        means.append(top / bottom)
    return [sum(values) / sum(weights), *np.percentile(means, [2.5, 97.5])]


@given(values=GROUPED)
@LAW
def test_an_interval_lies_about_the_mean(values: list[tuple[int, bool]]) -> None:
    groups, right = [group for group, _ in values], [float(each) for _, each in values]
    mean, low, high = bootstrap(right, groups, rounds=200)
    assert mean == pytest.approx(sum(right) / len(right))
    assert 0 <= low <= high <= 1
    if len(set(groups)) == 1 or len(set(right)) == 1:
        assert low == pytest.approx(mean)
        assert high == pytest.approx(mean)
    assert (mean, low, high) == bootstrap(right, groups, rounds=200)


@pytest.mark.parametrize("seed", [0, 3])
def test_an_interval_is_the_textbook_s(seed: int) -> None:
    rng = random.Random(seed)
    groups = [rng.choice(["b", "a", "c", "ab"]) for _ in range(30)]
    values, weights = [rng.random() for _ in groups], [rng.uniform(1, 3) for _ in groups]
    found = bootstrap(values, groups, weights, rounds=50, seed=seed)
    assert list(found) == pytest.approx(by_hand(values, groups, weights, 50, seed))
    plain = bootstrap(values, groups, rounds=50, seed=seed)
    assert list(plain) == pytest.approx(by_hand(values, groups, [1.0] * 30, 50, seed))


def test_the_same_draws_as_ever() -> None:
    """Cards and reports that are published must come out the same again."""
    found = bootstrap([1.0, 0.0, 1.0, 1.0, 0.0, 0.25], [7, 7, 2, 10, 10, 3])
    assert found == Interval(mean=0.5416666666666666, low=pytest.approx(0.35), high=pytest.approx(0.8))


def test_an_interval_covers_the_truth_as_often_as_it_says() -> None:
    """60 groups of five alike questions each; a true share of 0.7 is inside about 19 times of 20."""
    rng, inside, widths = random.Random(1), 0, []
    for _ in range(200):
        right = [[float(rng.random() < 0.7)] * 5 for _ in range(60)]
        groups = [number for number in range(60) for _ in range(5)]
        _, low, high = bootstrap([each for group in right for each in group], groups, rounds=400)
        inside += low <= 0.7 <= high
        widths.append(high - low)
    assert 180 <= inside <= 198
    # Questions of one group are no independent evidence: the width is that of 60 questions, not of 300.
    assert sum(widths) / 200 == pytest.approx(2 * 1.96 * math.sqrt(0.21 / 60), rel=0.1)


def test_an_interval_of_a_ratio() -> None:
    mean, low, high = bootstrap([1.0, 2.0, 5.0], [0, 0, 1], [10.0, 10.0, 20.0])
    assert mean == pytest.approx(8 / 40)
    assert (low, high) == (pytest.approx(3 / 20), pytest.approx(5 / 20))


@given(values=GROUPED, by=st.floats(-1, 1))
@LAW
def test_what_is_always_better_by_the_same_is_certainly_better(values: list[tuple[int, bool]], by: float) -> None:
    """However much both vary from question to question."""
    groups, second = [group for group, _ in values], [float(each) for _, each in values]
    found = paired([each + by for each in second], second, groups, rounds=100)
    assert list(found) == pytest.approx([by, by, by], abs=1e-9)


def test_a_difference_is_drawn_alike_on_both_sides() -> None:
    rng = random.Random(0)
    groups = [f"g{rng.randrange(8)}" for _ in range(40)]
    first, second = ([rng.random() for _ in groups] for _ in range(2))
    mean, low, high = paired(first, second, groups, rounds=50, seed=4)
    names = sorted(set(groups))
    draws = np.random.default_rng(4).integers(len(names), size=(50, len(names)))

    def means(values: list[float]) -> np.ndarray:
        of = {name: [v for v, group in zip(values, groups, strict=True) if group == name] for name in names}
        return np.array([np.mean([v for index in row for v in of[names[index]]]) for row in draws])

    assert mean == pytest.approx(np.mean(first) - np.mean(second))
    assert [low, high] == pytest.approx(np.percentile(means(first) - means(second), [2.5, 97.5]))
    assert list(paired(second, first, groups, rounds=50, seed=4)) == pytest.approx([-mean, -high, -low])


def test_nothing_to_average() -> None:
    for values, groups, weights in ([], [], None), ([1.0], [], None), ([1.0], ["a"], [1.0, 2.0]):
        with pytest.raises(InputError, match="at least one value"):
            bootstrap(values, groups, weights)
    with pytest.raises(InputError, match="not 1 and 2"):
        paired([1.0], [1.0, 2.0], ["a"])
