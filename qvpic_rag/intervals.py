"""Means with bootstrap intervals: what is alike is resampled together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from qvpic_rag.errors import InputError

__all__ = ["Interval", "bootstrap", "paired"]


class Interval(NamedTuple):
    """A mean and the ends of its 95% interval."""

    mean: float
    low: float
    high: float


def bootstrap(
    values: Sequence[float],
    groups: Sequence[Any],
    weights: Sequence[float] | None = None,
    *,
    rounds: int = 2000,
    seed: int = 0,
) -> Interval:
    """A mean and its bootstrap 95% interval (percentiles), resampling whole groups.

    Values of one group are no independent evidence: questions about the same pages are all easy or all hard.

    Parameters
    ----------
    values : Sequence[float]
        What is averaged.
    groups : Sequence[Any]
        For each value the number or name of its group.
    weights : Sequence[float], optional
        Make it a ratio of sums, as a character error rate is: errors over characters.
    rounds : int
        Resamplings.
    seed : int
        Of the draws; values over the same groups are drawn alike.

    Raises
    ------
    InputError
        There are no values, or not as many groups or weights.
    """
    if not len(values) or len(groups) != len(values) or (weights is not None and len(weights) != len(values)):
        raise InputError("An interval needs at least one value, and a group and a weight for each.")
    names, place = np.unique(np.asarray(groups), return_inverse=True)
    top = np.bincount(place, weights=np.asarray(values, dtype=np.float64))
    bottom = np.bincount(place, weights=None if weights is None else np.asarray(weights, dtype=np.float64))
    draws = np.random.default_rng(seed).integers(len(names), size=(rounds, len(names)))
    means = top[draws].sum(1) / bottom[draws].sum(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return Interval(float(top.sum() / bottom.sum()), float(low), float(high))


def paired(
    first: Sequence[float], second: Sequence[float], groups: Sequence[Any], *, rounds: int = 2000, seed: int = 0
) -> Interval:
    """By how much ``first`` is above ``second`` on the same questions: the mean difference and its interval.

    Both are resampled with the same draws, so what makes a question hard for both does not widen the interval.

    Raises
    ------
    InputError
        There are no values, or not as many of each.
    """
    if len(first) != len(second):
        raise InputError(f"A difference needs as many values on either side, not {len(first)} and {len(second)}.")
    return bootstrap([a - b for a, b in zip(first, second, strict=True)], groups, rounds=rounds, seed=seed)
