"""The routing rule against exact rational arithmetic, and its laws."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qvpic_rag.config import RouteConfig
from qvpic_rag.errors import ConfigError, InputError
from qvpic_rag.route import RouteDecision, route

SCORES = st.lists(st.floats(-1, 1, allow_subnormal=False), max_size=30)
ALPHAS = st.one_of(st.floats(0.01, 1), st.integers(1, 100).map(lambda percent: percent / 100))
BUDGETS = st.integers(0, 35)
EXTRAS = st.integers(0, 3000)
PAGES = st.lists(st.tuples(st.floats(-1, 1, allow_subnormal=False), EXTRAS), max_size=20)
TOKENS = st.integers(0, 20_000)


def promoted(scores: list[float], alpha: float, budget: int) -> list[int]:
    decisions = route(scores, RouteConfig(alpha, budget))
    return [place for place, decision in enumerate(decisions) if decision.promoted]


def within(pages: list[tuple[float, int]], alpha: float, tokens: int) -> list[int]:
    """Places of the pages promoted under a token budget."""
    scores, extra = [score for score, _ in pages], [count for _, count in pages]
    decisions = route(scores, RouteConfig(alpha, token_budget=tokens), extra)
    return [place for place, decision in enumerate(decisions) if decision.promoted]


def exact_count(scores: list[Fraction], alpha: Fraction, budget: int) -> int:
    """k*, straight from the formula."""
    positive = sorted((score for score in scores if score > 0), reverse=True)
    if not positive:
        return min(budget, 1 if scores else 0)
    total, mass = sum(positive), Fraction(0)
    for count, score in enumerate(positive, start=1):
        mass += score
        if mass / total >= alpha:
            return min(budget, count)
    raise AssertionError("alpha is above 1")


@pytest.mark.parametrize(
    ("scores", "alpha", "budget", "expected"),
    [
        ([], 0.65, 4, []),
        ([0.2], 0.65, 4, [0]),
        ([0.2], 0.65, 0, []),
        ([0.1, 0.6, 0.3], 0.65, 4, [1, 2]),
        ([0.1, 0.6, 0.3], 0.65, 1, [1]),
        ([0.65, 0.35], 0.65, 4, [0]),
        ([0.13, 0.07], 0.65, 4, [0]),  # in binary 0.13 / 0.2 falls short of 0.65 by a rounding error
        ([0.2, 0.6, 0.2], 0.8, 4, [0, 1]),  # 0.6 + 0.2 is below 0.8 in binary
        ([0.5] * 20, 0.65, 20, list(range(13))),  # ties go by request order, and 13 of 20 is 0.65
        ([0.1] * 10, 0.3, 10, [0, 1, 2]),
        ([0.5, -0.9, 0.5], 1.0, 4, [0, 2]),
        ([1.0, 1e-300, 1e-30, 0.0, -1.0], 1.0, 9, [0, 1, 2]),
        ([-0.5, -0.1, -0.3], 0.65, 4, [1]),
        ([0.0, -0.0, -1.0], 0.65, 4, [0]),
        ([-0.1, -0.1], 0.65, 0, []),
        ([1.7e308, 1.7e308, 1.7e308], 0.65, 4, [0, 1]),
    ],
)
def test_known_cases(scores: list[float], alpha: float, budget: int, expected: list[int]) -> None:
    assert promoted(scores, alpha, budget) == expected


def test_ranks_go_by_raw_score_and_ties_by_request_order() -> None:
    decisions = route([0.2, -0.3, 0.9, 0.2, -0.1], RouteConfig())
    assert [decision.rank for decision in decisions] == [1, 4, 0, 2, 3]
    assert decisions[2] == RouteDecision(rank=0, promoted=True)


def test_numpy_scores_give_plain_decisions() -> None:
    decisions = route(np.asarray([0.1, 0.9], dtype=np.float32), RouteConfig())
    assert decisions == [RouteDecision(1, False), RouteDecision(0, True)]
    assert type(decisions[0].rank) is int


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -float("inf"), None, "high"])
def test_a_score_that_is_no_number_is_refused(score: object) -> None:
    with pytest.raises(InputError, match="score of page 1"):
        route([0.5, score], RouteConfig())  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("alpha", "budget"), [(0, 4), (1.01, 4), (-0.1, 4), (float("nan"), 4), (0.65, -1), (0.65, 1.5)]
)
def test_alpha_and_budget_are_validated(alpha: float, budget: int) -> None:
    with pytest.raises(ConfigError):
        RouteConfig(alpha, budget)


def test_a_hundred_thousand_pages() -> None:
    scores = np.random.default_rng(0).standard_normal(100_000)
    decisions = route(scores.tolist(), RouteConfig(0.65, 100_000))
    promoted = scores[[decision.promoted for decision in decisions]]
    total = scores[scores > 0].sum()
    assert promoted.sum() >= 0.65 * total > promoted.sum() - promoted.min()


@given(st.lists(st.integers(-1000, 1000), max_size=40), st.integers(1, 1000), BUDGETS)
def test_exactly_k_star_for_decimal_alpha(weights: list[int], permille: int, budget: int) -> None:
    """Alpha is the decimal that was typed, not the binary number next to it."""
    found = promoted([weight / 1024 for weight in weights], permille / 1000, budget)
    exact = [Fraction(weight, 1024) for weight in weights]
    assert len(found) == exact_count(exact, Fraction(permille, 1000), budget)


@given(SCORES, ALPHAS, BUDGETS)
def test_k_star_within_the_tolerance_for_any_scores(scores: list[float], alpha: float, budget: int) -> None:
    exact = [Fraction(score) for score in scores]
    found = len(promoted(scores, alpha, budget))
    most = exact_count(exact, Fraction(alpha), budget)
    least = exact_count(exact, Fraction(alpha) * (1 - Fraction(1, 10**11)), budget) if alpha < 1 else most
    assert least <= found <= most


@given(SCORES, ALPHAS, BUDGETS)
def test_the_promoted_pages_are_the_top_of_the_ranking(scores: list[float], alpha: float, budget: int) -> None:
    decisions = route(scores, RouteConfig(alpha, budget))
    assert len(decisions) == len(scores)
    by_rank = sorted(range(len(scores)), key=lambda place: decisions[place].rank)
    assert by_rank == sorted(range(len(scores)), key=lambda place: (-scores[place], place))
    flags = [decisions[place].promoted for place in by_rank]
    assert flags == sorted(flags, reverse=True)
    assert sum(flags) <= budget
    positive = sum(score > 0 for score in scores)
    assert sum(flags) <= max(positive, 1)


@given(SCORES, ALPHAS, ALPHAS, BUDGETS, BUDGETS)
def test_more_alpha_or_budget_never_promotes_less(
    scores: list[float], alpha: float, other: float, budget: int, more: int
) -> None:
    low, high = sorted((alpha, other))
    assert set(promoted(scores, low, budget)) <= set(promoted(scores, high, budget))
    few, many = sorted((budget, more))
    assert set(promoted(scores, alpha, few)) <= set(promoted(scores, alpha, many))


@given(SCORES, ALPHAS, BUDGETS, st.integers(-60, 60))
def test_scaling_by_a_power_of_two_changes_nothing(
    scores: list[float], alpha: float, budget: int, exponent: int
) -> None:
    normal = [score if abs(score) > 1e-200 else 0.0 for score in scores]
    scaled = [score * 2.0**exponent for score in normal]
    assert route(scaled, RouteConfig(alpha, budget)) == route(normal, RouteConfig(alpha, budget))


@given(st.lists(st.floats(-1, 1), max_size=20, unique=True), ALPHAS, BUDGETS, st.randoms(use_true_random=False))
def test_without_ties_a_permutation_of_pages_permutes_the_decisions(
    scores: list[float], alpha: float, budget: int, random: object
) -> None:
    order = list(range(len(scores)))
    random.shuffle(order)  # type: ignore[attr-defined]
    decisions = route(scores, RouteConfig(alpha, budget))
    assert route([scores[place] for place in order], RouteConfig(alpha, budget)) == [decisions[p] for p in order]


@given(SCORES, ALPHAS, BUDGETS, st.lists(st.floats(-1, 0), max_size=10))
def test_negative_scores_never_count(scores: list[float], alpha: float, budget: int, negative: list[float]) -> None:
    if any(score > 0 for score in scores):
        assert promoted(scores + negative, alpha, budget) == promoted(scores, alpha, budget)


@given(SCORES, BUDGETS)
def test_alpha_one_promotes_every_positive_page_within_the_budget(scores: list[float], budget: int) -> None:
    positive = sum(score > 0 for score in scores)
    assert len(promoted(scores, 1.0, budget)) == min(budget, positive or min(1, len(scores)))


@pytest.mark.parametrize(
    ("pages", "alpha", "tokens", "expected"),
    [
        ([], 0.65, 100, []),
        ([(0.6, 1000), (0.5, 100), (0.1, 900)], 1.0, 2000, [0, 1, 2]),
        ([(0.6, 1000), (0.5, 100), (0.1, 900)], 1.0, 1000, [1, 2]),  # 0.5 per 100 first; 0.6 does not fit any more
        ([(0.6, 1000), (0.5, 100), (0.1, 900)], 0.4, 1000, [1]),  # 0.5 of 1.2 is enough
        ([(0.6, 1000), (0.5, 100), (0.1, 900)], 1.0, 99, []),
        ([(0.2, 10), (0.2, 10), (0.2, 10)], 1.0, 20, [0, 1]),  # ties: by rank
        ([(0.1, 0), (0.9, 50)], 1.0, 0, [0]),  # what costs nothing always fits
        ([(0.1, 0), (0.9, 50)], 0.9, 50, [0, 1]),
        ([(-0.5, 5), (-0.1, 20), (-0.3, 5)], 0.65, 20, [1]),
        ([(-0.5, 5), (-0.1, 20), (-0.3, 5)], 0.65, 19, []),
        ([(1.7e308, 1), (1.7e308, 1), (1.7e308, 1)], 0.65, 9, [0, 1]),
    ],
)
def test_known_token_budgets(pages: list[tuple[float, int]], alpha: float, tokens: int, expected: list[int]) -> None:
    assert within(pages, alpha, tokens) == expected


def test_a_token_budget_replaces_the_page_budget() -> None:
    decisions = route([0.2, 0.3, 0.4], RouteConfig(1.0, budget=0, token_budget=30), [10, 10, 10])
    assert decisions == [RouteDecision(2, True), RouteDecision(1, True), RouteDecision(0, True)]


@pytest.mark.parametrize("extra", [None, [1], [1, 2, 3], [1, -1], [1, 0.5], [True, 1], [1, None]])
def test_a_token_budget_needs_the_extra_tokens(extra: object) -> None:
    with pytest.raises(InputError, match="extra tokens"):
        route([0.5, 0.2], RouteConfig(token_budget=10), extra)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong", [{"token_budget": -1}, {"token_budget": 1.5}, {"token_budget": True}, {"router": "x"}]
)
def test_token_budget_and_router_are_validated(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        RouteConfig(**wrong)  # type: ignore[arg-type]


@given(SCORES, ALPHAS, BUDGETS, st.sampled_from(["dense", "hybrid"]))
def test_the_rule_goes_by_scores_whatever_made_them(
    scores: list[float], alpha: float, budget: int, router: str
) -> None:
    assert route(scores, RouteConfig(alpha, budget, router=router), [7] * len(scores)) == route(
        scores, RouteConfig(alpha, budget)
    )


@given(PAGES, ALPHAS, TOKENS)
def test_never_more_than_the_tokens_and_only_positive_pages(
    pages: list[tuple[float, int]], alpha: float, tokens: int
) -> None:
    found = within(pages, alpha, tokens)
    assert sum(pages[place][1] for place in found) <= tokens
    if any(score > 0 for score, _ in pages):
        assert all(pages[place][0] > 0 for place in found)
    else:
        assert len(found) <= 1


@given(PAGES, ALPHAS, TOKENS)
def test_a_page_is_left_out_only_where_alpha_is_reached_or_it_does_not_fit(
    pages: list[tuple[float, int]], alpha: float, tokens: int
) -> None:
    found = within(pages, alpha, tokens)
    total = sum((Fraction(score) for score, _ in pages if score > 0), Fraction(0))
    mass = sum((Fraction(pages[place][0]) for place in found), Fraction(0))
    left = tokens - sum(pages[place][1] for place in found)
    if total > 0 and mass < Fraction(alpha) * (1 - Fraction(1, 10**11)) * total:
        others = [extra for place, (score, extra) in enumerate(pages) if score > 0 and place not in found]
        assert all(extra > left for extra in others)


@given(PAGES, ALPHAS, ALPHAS, TOKENS)
def test_more_alpha_never_promotes_less_within_the_tokens(
    pages: list[tuple[float, int]], alpha: float, other: float, tokens: int
) -> None:
    low, high = sorted((alpha, other))
    assert set(within(pages, low, tokens)) <= set(within(pages, high, tokens))


@given(SCORES, ALPHAS, BUDGETS, st.integers(1, 3000))
def test_pages_of_one_size_go_by_the_page_budgets_rule(
    scores: list[float], alpha: float, budget: int, extra: int
) -> None:
    assert within([(score, extra) for score in scores], alpha, budget * extra) == promoted(scores, alpha, budget)


@given(PAGES, ALPHAS, TOKENS)
def test_a_token_budget_leaves_ranks_alone(pages: list[tuple[float, int]], alpha: float, tokens: int) -> None:
    scores = [score for score, _ in pages]
    decisions = route(scores, RouteConfig(alpha, token_budget=tokens), [extra for _, extra in pages])
    assert [each.rank for each in decisions] == [each.rank for each in route(scores, RouteConfig(alpha))]
