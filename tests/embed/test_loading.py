"""Models that cannot be loaded."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from transformers import BertModel

from qvpic_rag.embed import load_embedder
from qvpic_rag.errors import ConfigError, ModelNotFoundError, UnsupportedModelError
from tests.embed.small import save_model, write_json


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./no/such/folder", "There is no embedder folder"),
        ("some/hub-model", "cannot be downloaded"),
        ("BAAI/bge-m3", "cannot be downloaded"),
    ],
)
def test_a_model_that_is_nowhere_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelNotFoundError, match=message) as caught:
        load_embedder(name)
    assert str(caught.value).count("\n") == 0


def test_damaged_folders_are_one_sentence(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ModelNotFoundError, match="cannot be loaded"):
        load_embedder(str(folder))
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match="no complete weights"):
        load_embedder(str(folder))
    folder = save_model(tmp_path / "n")
    (folder / "1_Pooling" / "config.json").write_text("{")
    with pytest.raises(ModelNotFoundError, match="cannot be read"):
        load_embedder(str(folder))


def test_missing_and_non_finite_weights_are_refused(tmp_path: Path) -> None:
    folder = save_model(tmp_path)
    model = BertModel.from_pretrained(folder)
    weights = {key: value for key, value in model.state_dict().items() if "layer.1.output.dense" not in key}
    model.save_pretrained(folder, state_dict=weights)
    with pytest.raises(ModelNotFoundError, match=r"no usable weights for .*layer.1.output.dense"):
        load_embedder(str(folder))
    with torch.no_grad():
        model.encoder.layer[1].output.dense.bias.fill_(float("nan"))
    model.save_pretrained(folder)
    with pytest.raises(ModelNotFoundError, match="NaN or infinity"):
        load_embedder(str(folder))


def test_code_that_comes_with_a_model_is_never_run(tmp_path: Path) -> None:
    folder = save_model(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    write_json(
        folder / "config.json",
        {**config, "model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModel": "own.M"}},
    )
    (folder / "own.py").write_text("raise SystemExit('ran')")
    with pytest.raises(UnsupportedModelError, match="own Python code, which is not run"):
        load_embedder(str(folder))


def test_an_unusable_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="use device='cpu'"):
        load_embedder("demo", device="warp:9")
