"""The training forward against transformers' own, on the same parameters."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoImageProcessor

from qvpic_rag.models.smolglyph.base import Base
from qvpic_rag.models.smolglyph.lora import Lora
from qvpic_rag.models.smolglyph.model import PICTURE_TOKENS, build_model, processor
from qvpic_rag.reader import kernels
from qvpic_rag.reader.samples import Asked, Batch, pack
from qvpic_rag.reader.smolglyph.forward import TrainingForward
from qvpic_rag.reader.smolglyph.requests import Prompts
from tests.reader.smolglyph.conftest import TOWER

SIZES = ((48, 80), (16, 64), (32, 32), (48, 80))  # pixels
GRIDS = [(height // 16, width // 16) for height, width in SIZES]
TEXTS = ["A text of words.", "And one more."]
QUESTIONS = (("Where is the key?", "In the box."), ("Who owns locker 4411?", "Tim Tam"))


def _random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _pictures() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [np.where(random.random(size) < 0.2, 0, 255).astype(np.uint8) for size in SIZES]


@pytest.fixture(scope="module", params=[(), (0, 0, 16), (1, 2, 1) * 4], ids=["standard", "columns", "mixed"])
def model(tiny_base: Base, request: pytest.FixtureRequest) -> Any:
    """With biases that are not zero, which the training forward must not forget either."""
    built = build_model(tiny_base, replace(TOWER, sections=request.param), seed=1)
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if "visual" in name or name.endswith("bias"):
                scale = 0.1 if parameter.ndim < 2 else 0.3 * parameter[0].numel() ** -0.5
                parameter.add_(_random(*parameter.shape, seed=3) * scale)
    return built


@pytest.fixture(scope="module")
def lora(model: Any) -> Lora:
    made = Lora(model.config.text_config, 4, seed=2)
    with torch.no_grad():
        for up in (made.qkv_up, made.o_up):
            up.copy_(_random(*up.shape, seed=4) * 0.1)
    return made


@pytest.fixture(scope="module")
def merged(model: Any, lora: Lora) -> Any:
    """transformers' model with the updates in its weights."""
    found = copy.deepcopy(model)
    with torch.no_grad():
        updates = lora.updates(model.config.text_config)
        for layer, update in zip(found.model.language_model.layers, updates, strict=True):
            for name, value in update.items():
                getattr(layer.self_attn, name).weight.add_(value)
    return found


