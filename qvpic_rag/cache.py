"""A transformers cache over one preallocated buffer per request, so that appending a token copies nothing else.

``DynamicCache`` concatenates: each decode step would copy the whole context. Here every layer writes in place and
hands attention a view.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from qvpic_rag import memory
from qvpic_rag.errors import GenerationError

__all__ = ["CACHE_ARGUMENT", "BufferCache"]

CACHE_ARGUMENT = "past_key_values"
"""Name of the forward and generate argument that takes a cache (transformers renames it after 5.23)."""


class _BufferLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's part of the buffer: keys and values ``[1, kv_heads, capacity, head_dim]``, ``length`` of it used."""

    def __init__(self, keys: Tensor, values: Tensor, length: int) -> None:
        super().__init__()
        self._key_buffer, self._value_buffer = keys, values
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True
        self._expose(length)

    def _expose(self, length: int) -> None:
        self._length = length
        self.keys = self._key_buffer[:, :, :length]
        self.values = self._value_buffer[:, :, :length]

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append ``[1, kv_heads, tokens, head_dim]`` in place; return views of everything so far."""
        start, end = self._length, self._length + key_states.shape[-2]
        if end > self._key_buffer.shape[-2]:
            raise GenerationError(
                f"The request needs {end} cache positions and reserved {self._key_buffer.shape[-2]}; this is a defect, "
                "please report it."
            )
        self._key_buffer[:, :, start:end] = key_states
        self._value_buffer[:, :, start:end] = value_states
        self._expose(end)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Tokens in the layer."""
        return self._length


class BufferCache(Cache):  # type: ignore[misc]
    """Keys and values of all layers, ``[layers, kv_heads, capacity, head_dim]``.

    Attributes
    ----------
    key_buffer, value_buffer : Tensor
        Written by :mod:`qvpic_rag.assemble` for the context, by the model for question and answer.
    """

    def __init__(
        self, layers: int, kv_heads: int, capacity: int, head_dim: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (layers, kv_heads, capacity, head_dim)
        self.key_buffer = memory.empty(shape, dtype=dtype, device=device)
        self.value_buffer = memory.empty(shape, dtype=dtype, device=device)
        super().__init__(layers=[self._layer(i, 0) for i in range(layers)])

    def _layer(self, index: int, length: int) -> _BufferLayer:
        return _BufferLayer(self.key_buffer[index, None], self.value_buffer[index, None], length)

    def declare(self, length: int) -> None:
        """Say that the first ``length`` positions of every layer are filled."""
        for layer in self.layers:
            layer._expose(length)
