"""Loading: what is supported, what is refused, and that every refusal says what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.utils import logging as transformers_logging

from qvpic_rag.errors import ConfigError, ModelNotFoundError, UnsupportedModelError
from qvpic_rag.models import families, load_model
from tests.matrix import ROWS
from tests.matrix import families as over_families


def test_the_registry_and_the_test_matrix_name_the_same_families() -> None:
    assert set(families()) == {row.family for row in ROWS}


@over_families()
def test_geometry_is_the_configs(family: str, tiny_folder: Callable[..., Path]) -> None:
    folder = tiny_folder(family)
    model = load_model(str(folder), trust_remote_code=family == "llava_onevision2")
    text = model.model.config.get_text_config()
    assert (model.layers, model.kv_heads) == (text.num_hidden_layers, text.num_key_value_heads)
    assert model.head_dim == (getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)
    assert model.max_context == text.max_position_embeddings
    assert model.dtype is torch.float32


@pytest.mark.parametrize("kind", ["qwen3_5", "llama", "unknown"])
def test_unsupported_architectures_are_refused(kind: str, refused_folder: Callable[[str], Path]) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        load_model(str(refused_folder(kind)))
    for family in families():
        assert family in str(caught.value)


def test_sliding_windows_are_refused(refused_folder: Callable[[str], Path]) -> None:
    with pytest.raises(UnsupportedModelError, match="sliding_attention") as caught:
        load_model(str(refused_folder("sliding_window")))
    for family in families():
        assert family in str(caught.value)


def test_remote_code_runs_only_when_it_is_asked_for(tiny_folder: Callable[..., Path]) -> None:
    with pytest.raises(UnsupportedModelError, match="trust_remote_code=True"):
        load_model(str(tiny_folder("llava_onevision2")))


@pytest.mark.parametrize("name", ["no/such-model", "/nowhere/at/all", "a b c", ""])
def test_a_model_that_is_not_there(name: str) -> None:
    with pytest.raises(ModelNotFoundError, match=r"cannot be loaded|There is no folder"):
        load_model(name)


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "preprocessor_config.json", "config.json"])
def test_an_incomplete_folder(file: str, tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder("qwen2_vl"), folder)
    (folder / file).unlink()
    with pytest.raises(ModelNotFoundError):
        load_model(str(folder))


def test_missing_weights_are_not_made_up(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder("qwen2_vl"), folder)
    weights = load_file(folder / "model.safetensors")
    dropped = next(name for name in weights if "k_proj.weight" in name)
    save_file(
        {k: v for k, v in weights.items() if k != dropped}, folder / "model.safetensors", metadata={"format": "pt"}
    )
    with pytest.raises(ModelNotFoundError, match="no usable weights"):
        load_model(str(folder))


def test_pickled_weights_are_not_loaded(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder("qwen2_vl"), folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match="safetensors"):
        load_model(str(folder))


@pytest.mark.parametrize("option", [{"dtype": "int8"}, {"device": "abacus"}, {"device": "cuda:99"}])
def test_wrong_options(option: dict[str, str], tiny_folder: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError):
        load_model(str(tiny_folder("qwen2_vl")), **option)


def test_the_fingerprint_sees_weights_and_architecture_only(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = tiny_folder("qwen2_vl")
    first = load_model(str(source)).checkpoint.fingerprint
    moved = tmp_path / "moved"
    shutil.copytree(source, moved)
    assert load_model(str(moved)).checkpoint.fingerprint == first
    assert load_model(str(moved), dtype="bfloat16").checkpoint.fingerprint == first

    weights = load_file(moved / "model.safetensors")
    name = next(iter(weights))
    weights[name].view(-1)[0] += 1
    save_file(weights, moved / "model.safetensors", metadata={"format": "pt"})
    assert load_model(str(moved)).checkpoint.fingerprint != first

    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["text_config"]["rms_norm_eps"] = 1e-3
    shutil.copy(source / "model.safetensors", moved / "model.safetensors")
    (moved / "config.json").write_text(json.dumps(config))
    assert load_model(str(moved)).checkpoint.fingerprint != first


def test_the_bundled_reader_loads_silently_and_leaves_settings_alone(capfd: pytest.CaptureFixture[str]) -> None:
    transformers_logging.enable_progress_bar()
    try:
        load_model("demo")
        assert capfd.readouterr() == ("", "")
        assert transformers_logging.is_progress_bar_enabled()
    finally:
        transformers_logging.disable_progress_bar()


def test_a_user_without_a_home_only_loses_time(
    tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    expected = load_model(str(tiny_folder("qwen2_vl"))).checkpoint.fingerprint
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", staticmethod(homeless))
    assert load_model(str(tiny_folder("qwen2_vl"))).checkpoint.fingerprint == expected
