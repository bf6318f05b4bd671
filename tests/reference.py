"""Independent references for equivalence tests, made with transformers and nothing of the engine.

* ``full_prefill``: the ordinary way, every token attends to all before it, tokens from ``model.generate``.
* ``block_diagonal``: each page compiled alone under the prefix, unrotated keys taken by hooks, placed by hand.
* ``masked_prefill``: the same mathematics by another road, one forward pass with a 4-D mask and no re-rotation.

Each is written for clarity: plain loops, one picture at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import DynamicCache, PreTrainedModel

from tests.prompts import ONE_AXIS, Prompt, batched, build_prompt, joined_inputs, load_tokenizer, positions_of

__all__ = [
    "Compiled",
    "Prompt",
    "Reference",
    "block_diagonal",
    "build_prompt",
    "compile_page",
    "full_prefill",
    "load_tokenizer",
    "masked_prefill",
    "rotate",
]


@dataclass(frozen=True)
class Reference:
    """What a reference run gives.

    Attributes
    ----------
    input_ids : torch.Tensor
        ``[tokens]``, the whole prompt.
    position_ids : torch.Tensor
        ``[axes, tokens]``.
    logits : torch.Tensor
        ``[vocabulary]`` in float32, after the last prompt token.
    question_logits : torch.Tensor
        ``[question tokens, vocabulary]`` in float32, of everything after the last page.
    tokens : list[int]
        Greedy continuation (empty where the reference makes none).
    keys, values : torch.Tensor
        ``[layers, kv_heads, tokens, head_dim]`` of the prompt, keys rotated.
    prompt : Prompt
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    logits: torch.Tensor
    question_logits: torch.Tensor
    tokens: list[int]
    keys: torch.Tensor
    values: torch.Tensor
    prompt: Prompt


@dataclass(frozen=True)
class Compiled:
    """Unrotated keys and values ``[layers, kv_heads, tokens, head_dim]`` of a prefix and of the page behind it."""

    prefix_keys: torch.Tensor
    prefix_values: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    ids: list[int]


@torch.no_grad()
def full_prefill(
    model: PreTrainedModel,
    folder: Path,
    images: Sequence[Image.Image],
    question: str,
    *,
    system: str | None = None,
    max_new_tokens: int = 8,
) -> Reference:
    """Ordinary prefill of the whole prompt; positions are the model's own, and tokens come from ``model.generate``."""
    prompt = build_prompt(model, folder, images, question, system=system)
    ids = torch.tensor([prompt.ids])
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if images:
        inputs |= joined_inputs(prompt.inputs)
        if model.config.model_type not in ONE_AXIS:
            inputs["mm_token_type_ids"] = (ids == model.config.image_token_id).int()
    output = model(**inputs, use_cache=True)
    generated = model.generate(**inputs, do_sample=False, max_new_tokens=max_new_tokens)
    positions = positions_of(model, prompt.ids, prompt.grids)
    return _reference(
        output.logits[0], output.past_key_values, generated[0, ids.shape[1] :].tolist(), positions, prompt
    )


@torch.no_grad()
def block_diagonal(
    model: PreTrainedModel,
    folder: Path,
    images: Sequence[Image.Image],
    question: str,
    *,
    system: str | None = None,
    max_new_tokens: int = 8,
) -> Reference:
    """Pages compiled alone, stripped of the prefix, rotated to their places; then the question and greedy tokens."""
    prompt = build_prompt(model, folder, images, question, system=system)
    positions = positions_of(model, prompt.ids, prompt.grids)
    prefix = prompt.ids[: prompt.prefix]
    keys, values = [], []
    for (start, end), grid, inputs in zip(prompt.pages, prompt.grids, prompt.inputs, strict=True):
        page = compile_page(model, prefix, prompt.ids[start:end], grid, inputs)
        if not keys:
            keys.append(page.prefix_keys)
            values.append(page.prefix_values)
        keys.append(page.keys)
        values.append(page.values)
    context = prompt.question
    rotated = rotate(model, torch.cat(keys, dim=2), positions[:, :context])
    cache = DynamicCache(config=model.config.get_text_config())
    for layer, value in enumerate(torch.cat(values, dim=2)):
        cache.update(rotated[layer][None], value[None], layer)
    output = model(
        input_ids=torch.tensor([prompt.ids[context:]]),
        position_ids=batched(model, positions[:, context:]),
        past_key_values=cache,
    )
    kept = _stacked(cache)
    tokens = _continue(model, output.logits[0, -1], cache, int(positions.max()) + 1, max_new_tokens)
    return _reference(output.logits[0], kept, tokens, positions, prompt)


