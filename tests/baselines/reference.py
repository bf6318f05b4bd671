"""What methods must compute, with transformers alone: prompts cut by hand, one masked forward pass over them.

Attention with rotary positions depends on distances only. So a page that was compiled under some tokens and then linked
is a page in one forward pass that sees a copy of those tokens just before it, and itself, and nothing else; what comes
after sees the page and not the copy. No cache, no hooks and no rotation are needed to say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import DynamicCache, PreTrainedModel

from tests.matrix import TEXT_ROWS
from tests.prompts import batched, build_prompt, joined_inputs, load_tokenizer, positions_of
from tests.tiny import page_image

__all__ = [
    "Chunk",
    "Piece",
    "everything",
    "greedy",
    "linked",
    "logits",
    "picture",
    "prompt_ends",
    "recomputed",
    "text_chunk",
    "tokens",
]

_TEXT = {row.family for row in TEXT_ROWS}
_MARK = "@@@@"


@dataclass(frozen=True)
class Chunk:
    """A page: its token ids, and for a picture its grid and what the model's forward takes for it alone."""

    ids: list[int]
    grid: tuple[int, int] | None = None
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Piece:
    """Consecutive tokens of a masked pass: where they start, and the numbers of the pieces that they see besides
    themselves."""

    chunk: Chunk
    start: int
    sees: tuple[int, ...]


def tokens(folder: Path, text: str) -> list[int]:
    """Token ids of a text alone."""
    return load_tokenizer(folder)(text, add_special_tokens=False)["input_ids"] if text else []


def prompt_ends(
    model: PreTrainedModel, folder: Path, question: str, *, system: str | None = None
) -> tuple[list[int], list[int]]:
    """Token ids of the folder's chat template before the pages and, with ``question``, after them."""
    if model.config.model_type not in _TEXT:
        prompt = build_prompt(model, folder, [page_image(0)], question, system=system)
        return prompt.ids[: prompt.prefix], prompt.ids[prompt.question :]
    turns = [] if system is None else [{"role": "system", "content": system}]
    turns.append({"role": "user", "content": _MARK + question})
    text = load_tokenizer(folder).apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    before, after = text.split(_MARK)
    return tokens(folder, before), tokens(folder, after)


def text_chunk(folder: Path, text: str) -> Chunk:
    """A page as text."""
    return Chunk(tokens(folder, text + "\n\n"))


def picture(model: PreTrainedModel, folder: Path, image: Image.Image) -> Chunk:
    """A page as a picture, with the tokens that wrap it."""
    prompt = build_prompt(model, folder, [image], "Which one?")
    start, end = prompt.pages[0]
    return Chunk(prompt.ids[start:end], prompt.grids[0], prompt.inputs[0])


def everything(
    model: PreTrainedModel, head: list[int], chunks: Sequence[Chunk], tail: list[int], separator: Sequence[int] = ()
) -> list[Piece]:
    """Full prefill: every piece sees all before it."""
    parts = [Chunk(head)]
    for number, chunk in enumerate(chunks):
        parts += [Chunk(list(separator)), chunk] if number and separator else [chunk]
    pieces: list[Piece] = []
    at = 0
    for part in [*parts, Chunk(tail)]:
        pieces.append(Piece(part, at, tuple(range(len(pieces)))))
        at += _span(model, part)
    return pieces


def linked(
    model: PreTrainedModel,
    head: list[int],
    chunks: Sequence[Chunk],
    tail: list[int],
    condition: list[int],
    separator: Sequence[int] = (),
) -> list[Piece]:
    """Position-independent caching: each page sees its own copy of ``condition`` and itself; a separator sees a copy of
    ``head``; the tail sees head, separators and pages."""
    at = len(condition)  # no copy starts below zero
    pieces = [Piece(Chunk(head), at, ())]
    visible = [0]
    at += len(head)
    for number, chunk in enumerate(chunks):
        for part, copy in ((Chunk(list(separator) if number else []), head), (chunk, condition)):
            if not part.ids:
                continue
            pieces.append(Piece(Chunk(copy), at - len(copy), ()))
            pieces.append(Piece(part, at, (len(pieces) - 1,)))
            visible.append(len(pieces) - 1)
            at += _span(model, part)
    return [*pieces, Piece(Chunk(tail), at, tuple(visible))]


