"""Running some tokens of a linked context again: a cache that writes at given places, and its mask."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from qvpic_rag.cache import BufferCache

__all__ = ["ScatterCache", "rows_mask"]


class _ScatterLayer(DynamicLayer):  # type: ignore[misc]
    """Writes keys and values ``[1, kv_heads, places, head_dim]`` at ``places`` and hands out the whole context."""

    def __init__(self, keys: Tensor, values: Tensor, places: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self._places = keys, values, places
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Replace what is cached at the places; return views of the whole context."""
        self.keys[:, :, self._places] = key_states
        self.values[:, :, self._places] = value_states
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Tokens before the first place that is written: none is told from the others, the mask does that."""
        return 0


class ScatterCache(Cache):  # type: ignore[misc]
    """Over the first ``tokens`` tokens of ``cache``; ``places`` int64 ``[places]`` are overwritten."""

    def __init__(self, cache: BufferCache, places: Tensor, tokens: int) -> None:
        where = places.to(cache.key_buffer.device)
        keys, values = cache.key_buffer[:, None, :, :tokens], cache.value_buffer[:, None, :, :tokens]
        super().__init__(layers=[_ScatterLayer(keys[i], values[i], where) for i in range(len(keys))])


def rows_mask(places: Tensor, tokens: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Additive attention mask ``[1, 1, places, tokens]``: each place sees itself and everything before it."""
    hidden = torch.arange(tokens)[None] > places[:, None]
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, torch.finfo(dtype).min)
    return mask[None, None].to(device)