@torch.no_grad()
def masked_prefill(
    model: PreTrainedModel,
    folder: Path,
    images: Sequence[Image.Image],
    question: str,
    *,
    system: str | None = None,
) -> Reference:
    """The same mathematics in one forward pass, without hooks and without rotating anything.

    Every page brings its own copy of the prefix, moved along with it: rotary attention depends on distances only, so
    a page behind its copy at the request's positions is the page compiled alone. A page sees its copy and itself; the
    question sees the first copy, which has not moved, and all pages.
    """
    prompt = build_prompt(model, folder, images, question, system=system)
    positions = positions_of(model, prompt.ids, prompt.grids)
    cut = prompt.prefix
    ids: list[int] = []
    places: list[torch.Tensor] = []
    # For each token: the page whose part it is (-1 is the question), and whether the question sees it.
    owner: list[int] = []
    seen: list[bool] = []
    kept: list[int] = []
    for number, (start, end) in enumerate(prompt.pages):
        moved = positions[:, start] - cut
        if number == 0:
            kept += range(cut)
        kept += range(len(ids) + cut, len(ids) + cut + end - start)
        ids += prompt.ids[:cut] + prompt.ids[start:end]
        places += [positions[:, :cut] + moved[:, None], positions[:, start:end]]
        owner += [number] * (cut + end - start)
        seen += [number == 0] * cut + [True] * (end - start)
    rest = len(prompt.ids) - prompt.question
    kept += range(len(ids), len(ids) + rest)
    ids += prompt.ids[prompt.question :]
    places.append(positions[:, prompt.question :])
    owner += [-1] * rest
    seen += [True] * rest
    part, visible = torch.tensor(owner), torch.tensor(seen)
    allowed = (part[:, None] == part[None]) | ((part[:, None] == -1) & visible[None])
    allowed &= torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
    mask = torch.zeros(1, 1, len(ids), len(ids), dtype=model.dtype)
    mask[0, 0, ~allowed] = torch.finfo(model.dtype).min
    output = model(
        input_ids=torch.tensor([ids]),
        position_ids=batched(model, torch.cat(places, dim=1)),
        attention_mask=mask,
        use_cache=True,
        **joined_inputs(prompt.inputs),
    )
    keys, values = _stacked(output.past_key_values)
    cache = (keys[:, :, kept], values[:, :, kept])
    return _reference(output.logits[0], cache, [], positions, prompt)


@torch.no_grad()
def compile_page(
    model: PreTrainedModel,
    prefix: list[int],
    page: list[int],
    grid: tuple[int, int] | None,
    inputs: dict[str, torch.Tensor],
) -> Compiled:
    """Run ``prefix + page`` alone and take the keys before rotation, and the values, of both parts."""
    ids = prefix + page
    layers = model.model.language_model.layers
    captured: dict[tuple[str, int], torch.Tensor] = {}
    handles = []
    for number, layer in enumerate(layers):
        attention = layer.self_attn
        # A norm over each head comes before the rotation, so keys are taken behind it.
        source = attention.k_norm if hasattr(attention, "k_norm") else attention.k_proj
        for name, module in (("key", source), ("value", attention.v_proj)):

            def hook(_m: Any, _i: Any, output: torch.Tensor, at: tuple[str, int] = (name, number)) -> None:
                captured[at] = output

            handles.append(module.register_forward_hook(hook))
    try:
        positions = batched(model, positions_of(model, ids, [grid]))
        model(input_ids=torch.tensor([ids]), position_ids=positions, use_cache=False, **inputs)
    finally:
        for handle in handles:
            handle.remove()
    heads = model.config.get_text_config().num_key_value_heads
    stacked = {}
    for name in ("key", "value"):
        per_layer = [captured[name, number].reshape(len(ids), heads, -1) for number in range(len(layers))]
        stacked[name] = torch.stack(per_layer).transpose(1, 2)
    cut = len(prefix)
    key, value = stacked["key"], stacked["value"]
    return Compiled(key[:, :, :cut], value[:, :, :cut], key[:, :, cut:], value[:, :, cut:], page)


@torch.no_grad()
def rotate(model: PreTrainedModel, keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotate keys ``[layers, kv_heads, tokens, head_dim]`` to ``positions`` ``[axes, tokens]``.

    With the model's own frequencies and function, in float32 and rounded once to the keys' dtype.
    """
    text = model.model.language_model
    cos, sin = text.rotary_emb(torch.zeros(1, dtype=torch.float32), batched(model, positions))
    apply = sys.modules[type(text.layers[0].self_attn).__module__].apply_rotary_pos_emb
    return apply(keys.float(), keys.float(), cos, sin)[1].to(keys.dtype)


def _continue(
    model: PreTrainedModel, logits: torch.Tensor, cache: DynamicCache, position: int, count: int
) -> list[int]:
    stop = model.generation_config.eos_token_id
    stops = set(stop) if isinstance(stop, list) else {stop}
    axes = 1 if model.config.model_type in ONE_AXIS else 3
    tokens: list[int] = []
    while True:
        tokens.append(int(logits.argmax()))
        if len(tokens) == count or tokens[-1] in stops:
            return tokens
        here = batched(model, torch.full((axes, 1), position))
        output = model(input_ids=torch.tensor([tokens[-1:]]), position_ids=here, past_key_values=cache)
        logits = output.logits[0, -1]
        position += 1


def _stacked(cache: DynamicCache) -> tuple[torch.Tensor, torch.Tensor]:
    keys = torch.stack([layer.keys[0].clone() for layer in cache.layers])
    values = torch.stack([layer.values[0].clone() for layer in cache.layers])
    return keys, values


def _reference(
    logits: torch.Tensor,
    cache: DynamicCache | tuple[torch.Tensor, torch.Tensor],
    tokens: list[int],
    positions: torch.Tensor,
    prompt: Prompt,
) -> Reference:
    keys, values = cache if isinstance(cache, tuple) else _stacked(cache)
    question = logits[-(len(prompt.ids) - prompt.question) :].float()
    ids = torch.tensor(prompt.ids)
    return Reference(ids, positions, question[-1], question, tokens, keys, values, prompt)
