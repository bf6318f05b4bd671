"""BGE-M3's lexical weights and token vectors against FlagEmbedding's own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qvpic_rag.embed import load_embedder
from qvpic_rag.errors import ConfigError, InputError
from qvpic_rag.relevance import WEIGHTS, fused, lexical, multi_vector
from tests.embed.small import TEXTS, save_bge, save_model

QUESTIONS = ["w1 w3", "w9 w8 w9", "unknown", "w5 w6 w7 w8 w9 w10 w11 w12 w13"]
LONG = [*TEXTS, "w7 " * 20, " ".join(f"w{number}" for number in range(29)), "w7 w1 " * 40]


@pytest.fixture(scope="module")
def bge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bge(tmp_path_factory.mktemp("bge"))


@pytest.fixture(scope="module")
def flag(bge: Path) -> Any:
    from FlagEmbedding import BGEM3FlagModel

    return BGEM3FlagModel(str(bge), use_fp16=False, devices="cpu")


def test_scores_are_those_of_flagembeddings_compute_score(bge: Path, flag: Any) -> None:
    embedder = load_embedder(str(bge))
    questions, asked = embedder.signals(QUESTIONS, query=True)
    pages, said = embedder.signals(LONG)
    found = []
    for question, q in zip(questions, asked, strict=True):
        for page, p in zip(pages, said, strict=True):
            dense = float(question @ page)
            found.append([dense, lexical(q, p), multi_vector(q, p), fused(dense, q, p)])
    # A pair at a time: in a batch, FlagEmbedding compares questions with the padding of pages, too.
    expected = [
        flag.compute_score((q, p), max_query_length=32, max_passage_length=32, weights_for_different_modes=[*WEIGHTS])
        for q in QUESTIONS
        for p in LONG
    ]
    names = ("dense", "sparse", "colbert", "colbert+sparse+dense")
    np.testing.assert_allclose(found, [[each[name] for name in names] for each in expected], atol=1e-5)
    assert max(row[1] for row in found) > 0.01, "the example has lexical matches"
    assert min(row[2] for row in found) < 0.99


def test_signals_are_those_of_flagembeddings_encode(bge: Path, flag: Any) -> None:
    _, found = load_embedder(str(bge)).signals(LONG)
    kinds = {"return_dense": True, "return_sparse": True, "return_colbert_vecs": True}
    expected = flag.encode(LONG, max_length=32, **kinds)
    for ours, weights, vectors in zip(found, expected["lexical_weights"], expected["colbert_vecs"], strict=True):
        assert ours.token_ids.tolist() == sorted(map(int, weights))
        np.testing.assert_allclose(ours.weights, [weights[str(i)] for i in ours.token_ids], atol=1e-6)
        np.testing.assert_allclose(ours.vectors, vectors, atol=1e-5)
        np.testing.assert_allclose(np.linalg.norm(ours.vectors, axis=1), 1, atol=1e-6)
        assert (ours.weights.dtype, ours.vectors.dtype) == (np.float32, np.float32)


def test_a_text_does_not_depend_on_those_beside_it(bge: Path) -> None:
    embedder = load_embedder(str(bge))
    vectors, together = embedder.signals(LONG)
    np.testing.assert_allclose(vectors, embedder.encode(LONG), atol=1e-6)
    for text, ours in zip(LONG, together, strict=True):
        [alone] = embedder.signals([text])[1]
        np.testing.assert_array_equal(ours.token_ids, alone.token_ids)
        np.testing.assert_allclose(ours.weights, alone.weights, atol=1e-5)
        np.testing.assert_allclose(ours.vectors, alone.vectors, atol=1e-5)


def test_one_question_has_the_embedding_that_encode_gives(bge: Path) -> None:
    embedder = load_embedder(str(bge))
    for text in QUESTIONS:
        np.testing.assert_array_equal(embedder.signals([text], query=True)[0], embedder.encode([text], query=True))


def test_no_texts_and_no_list(bge: Path) -> None:
    embedder = load_embedder(str(bge))
    vectors, found = embedder.signals([])
    assert (vectors.shape, found) == ((0, 16), [])
    with pytest.raises(InputError, match="list of strings"):
        embedder.signals("w1")


def test_other_models_have_none(tmp_path: Path) -> None:
    embedder = load_embedder(str(save_model(tmp_path / "plain")))
    assert embedder.signals_digest == ""
    with pytest.raises(ConfigError, match=r"no lexical and multi-vector heads.*router='dense'"):
        embedder.signals(["w1"])


def test_the_digest_follows_the_heads_and_the_embedders_does_not(bge: Path, tmp_path: Path) -> None:
    before = load_embedder(str(bge))
    shutil.copytree(bge, tmp_path / "m")
    assert load_embedder(str(tmp_path / "m")).signals_digest == before.signals_digest
    torch.manual_seed(1)
    torch.save(torch.nn.Linear(16, 1).state_dict(), tmp_path / "m" / "sparse_linear.pt")
    after = load_embedder(str(tmp_path / "m"))
    assert after.digest == before.digest
    assert after.signals_digest != before.signals_digest
