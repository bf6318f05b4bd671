"""Rotary algebra: where a block's tokens stand in a request, and the rotation of unrotated keys.

The paper's re-anchoring step is ``K = R(K_unrotated, P_i(q))`` with R the model's own rotary operator. R is taken from
the model: its rotary module gives the angles (frequencies, M-RoPE sections, rope scaling), this file applies them, in
float32 with one cast at the end, to as many layers of a block at a time as stay in the processor's cache.

Two layouts of rotary pairs exist: ``half`` pairs channel ``c`` with ``c + pairs`` (Llama, Qwen), ``interleaved`` pairs
``2c`` with ``2c + 1`` (GLM). Channels beyond ``2 * pairs`` are not rotated (partial rotary).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from qvpic_rag.packing import Packed, in_float32
from qvpic_rag.records import KVBlock

__all__ = ["Rotary", "request_positions", "rotate"]


@dataclass(frozen=True)
class Rotary:
    """A model's rotary operator.

    Attributes
    ----------
    module : nn.Module
        The text model's ``rotary_emb``: ``(x, position_ids) -> (cos, sin)``.
    axes : int
        3 for M-RoPE, 1 for plain positions.
    interleaved : bool
        Layout of the rotary pairs, see the module docstring.
    """

    module: nn.Module
    axes: int
    interleaved: bool

    def angles(self, positions: Tensor, *, horizon: int | None = None) -> tuple[Tensor, Tensor]:
        """Cosines and sines, float32 ``[tokens, pairs]``, of int64 ``positions`` ``[axes, tokens]``.

        ``horizon`` is the last position that the request will reach before its first answer token. Frequencies that
        depend on the sequence's length (dynamic and long rope scaling) are then those of full prefill; the module
        keeps such state between calls, so callers hold the model's lock.
        """
        probe = torch.zeros(1, dtype=torch.float32, device=positions.device)
        tokens = positions.shape[1]
        if horizon is not None:
            positions = torch.cat([positions, positions.new_full((positions.shape[0], 1), horizon)], dim=1)
        ids = positions[:, None] if self.axes == 3 else positions[:1]
        with torch.no_grad():
            cos, sin = self.module(probe, ids)
        unique = slice(0, None, 2) if self.interleaved else slice(0, cos.shape[-1] // 2)
        return cos[0, :tokens, unique].contiguous(), sin[0, :tokens, unique].contiguous()


def rotate(keys: Tensor | Packed, cos: Tensor, sin: Tensor, *, interleaved: bool, out: Tensor | None = None) -> Tensor:
    """Rotate ``keys`` ``[layers, kv_heads, tokens, head_dim]`` by float32 angles ``[tokens, pairs]``.

    Parameters
    ----------
    keys : Tensor or Packed
        Any floating dtype, or a smaller form; not changed.
    cos, sin : Tensor
        From :meth:`Rotary.angles`.
    interleaved : bool
        Layout of the rotary pairs.
    out : Tensor, optional
        Written and returned when given (same shape; may be a strided view and of another dtype).

    Returns
    -------
    Tensor
        The rotated keys in ``out``'s dtype, or in ``keys``' when ``out`` is None.
    """
    if out is None:
        out = torch.empty(keys.shape, dtype=keys.dtype, device=keys.device)
    turn = _turn_interleaved(cos, sin) if interleaved else _turn_halves(cos, sin, keys.shape[-1])
    for layers, part in in_float32(keys):
        out[layers] = turn(part)
    return out


def _turn_interleaved(cos: Tensor, sin: Tensor) -> Callable[[Tensor], Tensor]:
    """Neighbouring channels are the parts of one complex number; rotating is multiplying, in place."""
    angles = torch.complex(cos, sin)
    pairs = cos.shape[-1]

    def turn(part: Tensor) -> Tensor:
        torch.view_as_complex(part[..., : 2 * pairs].view(*part.shape[:-1], pairs, 2)).mul_(angles)
        return part

    return turn


def _turn_halves(cos: Tensor, sin: Tensor, head_dim: int) -> Callable[[Tensor], Tensor]:
    pairs = cos.shape[-1]
    factors = torch.cat([cos, cos, cos.new_ones(cos.shape[0], head_dim - 2 * pairs)], dim=1)

    def turn(part: Tensor) -> Tensor:
        turned = part * factors
        turned[..., :pairs].addcmul_(part[..., pairs : 2 * pairs], sin, value=-1)
        turned[..., pairs : 2 * pairs].addcmul_(part[..., :pairs], sin)
        return turned

    return turn


def request_positions(blocks: Sequence[KVBlock]) -> tuple[Tensor, int]:
    """Positions of linked blocks, int64 ``[axes, tokens]``, and the position after the last of them.

    Block i starts where the spans of the blocks before it end. Under M-RoPE this is not the number of tokens before
    it: an image advances positions by ``max(t, h, w)`` of its merged grid.
    """
    parts, start = [], 0
    for block in blocks:
        parts.append(block.positions + start)
        start += block.span
    return torch.cat(parts, dim=1), start