@torch.no_grad()
def logits(model: PreTrainedModel, pieces: Sequence[Piece]) -> torch.Tensor:
    """Float32 logits after the last token, ``[vocabulary]``, of one masked forward pass."""
    ids = [token for piece in pieces for token in piece.chunk.ids]
    owner = torch.tensor([number for number, piece in enumerate(pieces) for _ in piece.chunk.ids])
    sees = torch.eye(len(pieces), dtype=torch.bool)
    for number, piece in enumerate(pieces):
        sees[number, list(piece.sees)] = True
    allowed = sees[owner][:, owner] & torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
    mask = torch.zeros(1, 1, len(ids), len(ids), dtype=model.dtype)
    mask[0, 0, ~allowed] = torch.finfo(model.dtype).min
    places = [_places(model, piece.chunk) + piece.start for piece in pieces]
    pictures = [dict(piece.chunk.inputs) for piece in pieces if piece.chunk.inputs]
    output = model(
        input_ids=torch.tensor([ids]),
        position_ids=batched(model, torch.cat(places, dim=1)),
        attention_mask=mask,
        use_cache=False,
        **(joined_inputs(pictures) if pictures else {}),
    )
    return output.logits[0, -1].float()


@torch.no_grad()
def greedy(model: PreTrainedModel, ids: list[int], count: int) -> list[int]:
    """Greedy continuation of a text prompt by the model's own ``generate``."""
    row = torch.tensor([ids])
    generated = model.generate(
        input_ids=row, attention_mask=torch.ones_like(row), do_sample=False, max_new_tokens=count
    )
    return generated[0, len(ids) :].tolist()


@torch.no_grad()
def recomputed(
    model: PreTrainedModel, head: list[int], chunks: Sequence[list[int]], tail: list[int], count: int
) -> torch.Tensor:
    """EPIC over text, step by step: chunks alone at their places, then the first ``count`` tokens of each, one token
    after the other, over a cache that is cut to what stands before it; each replaces the entry that was there."""
    alone = [DynamicCache(config=model.config.get_text_config()) for _ in range(1 + len(chunks))]
    again: list[int] = []
    row: list[int] = []
    for number, (part, cache) in enumerate(zip([head, *chunks], alone, strict=True)):
        _run(model, part, len(row), cache)
        again += range(len(row), len(row) + min(count, len(part))) if number else []
        row += part
    layers = range(len(alone[0].layers))
    keys = [torch.cat([cache.layers[i].keys for cache in alone], dim=2) for i in layers]
    values = [torch.cat([cache.layers[i].values for cache in alone], dim=2) for i in layers]
    for place in again:
        cache = _cut(model, keys, values, place)
        _run(model, row[place : place + 1], place, cache)
        for i in layers:
            keys[i][:, :, place] = cache.layers[i].keys[:, :, place]
            values[i][:, :, place] = cache.layers[i].values[:, :, place]
    return _run(model, tail, len(row), _cut(model, keys, values, len(row)))[0, -1].float()


def _cut(model: PreTrainedModel, keys: list[torch.Tensor], values: list[torch.Tensor], length: int) -> DynamicCache:
    cache = DynamicCache(config=model.config.get_text_config())
    for layer, (key, value) in enumerate(zip(keys, values, strict=True)):
        cache.update(key[:, :, :length].clone(), value[:, :, :length].clone(), layer)
    return cache


def _run(model: PreTrainedModel, ids: list[int], start: int, cache: DynamicCache) -> Any:
    places = _places(model, Chunk(ids)) + start
    return model(
        input_ids=torch.tensor([ids]), position_ids=batched(model, places), past_key_values=cache, use_cache=True
    ).logits


def _places(model: PreTrainedModel, chunk: Chunk) -> torch.Tensor:
    if not chunk.ids:
        return positions_of(model, [0], [])[:, :0]
    if model.config.model_type in _TEXT:
        return torch.arange(len(chunk.ids))[None]
    return positions_of(model, chunk.ids, [chunk.grid])


def _span(model: PreTrainedModel, chunk: Chunk) -> int:
    """By how much a chunk advances what follows it: the position of a text token behind it."""
    return int(_places(model, Chunk([*chunk.ids, 0], chunk.grid))[0, -1])
