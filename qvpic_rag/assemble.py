"""Linking: blocks in request order to a transformers cache with rotated keys, and the positions that go with it.

``K = R(K_unrotated, P_i(q))`` for keys; values are only placed. Both are written into one buffer that also has room for
question and answer. Packed blocks go to the device as they are, and are unpacked in the pass that writes the buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qvpic_rag.cache import BufferCache
from qvpic_rag.models import LanguageModel
from qvpic_rag.packing import Packed, in_float32
from qvpic_rag.records import KVBlock
from qvpic_rag.rope import request_positions, rotate

__all__ = ["LinkedContext", "assemble"]


@dataclass(frozen=True, eq=False)
class LinkedContext:
    """A request's context, ready for the question.

    Attributes
    ----------
    cache : BufferCache
        Rotated keys and values of all blocks; the request writes on into it, so it serves one request.
    token_ids : Tensor
        int64 ``[tokens]``.
    positions : Tensor
        int64 ``[axes, tokens]``.
    next_position : int
        Where the question starts. Under M-RoPE this is less than the number of tokens.
    nbytes : int
        Bytes of the context's keys and values in the cache, however they are stored.
    """

    cache: BufferCache
    token_ids: Tensor
    positions: Tensor
    next_position: int
    nbytes: int

    @property
    def tokens(self) -> int:
        """Number of context tokens."""
        return int(self.token_ids.shape[0])


def assemble(model: LanguageModel, blocks: Sequence[KVBlock], *, query_tokens: int, new_tokens: int) -> LinkedContext:
    """Link ``blocks`` (the prefix first, then pages in request order; none at all for a request without pages).

    ``query_tokens`` and ``new_tokens`` reserve room for the question and the answer. Blocks are only read.
    """
    tokens = sum(block.tokens for block in blocks)
    cache = BufferCache(
        model.layers,
        model.kv_heads,
        tokens + query_tokens + new_tokens,
        model.head_dim,
        dtype=model.dtype,
        device=model.device,
    )
    if not blocks:
        empty = torch.empty(0, dtype=torch.long)
        return LinkedContext(cache, empty, empty.expand(model.axes, 0), 0, 0)
    positions, next_position = request_positions(blocks)
    with model.lock:
        cos, sin = model.rotary.angles(positions.to(model.device), horizon=next_position + query_tokens - 1)
    start = 0
    for block in blocks:
        part = slice(start, start + block.tokens)
        keys = block.keys.to(model.device, non_blocking=True)
        rotate(keys, cos[part], sin[part], interleaved=model.rotary.interleaved, out=cache.key_buffer[:, :, part])
        _place(block.values, cache.value_buffer[:, :, part])
        start += block.tokens
    cache.declare(tokens)
    token_ids = torch.cat([block.token_ids for block in blocks])
    return LinkedContext(cache, token_ids, positions, next_position, 2 * cache.key_buffer[:, :, :tokens].nbytes)


def _place(values: Tensor | Packed, out: Tensor) -> None:
    if isinstance(values, Packed):
        for layers, part in in_float32(values.to(out.device, non_blocking=True)):
            out[layers] = part
    else:
        out.copy_(values, non_blocking=True)
