"""Low-rank updates of the language model: trained, shipped, and added to its weights when the model is assembled."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["Lora"]


class Lora(torch.nn.Module):
    """Low-rank updates ``up @ down`` of the fused query-key-value and the output projections of all layers.

    Attributes
    ----------
    qkv_down, o_down : Parameter
        float32 ``(layers, rank, inputs)``.
    qkv_up, o_up : Parameter
        float32 ``(layers, outputs, rank)``; zero at first, so that the model starts as it was.
    """

    def __init__(self, config: Any, rank: int, *, seed: int) -> None:
        super().__init__()
        hidden, head = config.hidden_size, config.hidden_size // config.num_attention_heads
        layers = config.num_hidden_layers
        outputs = (config.num_attention_heads + 2 * config.num_key_value_heads) * head
        self.rank = rank
        noise = torch.Generator().manual_seed(seed)
        self.qkv_down, self.o_down = (
            torch.nn.Parameter(torch.randn(layers, rank, hidden, generator=noise) * hidden**-0.5) for _ in range(2)
        )
        self.qkv_up = torch.nn.Parameter(torch.zeros(layers, outputs, rank))
        self.o_up = torch.nn.Parameter(torch.zeros(layers, hidden, rank))

    def cast(self, dtype: torch.dtype) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Per layer ``(qkv_down, qkv_up, o_down, o_up)`` in a dtype."""
        parts = (self.qkv_down, self.qkv_up, self.o_down, self.o_up)
        return list(zip(*(part.to(dtype).unbind(0) for part in parts), strict=True))

    def updates(self, config: Any) -> list[dict[str, Tensor]]:
        """Per layer what is added to the weights ``q_proj``, ``k_proj``, ``v_proj`` and ``o_proj``, float32."""
        head = config.hidden_size // config.num_attention_heads
        sizes = [config.num_attention_heads * head, *[config.num_key_value_heads * head] * 2]
        found = []
        for qkv_down, qkv_up, o_down, o_up in self.cast(torch.float32):
            q, k, v = torch.split(qkv_up @ qkv_down, sizes)
            found.append({"q_proj": q, "k_proj": k, "v_proj": v, "o_proj": o_up @ o_down})
        return found
