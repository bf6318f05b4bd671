"""Which pages of a request get their high-resolution KV cache: the paper's rule, and one for a budget of tokens.

With scores ``s~``, positive parts ``s = max(s~, 0)`` and pages ranked by ``s~`` descending (ties: request order), the
promoted pages are the shortest prefix of the ranking whose positive mass reaches ``alpha`` of the total, at most
``budget`` pages::

    k* = min(budget, min{k : sum_{j<=k} s_j / sum_i s_i >= alpha})

If no score is positive, exactly the top page is promoted. Ranking chooses resolution only; pages keep their order.

With ``token_budget = N`` the page budget does not count. ``e_i`` are the tokens that page i's high resolution has more
than its low one. The pages with positive scores are gone through by ``s_i / e_i`` descending (those with ``e_i = 0``
first; ties: by rank); each is promoted unless the positive mass of those promoted before reaches ``alpha`` of the
total, or its ``e_i`` does not fit into what is left of N. A page that does not fit is passed over, and later, smaller
ones are still tried. If no score is positive, the top page is promoted if it fits. This is the greedy rule of the
knapsack problem: most relevance per token first. For pages of equal ``e`` and ``N = budget * e`` it is the rule above.
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


def route(
    scores: Sequence[float], config: RouteConfig, extra_tokens: Sequence[int] | None = None
) -> list[RouteDecision]:
    """Rank pages and choose the promoted ones.

    Parameters
    ----------
    scores : Sequence[float]
        Relevance ``s~`` of each page to the question (for the ``dense`` router inner products of embeddings), in
        request order; negative ones never count as mass.
    config : RouteConfig
        ``alpha``, ``budget`` and ``token_budget``. ``alpha=1`` promotes every page with a positive score within the
        budget; ``budget=0``, without a ``token_budget``, none at all.
    extra_tokens : Sequence[int], optional
        ``e``: how many tokens more than the low one each page's high resolution has, 0 or above, in request order.
        Only a ``token_budget`` needs it.

    Returns
    -------
    list[RouteDecision]
        In request order; empty for no pages.

    Raises
    ------
    InputError
        A score is NaN, infinite or not a number; or there is a ``token_budget``, and not one whole number from 0 per
        page in ``extra_tokens``.
    """
    values = _finite(scores)
    ranking = sorted(range(len(values)), key=lambda page: -values[page])  # stable: ties keep request order
    candidates = [page for page in ranking if values[page] > 0] or ranking[:1]
    if config.token_budget is None:
        affordable = candidates[: config.budget]
    else:
        affordable = _affordable(candidates, values, _counts(extra_tokens, len(values)), config.token_budget)
    mass = [values[page] for page in candidates]
    promoted = set(affordable[: _shortest([values[page] for page in affordable], mass, config.alpha)])
    decisions = [RouteDecision(0, False)] * len(values)
    for rank, page in enumerate(ranking):
        decisions[page] = RouteDecision(rank, page in promoted)
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


def _counts(extra_tokens: Sequence[int] | None, pages: int) -> list[int]:
    if extra_tokens is None or len(extra_tokens) != pages:
        given = "none" if extra_tokens is None else len(extra_tokens)
        raise InputError(f"A token_budget needs one number of extra tokens per page: {pages}, not {given}.")
    for place, count in enumerate(extra_tokens):
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise InputError(f"The extra tokens of page {place} must be a whole number from 0, not {count!r}.")
    return list(extra_tokens)


def _affordable(candidates: list[int], values: list[float], extra: list[int], left: int) -> list[int]:
    """The pages that fit together, most relevance per extra token first; ``candidates`` come by rank."""
    taken = []
    for page in sorted(candidates, key=lambda page: -values[page] / extra[page] if extra[page] else -math.inf):
        if extra[page] <= left:
            taken.append(page)
            left -= extra[page]
    return taken


def _shortest(affordable: list[float], mass: list[float], alpha: float) -> int:
    """How many of the affordable scores, from the first one on, are needed to reach ``alpha`` of the whole mass.

    All of them where they do not reach it. ``mass`` holds the scores above zero, descending; or one that is not.
    """
    if not affordable or mass[0] <= 0 or alpha >= 1:
        return len(affordable)
    # Scaling by a power of two is exact and keeps the sum of huge scores finite; fsum is correctly rounded, so that
    # the prefix sums ascend and bisection finds the shortest prefix.
    exponent = math.frexp(mass[0])[1]
    scaled = [math.ldexp(score, -exponent) for score in affordable]
    goal = alpha * math.fsum(math.ldexp(score, -exponent) for score in mass) * (1 - _TOLERANCE)
    count = len(affordable)
    return min(count, 1 + bisect_left(range(1, count + 1), goal, key=lambda k: math.fsum(scaled[:k])))
