"""Storage formats of a block: ``native`` (the model's dtype), ``int8`` and ``int4``.

A number is ``code * scale`` (int8, symmetric) or ``low + code * scale`` (int4, two codes in a byte). Before rotary
embedding the large values of a key stay in few channels, so each channel of a key has parameters of its own, for 64
tokens at a time; rotation would spread them over the pair. Values have no such channels and have parameters per token.

Parameters are bfloat16, which has the range of float32: they cannot overflow. Codes are computed against the rounded
parameters. A code times a scale has at most 15 significant bits and so is exact in float32: whether a machine fuses the
multiplication with the addition changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qvpic_rag.errors import CompileError
from qvpic_rag.records import KVBlock

__all__ = ["Packed", "in_float32", "pack", "storage_of"]

_GROUP = {"keys": 64, "values": 1}
"""Tokens that share parameters."""

_SHARING = {"keys": (3,), "values": (3, 4)}
"""Dimensions of ``[layers, kv_heads, groups, tokens of a group, head_dim]`` that share parameters."""

_LEVELS = {"int8": 127, "int4": 15}
_SMALLEST = torch.finfo(torch.bfloat16).tiny
_SCRATCH = {"cpu": 1 << 20}  # bytes per thread: what a core's own cache holds
_SCRATCH_ELSEWHERE = 1 << 28  # an accelerator wants few launches


@dataclass(frozen=True, eq=False)
class Packed:
    """Keys or values in a smaller form than the model's.

    Attributes
    ----------
    codes : Tensor
        int8 ``[layers, kv_heads, tokens, head_dim]``, or uint8 ``[layers, kv_heads, tokens, ceil(head_dim / 2)]`` whose
        low halves are the first channels and whose high halves are the others.
    scales : Tensor
        bfloat16 ``[layers, kv_heads, ceil(tokens / 64), head_dim]`` of keys, ``[layers, kv_heads, tokens, 1]`` of
        values.
    lows : Tensor | None
        What code 0 means, as ``scales``; None for int8, where it is 0.
    shape : torch.Size
        ``[layers, kv_heads, tokens, head_dim]`` of what is packed.
    dtype : torch.dtype
        The model's.
    kind : str
        ``keys`` or ``values``.
    """

    codes: Tensor
    scales: Tensor
    lows: Tensor | None
    shape: torch.Size
    dtype: torch.dtype
    kind: str

    @property
    def storage(self) -> str:
        """``int8`` or ``int4``."""
        return "int8" if self.lows is None else "int4"

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.codes.device

    @property
    def nbytes(self) -> int:
        """Bytes of codes and parameters."""
        return int(self.codes.nbytes + self.scales.nbytes + (0 if self.lows is None else self.lows.nbytes))

    def to(self, device: torch.device, *, non_blocking: bool = False) -> Packed:
        """The same on another device, moved in its packed form."""

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=non_blocking)

        lows = None if self.lows is None else moved(self.lows)
        return replace(self, codes=moved(self.codes), scales=moved(self.scales), lows=lows)

    def unpack(self, layers: slice, out: Tensor) -> None:
        """Write ``layers`` into ``out``, float32 ``[layers of the slice, kv_heads, tokens, head_dim]``."""
        codes = self.codes[layers]
        if self.lows is None:
            out.copy_(codes)
        else:
            half = codes.shape[-1]
            out[..., :half] = codes & 15
            out[..., half:] = (codes >> 4)[..., : out.shape[-1] - half]
        scales = self.scales[layers].float()
        lows = None if self.lows is None else self.lows[layers].float()
        for numbers, group in _grouped(out, _GROUP[self.kind]):
            group.mul_(scales[:, :, numbers, None])
            if lows is not None:
                group.add_(lows[:, :, numbers, None])


def storage_of(tensor: Tensor | Packed) -> str:
    """``native``, ``int8`` or ``int4``."""
    return tensor.storage if isinstance(tensor, Packed) else "native"


def pack(block: KVBlock) -> KVBlock:
    """A compiled block in the form that its key's ``storage`` asks for; the same object where that is ``native``.

    Raises
    ------
    CompileError
        Keys or values are not finite, or so large that their parameters are not.
    """
    storage = block.key.storage
    if storage == "native" or storage_of(block.keys) == storage == storage_of(block.values):
        return block
    if storage not in _LEVELS or isinstance(block.keys, Packed) or isinstance(block.values, Packed):
        found = f"{storage_of(block.keys)} keys and {storage_of(block.values)} values"
        raise CompileError(f"A block of {found} cannot become {storage!r}; pack what compile_pages returned.")
    return replace(block, keys=_packed(block.keys, "keys", storage), values=_packed(block.values, "values", storage))


def in_float32(tensor: Tensor | Packed) -> Iterator[tuple[slice, Tensor]]:
    """Keys or values ``[layers, kv_heads, tokens, head_dim]`` in float32, as many layers at a time as stay in a cache.

    Yields the layers' slice and a buffer ``[layers of the slice, kv_heads, tokens, head_dim]`` that the caller may
    change; the next step writes over it. Whole pages at once would go through the memory again in every operation.
    """
    layers, heads, tokens, head_dim = tensor.shape
    each = 4 * heads * tokens * head_dim
    room = _SCRATCH["cpu"] * torch.get_num_threads() if tensor.device.type == "cpu" else _SCRATCH_ELSEWHERE
    step = min(layers, max(1, room // max(1, each)))
    # An even width, so that neighbouring channels are complex numbers for whoever rotates them.
    shape = (step, heads, tokens, head_dim + head_dim % 2)
    buffer = torch.empty(shape, dtype=torch.float32, device=tensor.device)[..., :head_dim]
    for start in range(0, layers, step):
        chosen = slice(start, min(layers, start + step))
        part = buffer[: chosen.stop - start]
        if isinstance(tensor, Packed):
            tensor.unpack(chosen, part)
        else:
            part.copy_(tensor[chosen])
        yield chosen, part


def _grouped(x: Tensor, size: int) -> Iterator[tuple[slice, Tensor]]:
    """Numbers of the groups and a view ``[layers, kv_heads, groups, tokens of a group, head_dim]`` of them.

    First the whole groups, then the shorter last one, where there are such.
    """
    layers, heads, tokens, head_dim = x.shape
    whole = tokens // size
    if whole:
        yield slice(0, whole), x[:, :, : whole * size].view(layers, heads, whole, size, head_dim)
    if whole * size < tokens:
        yield slice(whole, whole + 1), x[:, :, None, whole * size :]


def _packed(tensor: Tensor, kind: str, storage: str) -> Packed:
    parts = [_encode(x, kind, storage) for _, x in in_float32(tensor)]
    codes, scales, lows = zip(*parts, strict=True)
    return Packed(
        torch.cat(codes), torch.cat(scales), torch.cat(lows) if storage == "int4" else None,
        tensor.shape, tensor.dtype, kind,
    )  # fmt: skip


def _encode(x: Tensor, kind: str, storage: str) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales and lows of some layers; ``x`` is used up."""
    all_scales, all_lows = [], []
    for _, group in _grouped(x, _GROUP[kind]):
        scale, low = _parameters(group, _SHARING[kind], storage)
        if not bool(torch.isfinite(scale).all() and torch.isfinite(low).all()):
            raise CompileError(
                f"The model's {kind} are not finite, or too large to be stored as {storage}; compile with another "
                "dtype, or with storage='native'."
            )
        group.sub_(low.float()).div_(scale.float()).round_()
        all_scales.append(scale.squeeze(3))
        all_lows.append(low.squeeze(3))
    # Nothing clips: scales are rounded up and lows down.
    codes = x.to(torch.int8) if storage == "int8" else _two_in_a_byte(x.to(torch.uint8))
    return codes, torch.cat(all_scales, dim=2), torch.cat(all_lows, dim=2)


