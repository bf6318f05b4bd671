"""What is shipped, and the model folder that it becomes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from qvpic_rag.config import GenerateConfig
from qvpic_rag.errors import ConfigError, ModelNotFoundError
from qvpic_rag.models import load_model
from qvpic_rag.models.smolglyph import adapter
from qvpic_rag.models.smolglyph.base import Base
from qvpic_rag.models.smolglyph.lora import Lora
from qvpic_rag.models.smolglyph.model import build_model
from qvpic_rag.reader.samples import pack
from qvpic_rag.reader.smolglyph.forward import TrainingForward
from qvpic_rag.reader.smolglyph.requests import Prompts
from tests.reader.smolglyph.conftest import TOWER

RANK = 4


def _trained(base: Base) -> tuple[Any, Lora]:
    """A model and updates as if they had been trained, in numbers that bfloat16 holds."""
    model = build_model(base, TOWER, seed=5)
    lora = Lora(model.config.text_config, RANK, seed=5)
    with torch.no_grad():
        for up in (lora.qkv_up, lora.o_up):
            up.normal_(0, 0.1, generator=torch.Generator().manual_seed(6))
        for parameter in (*model.model.visual.parameters(), *lora.parameters()):
            parameter.copy_(parameter.bfloat16().float())
    return model, lora


def _save(base: Base, folder: Path) -> tuple[Any, Lora]:
    model, lora = _trained(base)
    about = {"tower": TOWER.to_dict(), "rank": RANK, "base": base.digest}
    adapter.save_adapter(model.model.visual.state_dict(), lora.state_dict(), about, folder)
    return model, lora


@pytest.fixture
def saved(tiny_base: Base, tmp_path: Path) -> Path:
    _save(tiny_base, tmp_path / "adapter")
    return tmp_path / "adapter"


def test_the_assembled_folder_is_an_ordinary_model(tiny_base: Base, prompts: Prompts, tmp_path: Path) -> None:
    """The engine loads it, reads a page with it as the training forward does, and answers."""
    made, lora = _save(tiny_base, tmp_path / "adapter")
    adapter.assemble(tmp_path / "adapter", tmp_path / "model", base=tiny_base)
    loaded = load_model(str(tmp_path / "model"))
    assert loaded.tokenizer("For 12 keys,  see.")["input_ids"] == prompts.ids("For 12 keys,  see.")
    picture = np.where(np.random.default_rng(0).random((32, 64)) < 0.2, 0, 255).astype(np.uint8)
    vision = loaded.encode_images([Image.fromarray(picture).convert("RGB")], together=True)
    asked = prompts.asked("Who?", "Ann")
    context = prompts.as_pictures([0], [(2, 4)], [asked])
    ids = [*context.prefix, *prompts.template.page(8), *asked.prompt, *asked.answer]
    whole = torch.tensor([ids])
    batch = pack([context])
    forward = TrainingForward(made, lora, torch.float32)
    with torch.no_grad():
        theirs = loaded.model(input_ids=whole, position_ids=loaded.positions(whole, vision), **vision.tensors).logits[
            0, -len(asked.answer) - 1 : -1
        ]
        x = forward.embed(batch.token_ids)
        seen = forward.see(torch.from_numpy(picture)[None])[0][0]
        x = x.view(-1, x.shape[-1]).index_copy(0, batch.visual[:, 0], seen).view(x.shape)
        hidden = forward.read(x, batch.positions, batch.groups)
    ours = forward.logits(hidden[batch.weights > 0])
    assert (ours - theirs).norm() < 0.02 * ours.norm()  # the folder's weights are rounded to bfloat16


def test_equal_to_transformers_without_rounding(tiny_base: Base, tmp_path: Path, monkeypatch: Any) -> None:
    """Merging itself is exact: with nothing rounded, merged weights and updates beside them agree."""
    _, lora = _save(tiny_base, tmp_path / "adapter")
    adapter.assemble(tmp_path / "adapter", tmp_path / "model", base=tiny_base)
    found = load_model(str(tmp_path / "model")).model.state_dict()
    updates = lora.updates(build_model(tiny_base, TOWER, seed=0).config.text_config)
    for layer, update in enumerate(updates):
        for name, value in update.items():
            own = tiny_base.weights[f"model.layers.{layer}.self_attn.{name}.weight"] + value.detach()
            merged = found[f"model.language_model.layers.{layer}.self_attn.{name}.weight"]
            assert torch.equal(merged, own.bfloat16().float())


def test_one_page_over_its_cache_equals_full_prefill(saved: Path, tiny_base: Base, tmp_path: Path) -> None:
    from qvpic_rag.assemble import assemble
    from qvpic_rag.baselines import FullPrefill
    from qvpic_rag.compile import compile_pages, compile_text
    from qvpic_rag.generate import generate, prompt
    from qvpic_rag.records import BlockKey, Message
    from qvpic_rag.template import ChatTemplate

    adapter.assemble(saved, tmp_path / "model", base=tiny_base)
    loaded = load_model(str(tmp_path / "model"))
    template, key = ChatTemplate(loaded), BlockKey("card", "", "", "", "", "", 0, "", "")
    image = Image.fromarray(np.full((32, 48), 255, dtype=np.uint8)).convert("RGB")
    image.paste((0, 0, 0), (5, 5, 20, 20))
    messages, settings = [Message("user", "What is this about?")], GenerateConfig(max_new_tokens=8)
    blocks = compile_pages(loaded, template, [image], [key], prefix=None)
    prefix = compile_text(loaded, template.prefix, key, prefix=0)
    ids = template.suffix(messages)
    context = assemble(loaded, [prefix, *blocks], query_tokens=len(ids), new_tokens=8)
    cached = generate(loaded, prompt(loaded, context, ids), settings).text
    assert cached == FullPrefill(loaded, template).answer(messages, [image], settings).text


def test_other_files_stay_and_nothing_else_is_left(saved: Path, tiny_base: Base) -> None:
    (saved / "README.md").write_text("a card")
    _save(tiny_base, saved)
    assert sorted(path.name for path in saved.iterdir()) == ["README.md", "adapter.safetensors"]


def test_an_adapter_has_a_limit(tiny_base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "LIMIT", 1000)
    with pytest.raises(ConfigError, match="smaller rank"):
        _save(tiny_base, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_real_adapter_stays_below_the_limit() -> None:
    """Vision tower and updates of rank 16, from their shapes."""
    hidden, layers, heads, kv_heads, head, rank = 576, 30, 9, 3, 64, 16
    updates = layers * rank * (hidden + (heads + 2 * kv_heads) * head + 2 * hidden)
    assert 2 * (updates + 6_000_000) < adapter.LIMIT


def test_an_adapter_of_another_model_is_refused(saved: Path, tiny_base: Base, tmp_path: Path) -> None:
    other = Base(tiny_base.config, tiny_base.weights, tiny_base.tokenizer, "1" * 64)
    with pytest.raises(ModelNotFoundError, match="other weights"):
        adapter.assemble(saved, tmp_path / "model", base=other)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("damage", ["missing", "cut", "foreign"])
def test_a_damaged_adapter_is_refused(damage: str, saved: Path, tiny_base: Base, tmp_path: Path) -> None:
    file = saved / "adapter.safetensors"
    if damage == "missing":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:-100])
    else:
        from safetensors.torch import save_file

        save_file({"x": torch.zeros(1)}, file)
    with pytest.raises(ModelNotFoundError, match="holds no smolglyph adapter"):
        adapter.assemble(saved, tmp_path / "model", base=tiny_base)


def test_many_at_once_make_one_whole_folder(saved: Path, tiny_base: Base, tmp_path: Path) -> None:
    failed: list[BaseException] = []

    def work() -> None:
        try:
            adapter.assemble(saved, tmp_path / "cache" / "model", base=tiny_base)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["model"]
    load_model(str(tmp_path / "cache" / "model"))


def test_a_full_disk_leaves_nothing(
    saved: Path, tiny_base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(adapter, "processor", full)
    with pytest.raises(ConfigError, match="No space left"):
        adapter.assemble(saved, tmp_path / "cache" / "model", base=tiny_base)
    assert not list((tmp_path / "cache").iterdir())


def test_the_cached_folder_is_made_once_and_follows_the_adapter(
    saved: Path, tiny_base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(adapter, "load_base", lambda: tiny_base)
    first = adapter.smolglyph_folder(saved)
    assert first.parent == tmp_path / "cache" / "qvpic-rag"
    time = (first / "config.json").stat().st_mtime_ns
    assert adapter.smolglyph_folder(saved) == first
    assert (first / "config.json").stat().st_mtime_ns == time
    model, lora = _trained(tiny_base)
    about = {"tower": TOWER.to_dict(), "rank": RANK, "base": tiny_base.digest}
    with torch.no_grad():
        lora.o_up.add_(1.0)
    adapter.save_adapter(model.model.visual.state_dict(), lora.state_dict(), about, saved)
    assert adapter.smolglyph_folder(saved) != first
    with pytest.raises(ModelNotFoundError):
        adapter.smolglyph_folder(tmp_path / "nowhere")