@pytest.fixture(scope="module")
def image_processor(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """From the settings that are shipped."""
    folder: Path = tmp_path_factory.mktemp("processor")
    (folder / "preprocessor_config.json").write_text(json.dumps(processor()))
    return AutoImageProcessor.from_pretrained(folder)


def _asked(prompts: Prompts) -> list[Asked]:
    return [prompts.asked(*question) for question in QUESTIONS]


def _batch(prompts: Prompts) -> Batch:
    """Three pages with two questions, one page with one, two pages of words with one: rows of three lengths."""
    first, second = _asked(prompts)
    several = prompts.as_pictures([0, 1, 2], GRIDS[:3], [first, second])
    return pack([several, prompts.as_pictures([3], GRIDS[3:], [first]), prompts.as_text(TEXTS, [second])])


def _hidden(forward: TrainingForward, batch: Batch, pictures: list[int]) -> Tensor:
    images = _pictures()
    with torch.no_grad():
        seen = [forward.see(torch.from_numpy(images[index])[None])[0][0] for index in pictures]
        x = forward.embed(batch.token_ids)
        flat = x.view(-1, x.shape[-1]).index_copy(0, batch.visual[:, 0], torch.cat(seen))
        return forward.read(flat.view(x.shape), batch.positions, batch.groups)


def _expected(model: Any, image_processor: Any, prompts: Prompts, order: list[int], asked: Asked) -> Tensor:
    """transformers' logits of one request with its pictures, at the answer's places."""
    template, vision = prompts.template, {}
    ids = list(template.prefix)
    if order:
        images = [Image.fromarray(_pictures()[index]).convert("RGB") for index in order]
        vision = dict(image_processor(images=images, return_tensors="pt"))
        for index in order:
            ids += template.page(GRIDS[index][0] * GRIDS[index][1])
    else:
        for text in TEXTS:
            ids += [*prompts.ids(text), *prompts.ids("\n\n")]
    whole = torch.tensor([[*ids, *asked.prompt, *asked.answer]])
    if vision:
        vision["mm_token_type_ids"] = (whole == PICTURE_TOKENS["<|image_pad|>"]).int()
    with torch.no_grad():
        logits: Tensor = model(input_ids=whole, attention_mask=torch.ones_like(whole), **vision).logits[0]
    start = len(ids) + len(asked.prompt) - 1
    return logits[start : start + len(asked.answer)]


def _pairs(
    forward: TrainingForward, merged: Any, image_processor: Any, prompts: Prompts
) -> list[tuple[Tensor, Tensor]]:
    """Our and transformers' logits for every question of the batch."""
    batch, (first, second) = _batch(prompts), _asked(prompts)
    hidden = _hidden(forward, batch, [0, 1, 2, 3])
    requests = (([0, 1, 2], first), ([0, 1, 2], second), ([3], first), ([], second))
    return [
        (
            forward.logits(hidden[batch.questions == number]),
            _expected(merged, image_processor, prompts, order, asked),
        )
        for number, (order, asked) in enumerate(requests)
    ]


def test_equals_transformers(model: Any, lora: Lora, merged: Any, image_processor: Any, prompts: Prompts) -> None:
    """Several pages of several sizes, packed questions, pages of words, padding, updates."""
    for ours, theirs in _pairs(TrainingForward(model, lora, torch.float32), merged, image_processor, prompts):
        assert ours.shape == theirs.shape
        assert theirs.std() > 0.5
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


@pytest.mark.skipif(not kernels.available(), reason="no C compiler with OpenMP")
def test_bfloat16_kernels_are_near(model: Any, lora: Lora, merged: Any, image_processor: Any, prompts: Prompts) -> None:
    forward = TrainingForward(model, lora)
    assert forward.ops is kernels
    for ours, theirs in _pairs(forward, merged, image_processor, prompts):
        assert (ours - theirs).norm() < 0.05 * theirs.norm()


def test_positions_are_the_models_own(model: Any, prompts: Prompts) -> None:
    """The packing's rule for a picture is Qwen2.5-VL's: row and column of the merged grid, then the larger side."""
    (first, _), template = _asked(prompts), prompts.template
    batch = pack([prompts.as_pictures([0, 1, 2], GRIDS[:3], [first])])
    ids = list(template.prefix)
    for rows, columns in GRIDS[:3]:
        ids += template.page(rows * columns)
    whole = torch.tensor([[*ids, *first.prompt, *first.answer[:-1]]])
    positions, _ = model.model.get_rope_index(
        whole,
        mm_token_type_ids=(whole == PICTURE_TOKENS["<|image_pad|>"]).int(),
        image_grid_thw=torch.tensor([[1, 2 * rows, 2 * columns] for rows, columns in GRIDS[:3]]),
    )
    assert torch.equal(batch.positions[0], positions[:, 0])


def test_isolated_pages_see_the_prefix_and_themselves(model: Any, lora: Lora, prompts: Prompts) -> None:
    """Their hidden states do not change with the pages before them."""
    forward, asked = TrainingForward(model, lora, torch.float32), _asked(prompts)[:1]
    found = []
    for before in (0, 2):
        batch = pack([prompts.as_pictures([before, 1], [GRIDS[before], GRIDS[1]], asked, isolated=True)])
        # The second page stands at the same positions after the first, whatever that is.
        tokens = batch.token_ids.shape[1] - len(asked[0].prompt) - len(asked[0].answer) + 1
        size = GRIDS[1][0] * GRIDS[1][1] + 2
        batch.positions[0, :, tokens - size : tokens] += 50 - batch.positions[0, 0, tokens - size]
        found.append(_hidden(forward, batch, [before, 1])[0, tokens - size : tokens])
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=0)


def test_without_updates_it_is_the_language_model(model: Any, lora: Lora, prompts: Prompts) -> None:
    forward = TrainingForward(model, lora, torch.float32)
    batch = pack([prompts.as_text(TEXTS, _asked(prompts)[:1])])
    x = forward.embed(batch.token_ids)
    with torch.no_grad():
        hidden = forward.read(x, batch.positions, batch.groups, updated=False)
        expected = model(input_ids=batch.token_ids).logits
        torch.testing.assert_close(forward.logits(hidden), expected, atol=1e-4, rtol=0)
        changed = forward.read(x, batch.positions, batch.groups)
    assert (hidden - changed).abs().max() > 0.01


def test_fresh_updates_change_nothing(model: Any, prompts: Prompts) -> None:
    forward = TrainingForward(model, Lora(model.config.text_config, 4, seed=0), torch.float32)
    batch = pack([prompts.as_text(TEXTS, _asked(prompts)[:1])])
    x = forward.embed(batch.token_ids)
    with torch.no_grad():
        plain, updated = (forward.read(x, batch.positions, batch.groups, updated=on) for on in (False, True))
    assert torch.equal(plain, updated)


def test_gradients_reach_tower_and_updates_only(tiny_base: Base, prompts: Prompts) -> None:
    model = build_model(tiny_base, TOWER, seed=1)
    lora = Lora(model.config.text_config, 4, seed=2)
    with torch.no_grad():
        for up in (lora.qkv_up, lora.o_up):
            up.fill_(0.01)
    forward = TrainingForward(model, lora, torch.float32)
    batch = pack([prompts.as_pictures([0], GRIDS[:1], _asked(prompts))])
    seen = forward.see(torch.from_numpy(_pictures()[0])[None])[0][0]
    x = forward.embed(batch.token_ids)
    flat = x.view(-1, x.shape[-1]).index_copy(0, batch.visual[:, 0], seen)
    hidden = forward.read(flat.view(x.shape), batch.positions, batch.groups)
    forward.logits(hidden[batch.weights > 0]).logsumexp(-1).sum().backward()
    for name, parameter in (*model.named_parameters(), *lora.named_parameters()):
        trained = "visual" in name or "lora" in name or name.startswith(("qkv", "o_"))
        assert (parameter.grad is not None and bool(parameter.grad.abs().max() > 0)) == trained, name