def _parameters(group: Tensor, shared: tuple[int, ...], storage: str) -> tuple[Tensor, Tensor]:
    """Scale and low, bfloat16, with the ``shared`` dimensions of size 1."""
    levels = _LEVELS[storage]
    if storage == "int4":
        low = _rounded(group.amin(shared, keepdim=True), up=False)
        scale = (group.amax(shared, keepdim=True) - low.float()) / levels
    else:
        sizes = group.abs()
        least, most = sizes.amin(shared, keepdim=True), sizes.amax(shared, keepdim=True)
        low = torch.zeros_like(most, dtype=torch.bfloat16)
        scale = torch.where(least == most, most, most / levels)  # numbers of one size are exact as codes 1 and -1
    # Below this, processors that flush denormals would divide by zero; a group of zeros needs some scale, too.
    return _rounded(scale, up=True).clamp_(min=_SMALLEST), low


def _rounded(x: Tensor, *, up: bool) -> Tensor:
    """The nearest bfloat16 not below, or not above, float32 ``x``."""
    near = x.to(torch.bfloat16)
    limit = torch.full_like(near, float("inf") if up else float("-inf"))
    wrong = near.float() < x if up else near.float() > x
    return torch.where(wrong, torch.nextafter(near, limit), near)


def _two_in_a_byte(codes: Tensor) -> Tensor:
    half = (codes.shape[-1] + 1) // 2
    high = torch.nn.functional.pad(codes[..., half:], (0, 2 * half - codes.shape[-1]))
    return codes[..., :half] | high << 4
