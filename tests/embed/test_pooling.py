"""Vectors of tiny random models against references written here."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertModel

from qvpic_rag.embed import load_embedder
from qvpic_rag.embed.encoder import _batches
from qvpic_rag.errors import ConfigError, InputError, UnsupportedModelError
from tests.embed.small import TEXTS, WORDS, save_model, states, unit, write_json

POOL = {
    "cls": lambda x: x[0],
    "mean": lambda x: x.mean(0),
    "max": lambda x: x.max(0).values,
    "lasttoken": lambda x: x[-1],
}


@pytest.mark.parametrize(
    ("kind", "pooling"), [("bert", "cls"), ("bert", "mean"), ("bert", "max"), ("qwen2", "lasttoken")]
)
def test_pooling_is_the_stated_one_and_padding_changes_nothing(tmp_path: Path, kind: str, pooling: str) -> None:
    embedder = load_embedder(str(save_model(tmp_path, kind, pooling)))
    found = embedder.encode(TEXTS)
    assert found.shape == (len(TEXTS), embedder.dimension) == (len(TEXTS), 16)
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    for row, text in zip(found, TEXTS, strict=True):
        np.testing.assert_allclose(row, unit(POOL[pooling](states(tmp_path, text))), atol=2e-6)


def test_the_older_pooling_keys_are_read_and_a_plain_1_pooling_folder_is_enough(tmp_path: Path) -> None:
    save_model(tmp_path, pooling="cls")
    new = load_embedder(str(tmp_path)).encode(TEXTS)
    (tmp_path / "modules.json").unlink()
    flags = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    write_json(tmp_path / "1_Pooling" / "config.json", flags)
    np.testing.assert_array_equal(load_embedder(str(tmp_path)).encode(TEXTS), new)


def test_a_model_that_does_not_state_its_pooling_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, pooling=None)
    with pytest.raises(ConfigError, match=r"does not state how it pools .* add 1_Pooling/config.json"):
        load_embedder(str(tmp_path))


@pytest.mark.parametrize("pooling", ["weightedmean", "mean_sqrt_len_tokens", ["cls", "mean"]])
def test_a_pooling_that_is_not_supported_is_refused(tmp_path: Path, pooling: Any) -> None:
    save_model(tmp_path, pooling=pooling)
    with pytest.raises(UnsupportedModelError, match="supported are cls, mean, max, lasttoken"):
        load_embedder(str(tmp_path))


def test_a_further_module_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())
    write_json(tmp_path / "modules.json", [*modules, {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}])
    with pytest.raises(UnsupportedModelError, match="Dense"):
        load_embedder(str(tmp_path))


def test_prompts_length_limit_and_lower_case_come_from_the_files(tmp_path: Path) -> None:
    save_model(tmp_path)
    plain = load_embedder(str(tmp_path))
    write_json(tmp_path / "config_sentence_transformers.json", {"prompts": {"query": "w1 w2 ", "document": "w3 "}})
    write_json(tmp_path / "sentence_bert_config.json", {"max_seq_length": 8, "do_lower_case": True})
    embedder = load_embedder(str(tmp_path))
    np.testing.assert_allclose(embedder.encode(["W9"], query=True), plain.encode(["w1 w2 w9"]), atol=1e-6)
    np.testing.assert_allclose(embedder.encode(["w9"]), plain.encode(["w3 w9"]), atol=1e-6)
    long = "w4 " * 500
    np.testing.assert_allclose(embedder.encode([long]), plain.encode(["w3 " + "w4 " * 5]), atol=1e-6)
    assert plain.encode([long]).shape == (1, 16)  # cut at the model's own limit
    assert embedder.digest != plain.digest


def test_encoding_is_deterministic_in_order_and_takes_any_list(tmp_path: Path) -> None:
    embedder = load_embedder(str(save_model(tmp_path)))
    assert embedder.encode([]).shape == (0, 16)
    assert embedder.encode([]).dtype == np.float32
    many = [" ".join(WORDS[: 1 + number % 20]) for number in range(150)]
    found = embedder.encode(many)
    np.testing.assert_array_equal(found, embedder.encode(many))
    np.testing.assert_allclose(found[::-1], embedder.encode(many[::-1]), atol=1e-6)
    np.testing.assert_allclose(found[:20], np.concatenate([embedder.encode([text]) for text in many[:20]]), atol=1e-6)
    with ThreadPoolExecutor(4) as pool:
        for part in pool.map(lambda start: embedder.encode(many[start:]), range(8)):
            np.testing.assert_allclose(part, found[-len(part) :], atol=1e-6)
    assert embedder.encode(["\udcff w1"]).shape == (1, 16)  # undecodable bytes of a command line
    with pytest.raises(InputError, match="list of strings"):
        embedder.encode("w1")
    with pytest.raises(InputError, match="list of strings"):
        embedder.encode([1])  # type: ignore[list-item]


def test_a_text_without_tokens_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    write_json(tmp_path / "tokenizer.json", {**tokenizer, "post_processor": None})
    with pytest.raises(InputError, match="Text 1 gives no tokens"):
        load_embedder(str(tmp_path)).encode(["w1", ""])


def test_batches_hold_every_place_once_and_bound_the_tokens() -> None:
    lengths = [3, 9000, 1, 4000, 4000, 10, *([2] * 200)]
    batches = list(_batches(lengths))
    assert sorted(place for batch in batches for place in batch) == list(range(len(lengths)))
    assert all(len(batch) == 1 or len(batch) * max(lengths[p] for p in batch) <= 8192 for batch in batches)
    assert max(map(len, batches)) <= 64


def test_the_digest_follows_weights_pooling_and_tokenizer(tmp_path: Path) -> None:
    save_model(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    digest = load_embedder(str(tmp_path / "a")).digest
    assert load_embedder(str(tmp_path / "b")).digest == digest
    write_json(tmp_path / "b" / "1_Pooling" / "config.json", {"pooling_mode": "cls"})
    pooled = load_embedder(str(tmp_path / "b")).digest
    tokenizer = json.loads((tmp_path / "b" / "tokenizer_config.json").read_text())
    write_json(tmp_path / "b" / "tokenizer_config.json", {**tokenizer, "model_max_length": 31})
    cut = load_embedder(str(tmp_path / "b")).digest
    model = BertModel.from_pretrained(tmp_path / "b")
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[5, 0] += 1
    model.save_pretrained(tmp_path / "b")
    assert len({digest, pooled, cut, load_embedder(str(tmp_path / "b")).digest}) == 4
