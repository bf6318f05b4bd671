"""How relevant a page is to a question by BGE-M3's three signals: dense, lexical and multi-vector.

With embeddings d, lexical weights w of the tokens t that both have, and a vector per token, ``Q_i`` of the question and
``P_j`` of the page (arXiv 2402.03216, section 3.2)::

    s_dense = <d_q, d_p>    s_lex = sum_t w_q(t) w_p(t)    s_mul = mean_i max_j <Q_i, P_j>
    s = 0.4 s_dense + 0.2 s_lex + 0.4 s_mul

The weights of the sum are those of FlagEmbedding's own example of ``compute_score``
(``weights_for_different_modes=[0.4, 0.2, 0.4]``, the model's README); they sum to 1.
"""

from __future__ import annotations

import numpy as np

from qvpic_rag.records import Signals

__all__ = ["WEIGHTS", "fused", "lexical", "multi_vector"]

WEIGHTS = (0.4, 0.2, 0.4)
"""Of the dense, the lexical and the multi-vector score."""


def fused(dense: float, question: Signals, page: Signals) -> float:
    """The weighted sum of a dense score and the two others."""
    scores = (dense, lexical(question, page), multi_vector(question, page))
    return sum(weight * score for weight, score in zip(WEIGHTS, scores, strict=True))


def lexical(question: Signals, page: Signals) -> float:
    """Sum over the tokens in both texts of the product of their weights; 0 or above."""
    _, ours, theirs = np.intersect1d(question.token_ids, page.token_ids, assume_unique=True, return_indices=True)
    return float(question.weights[ours] @ page.weights[theirs])


def multi_vector(question: Signals, page: Signals) -> float:
    """Mean over the question's tokens of the largest cosine with a token of the page (ColBERT's late interaction)."""
    cosines = question.vectors.astype(np.float32) @ page.vectors.astype(np.float32).T
    return float(cosines.max(axis=1).mean())
