"""Fused relevance by hand, and its laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qvpic_rag.records import Signals
from qvpic_rag.relevance import WEIGHTS, fused, lexical, multi_vector


def signals(terms: dict[int, float], vectors: list[list[float]]) -> Signals:
    ids = np.asarray(sorted(terms), np.int64)
    return Signals(ids, np.asarray([terms[i] for i in sorted(terms)], np.float32), np.asarray(vectors, np.float32))


QUESTION = signals({3: 0.5, 7: 0.25, 9: 1.0}, [[1, 0], [0, 1]])
PAGE = signals({1: 2.0, 3: 0.5, 9: 0.75}, [[0.6, 0.8], [-1, 0], [0, -1]])


def test_by_hand() -> None:
    assert lexical(QUESTION, PAGE) == 0.5 * 0.5 + 1.0 * 0.75
    assert multi_vector(QUESTION, PAGE) == pytest.approx((0.6 + 0.8) / 2)
    assert fused(0.3, QUESTION, PAGE) == pytest.approx(0.4 * 0.3 + 0.2 * 1.0 + 0.4 * 0.7)


def test_nothing_in_common_and_no_words() -> None:
    assert lexical(QUESTION, signals({2: 1.0}, [[1, 0]])) == 0
    assert lexical(QUESTION, signals({}, [[1, 0]])) == 0


def test_the_weights_are_flagembeddings_example() -> None:
    assert WEIGHTS == (0.4, 0.2, 0.4)
    assert sum(WEIGHTS) == 1


@st.composite
def texts(draw: st.DrawFn) -> Signals:
    terms = draw(st.dictionaries(st.integers(0, 30), st.floats(0.01, 1), max_size=8))
    angles = draw(st.lists(st.floats(0, 6.3), min_size=1, max_size=8))
    return signals(terms, [[float(np.cos(a)), float(np.sin(a))] for a in angles])


@given(texts(), texts())
def test_bounds_and_symmetry(one: Signals, other: Signals) -> None:
    assert lexical(one, other) == pytest.approx(lexical(other, one), rel=1e-6)
    assert lexical(one, other) >= 0
    assert -1 - 1e-6 <= multi_vector(one, other) <= 1 + 1e-6
    assert multi_vector(one, one) == pytest.approx(1, abs=1e-6)


@given(texts(), texts(), texts())
def test_a_longer_page_never_has_less_late_interaction(question: Signals, page: Signals, more: Signals) -> None:
    longer = Signals(page.token_ids, page.weights, np.concatenate([page.vectors, more.vectors]))
    assert multi_vector(question, longer) >= multi_vector(question, page)


@given(texts(), texts())
def test_half_precision_vectors_cost_little(question: Signals, page: Signals) -> None:
    half = Signals(page.token_ids, page.weights, page.vectors.astype(np.float16))
    assert multi_vector(question, half) == pytest.approx(multi_vector(question, page), abs=2e-3)
