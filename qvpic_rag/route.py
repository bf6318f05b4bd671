"""Which pages of a request get their high-resolution KV cache: the paper's rule.

With cosine scores ``s~``, positive parts ``s = max(s~, 0)`` and pages ranked by ``s~`` descending (ties: request
order), the promoted pages are the shortest prefix of the ranking whose positive mass reaches ``alpha`` of the total, at
most ``budget`` pages::

    k* = min(budget, min{k : sum_{j<=k} s_j / sum_i s_i >= alpha})

If no score is positive, exactly the top page is promoted. Ranking chooses resolution only; pages keep their order.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from qvpic_rag.config import RouteConfig
from qvpic_rag.errors import InputError

__all__ = ["RouteDecision", "route"]

# A prefix that misses alpha by less than this share of the total has reached it: scores and alpha are rounded decimals,
# and 13 of 20 equal pages are 0.65 of the mass although float(0.65) lies above 13/20.
_TOLERANCE = 1e-12


@dataclass(frozen=True, slots=True)
class RouteDecision:
    """``rank`` is 0 for the most relevant page; a ``promoted`` page gets the high resolution."""

    rank: int
    promoted: bool


def route(scores: Sequence[float], config: RouteConfig) -> list[RouteDecision]:
    """Rank pages and choose the promoted ones.

    Parameters
    ----------
    scores : Sequence[float]
        Inner products of query and page embeddings ``s~``, in request order; negative ones never count as mass.
    config : RouteConfig
        ``alpha`` and ``budget``. ``alpha=1`` promotes every page with a positive score (within the budget),
        ``budget=0`` none at all.

    Returns
    -------
    list[RouteDecision]
        In request order; empty for no pages.

    Raises
    ------
    InputError
        A score is NaN, infinite or not a number.
    """
    values = _finite(scores)
    ranking = sorted(range(len(values)), key=lambda page: -values[page])  # stable: ties keep request order
    promoted = _promoted([values[page] for page in ranking if values[page] > 0], config) if values else 0
    decisions = [RouteDecision(0, False)] * len(values)
    for rank, page in enumerate(ranking):
        decisions[page] = RouteDecision(rank, rank < promoted)
    return decisions


def _finite(scores: Sequence[float]) -> list[float]:
    values = []
    for place, score in enumerate(scores):
        try:
            value = float(score)
        except (TypeError, ValueError) as error:
            raise InputError(f"The score of page {place} must be a number, not {score!r}.") from error
        if not math.isfinite(value):
            raise InputError(f"The score of page {place} is {value}; embed the question and the pages again.")
        values.append(value)
    return values


def _promoted(positive: list[float], config: RouteConfig) -> int:
    """Number of promoted pages; ``positive`` holds the scores above zero, descending."""
    limit = min(config.budget, len(positive))
    if not positive:
        return min(config.budget, 1)
    if config.alpha >= 1 or limit == 0:
        return limit
    # Scaling by a power of two is exact and keeps the sum of huge scores finite; fsum is correctly rounded, so that
    # the prefix sums ascend and bisection finds the shortest prefix.
    exponent = math.frexp(positive[0])[1]
    mass = [math.ldexp(score, -exponent) for score in positive]
    goal = config.alpha * math.fsum(mass) * (1 - _TOLERANCE)
    return min(limit, 1 + bisect_left(range(1, limit + 1), goal, key=lambda k: math.fsum(mass[:k])))
