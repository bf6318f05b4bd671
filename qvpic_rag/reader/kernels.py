"""The reader's three fused operations in C, for training in bfloat16 on a CPU.

The C code (``kernels.c``) is compiled on first use with the system compiler and kept in the user's cache folder.
:mod:`qvpic_rag.reader.operations` has the same functions in plain PyTorch, with their full description.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from qvpic_rag.errors import ConfigError

__all__ = ["attention", "available", "rms_norm", "swiglu"]

_SOURCE = Path(__file__).with_name("kernels.c")
# Not -ffast-math: it drops NaN, and linking with it makes the whole process flush denormals to zero.
_FLAGS = ("-std=gnu11", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC")
_QUERY_BLOCK = 128  # queries of a causal block; smaller skips more of the upper triangle and has smaller matmuls
_TILE_BYTES = 4 << 20  # scores of one tile without a mask; they stay in the cache from matmul to softmax to matmul

_POINTER, _LONG, _FLOAT, _INT = ctypes.c_void_p, ctypes.c_long, ctypes.c_float, ctypes.c_int
_SIGNATURES = {
    "rms_norm_forward": [_POINTER] * 3 + [_FLOAT] + [_POINTER] * 2 + [_LONG] * 2,
    "rms_norm_backward": [_POINTER] * 6 + [_LONG] * 2 + [_INT],
    "swiglu_forward": [_POINTER] * 2 + [_LONG] * 2,
    "swiglu_backward": [_POINTER] * 3 + [_LONG] * 2,
    "move_heads": [_POINTER] * 4 + [_LONG] * 8 + [_INT] * 2,
    "softmax_forward": [_POINTER] * 2 + [_FLOAT] + [_LONG] * 6,
    "softmax_backward": [_POINTER] * 2 + [_FLOAT] + [_LONG] * 2,
    "accumulate": [_POINTER] * 2 + [_LONG] * 4,
}


def _compiler() -> list[str]:
    """The C compiler's command: ``$CC``, else ``cc`` or ``gcc``."""
    try:
        command = shlex.split(os.environ.get("CC", ""))
    except ValueError as error:
        raise ConfigError(f"the variable CC is no command ({error}); name a C compiler in it") from error
    for candidate in [command] if command else [["cc"], ["gcc"]]:
        if shutil.which(candidate[0]):
            return candidate
    raise ConfigError("no C compiler was found for the reader's kernels: install gcc, or name one in the variable CC")


def _processor() -> str:
    """What ``-march=native`` depends on: the model and flags that the processor reports."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    return "\n".join(line for line in lines if line.split("\t")[0] in ("model name", "flags", "Features", "CPU part"))


def _compile(target: Path) -> None:
    """Compile ``kernels.c`` to ``target``, which appears whole or not at all."""
    command = _compiler()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            built = Path(folder) / target.name
            arguments = [*command, *_FLAGS, str(_SOURCE), "-o", str(built), "-lm"]
            done = subprocess.run(arguments, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ConfigError(
                    f"{command[0]} could not compile the reader's kernels: install a C compiler with OpenMP such as "
                    f"gcc, or name one in the variable CC; it said: {done.stderr.strip()[-500:]}"
                )
            built.replace(target)
    except OSError as error:
        raise ConfigError(
            f"the reader's kernels could not be written to {target.parent}: name a writable folder in the variable "
            f"XDG_CACHE_HOME ({error})"
        ) from error


@cache
def _library() -> ctypes.CDLL:
    """The compiled kernels, from the cache folder if they are there."""
    identity = "\n".join((_SOURCE.read_text(encoding="utf-8"), *_FLAGS, _processor()))
    name = f"kernels-{hashlib.sha256(identity.encode()).hexdigest()}.so"
    target = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qvpic-rag" / name
    if not target.exists():
        _compile(target)
    try:
        # torch is loaded already, so that its OpenMP library is found first and both share one pool of threads.
        library = ctypes.CDLL(str(target))
    except OSError as error:
        raise ConfigError(
            f"the reader's compiled kernels {target} cannot be loaded: delete the file and install gcc ({error})"
        ) from error
    for function, arguments in _SIGNATURES.items():
        getattr(library, function).argtypes = arguments
        getattr(library, function).restype = None
    return library


def available() -> bool:
    """Whether the kernels can be used here: they are compiled, or a C compiler can do it now."""
    try:
        _library()
    except ConfigError:
        return False
    return True


def _require(what: str, x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` made contiguous; its memory is handed to C, which could not tell another dtype or device."""
    if x.dtype != dtype or x.device.type != "cpu":
        raise ConfigError(f"{what} must be {dtype} on the CPU, not {x.dtype} on {x.device}: use reader.operations")
    return x.contiguous()


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None) -> Tensor:
        dim = x.shape[-1]
        rows = x.numel() // dim
        y = torch.empty_like(x)
        inverse_rms = torch.empty(rows, dtype=torch.float32)
        added = None if residual is None else residual.data_ptr()
        _library().rms_norm_forward(
            x.data_ptr(), added, weight.data_ptr(), eps, y.data_ptr(), inverse_rms.data_ptr(), rows, dim
        )
        ctx.save_for_backward(x, weight, inverse_rms)
        ctx.has_residual = residual is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, inverse_rms = ctx.saved_tensors
        grad = grad.contiguous()
        threads = torch.get_num_threads()
        grad_x, parts = torch.empty_like(x), weight.new_zeros(threads, x.shape[-1])
        tensors = (grad, x, weight, inverse_rms, grad_x, parts)
        _library().rms_norm_backward(*(t.data_ptr() for t in tensors), inverse_rms.numel(), x.shape[-1], threads)
        return grad_x, parts.sum(0), None, grad if ctx.has_residual else None


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
    """``residual + x * rsqrt(mean(x**2) + eps) * weight``, computed in float32 and rounded once.

    Parameters
    ----------
    x : Tensor
        bfloat16 ``(..., dim)``.
    weight : Tensor
        float32 ``(dim,)``.
    eps : float
        Added to the mean square.
    residual : Tensor, optional
        bfloat16, shape of ``x``.

    Returns
    -------
    Tensor
        bfloat16, shape of ``x``.

    Raises
    ------
    ConfigError
        A tensor has another dtype, device or shape, or there is no C compiler.
    """
    x, weight = _require("x", x, torch.bfloat16), _require("weight", weight, torch.float32)
    if residual is not None:
        residual = _require("residual", residual, torch.bfloat16)
    if weight.shape != x.shape[-1:] or (residual is not None and residual.shape != x.shape):
        raise ConfigError("rms_norm needs a weight of (dim,) and a residual of the shape of x")
    y: Tensor = _RmsNorm.apply(x, weight, eps, residual)  # type: ignore[no-untyped-call]
    return y


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        dim = gate_up.shape[-1] // 2
        y = gate_up.new_empty(*gate_up.shape[:-1], dim)
        _library().swiglu_forward(gate_up.data_ptr(), y.data_ptr(), y.numel() // dim, dim)
        ctx.save_for_backward(gate_up)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        grad, out = grad.contiguous(), torch.empty_like(gate_up)
        dim = grad.shape[-1]
        _library().swiglu_backward(grad.data_ptr(), gate_up.data_ptr(), out.data_ptr(), grad.numel() // dim, dim)
        return out


def swiglu(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up`` of bfloat16 ``(..., 2 * dim)``, gate first: ``(..., dim)``, rounded once.

    Raises
    ------
    ConfigError
        ``gate_up`` has another dtype, device or an odd last dimension, or there is no C compiler.
    """
    gate_up = _require("gate_up", gate_up, torch.bfloat16)
    if gate_up.shape[-1] % 2:
        raise ConfigError("swiglu needs gate and up of one size, so an even last dimension")
    y: Tensor = _SwiGlu.apply(gate_up)  # type: ignore[no-untyped-call]
    return y


class _Layout:
    """Sizes of one attention call, and the moves between rows and heads.

    Queries lie in blocks of positions, each ``(batch, heads, positions, head_dim)``: a causal block then needs only
    the keys up to its end, and its queries are dense for :func:`torch.bmm`. Query heads of a key head are one matrix.
    """

    def __init__(
        self, qkv: Tensor, cos: Tensor, sin: Tensor, groups: Tensor | None, heads: int, kv_heads: int, interleaved: bool
    ) -> None:
        self.batch, self.length, self.width = qkv.shape
        self.heads, self.kv_heads = heads, kv_heads
        self.dim = self.width // (heads + 2 * kv_heads)
        self.scale = self.dim**-0.5
        # Both dims of a pair turn by one angle: C reads it once, without gaps.
        one_of_two = slice(None, None, 2) if interleaved else slice(cos.shape[-1] // 2)
        self.cos, self.sin = (x[..., one_of_two].contiguous() for x in (cos, sin))
        self.groups = groups
        self.interleaved = interleaved
        self.block = self.length if groups is None else min(_QUERY_BLOCK, self.length)

    def move(self, rows: Tensor, first: int, dense: Tensor, count: int, *, rotated: bool, back: bool = False) -> None:
        """Copy ``count`` heads, from head ``first`` of ``rows`` on, to the dense layout, or ``back`` to the rows."""
        half = self.cos.shape[-1]
        _library().move_heads(
            rows.data_ptr() + first * self.dim * rows.element_size(),
            dense.data_ptr(),
            self.cos.data_ptr(),
            self.sin.data_ptr(),
            self.batch,
            self.length,
            rows.shape[-1],
            count,
            self.dim,
            self.block if first == 0 else self.length,  # only queries lie in blocks, and they come first
            half if rotated else 0,
            half * self.length if self.cos.shape[0] > 1 else 0,
            self.interleaved,
            back,
        )

    def tiles(self) -> list[tuple[slice, int, int]]:
        """``(sequences, first query, last query + 1)`` of the tiles that make up the scores, in memory order."""
        if self.groups is not None:
            starts = range(0, self.length, self.block)
            return [(slice(0, self.batch), start, min(start + self.block, self.length)) for start in starts]
        step = max(1, _TILE_BYTES // (2 * self.heads * self.length**2))
        return [(slice(i, min(i + step, self.batch)), 0, self.length) for i in range(0, self.batch, step)]

    def queries(self, x: Tensor, tile: tuple[slice, int, int]) -> Tensor:
        """A tile of a tensor in query layout: ``(sequences * kv_heads, heads / kv_heads * positions, head_dim)``."""
        sequences, start, stop = tile
        count = sequences.stop - sequences.start
        offset = (self.batch * start + sequences.start * (stop - start)) * self.heads * self.dim
        size = count * self.heads * (stop - start) * self.dim
        return x.view(-1)[offset : offset + size].view(count * self.kv_heads, -1, self.dim)

    def keys(self, x: Tensor, tile: tuple[slice, int, int]) -> Tensor:
        """The keys or values that a tile may see: ``(sequences * kv_heads, keys, head_dim)``."""
        sequences, _, stop = tile
        return x[sequences.start * self.kv_heads : sequences.stop * self.kv_heads, :stop]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, layout: _Layout) -> Tensor:
        at, library = layout, _library()
        q = qkv.new_empty(at.batch * at.heads * at.length * at.dim)
        k, v = (qkv.new_empty(at.batch * at.kv_heads, at.length, at.dim) for _ in range(2))
        at.move(qkv, 0, q, at.heads, rotated=True)
        at.move(qkv, at.heads, k, at.kv_heads, rotated=True)
        at.move(qkv, at.heads + at.kv_heads, v, at.kv_heads, rotated=False)
        groups = None if at.groups is None else at.groups.data_ptr()
        group_stride = 0 if at.groups is None or at.groups.shape[0] == 1 else 2 * at.length
        mixed, probabilities = torch.empty_like(q), []
        for tile in at.tiles():
            sequences, start, stop = tile
            p = torch.bmm(at.queries(q, tile), at.keys(k, tile).transpose(1, 2))
            library.softmax_forward(
                p.data_ptr(),
                groups,
                at.scale,
                sequences.stop - sequences.start,
                at.heads,
                stop - start,
                stop,
                start,
                group_stride,
            )
            torch.bmm(p, at.keys(v, tile), out=at.queries(mixed, tile))
            if ctx.needs_input_grad[0]:
                probabilities.append(p)
        out = qkv.new_empty(at.batch, at.length, at.heads * at.dim)
        at.move(out, 0, mixed, at.heads, rotated=False, back=True)
        ctx.save_for_backward(q, k, v, *probabilities)
        ctx.layout = layout
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        at, library = ctx.layout, _library()
        q, k, v, *probabilities = ctx.saved_tensors
        grad_mixed, grad_q = torch.empty_like(q), torch.empty_like(q)
        at.move(grad.contiguous(), 0, grad_mixed, at.heads, rotated=False)
        causal = at.groups is not None
        # Many blocks add to one key's gradient: in bfloat16 the sum would lose what each block rounds away.
        totals = [torch.zeros(k.shape, dtype=torch.float32) if causal else torch.empty_like(k) for _ in range(2)]
        for tile, p in zip(at.tiles(), probabilities, strict=True):
            d_out = at.queries(grad_mixed, tile)
            d_scores = torch.bmm(d_out, at.keys(v, tile).transpose(1, 2))
            library.softmax_backward(d_scores.data_ptr(), p.data_ptr(), at.scale, p.shape[0] * p.shape[1], p.shape[2])
            torch.bmm(d_scores, at.keys(k, tile), out=at.queries(grad_q, tile))
            for total, left, right in zip(totals, (d_scores, p), (at.queries(q, tile), d_out), strict=True):
                if causal:
                    part = torch.bmm(left.transpose(1, 2), right)
                    library.accumulate(total.data_ptr(), part.data_ptr(), k.shape[0], at.length, part.shape[1], at.dim)
                else:
                    torch.bmm(left.transpose(1, 2), right, out=at.keys(total, tile))
        grad_k, grad_v = (total.to(torch.bfloat16) for total in totals)
        out = grad.new_empty(at.batch, at.length, at.width)
        at.move(out, 0, grad_q, at.heads, rotated=True, back=True)
        at.move(out, at.heads, grad_k, at.kv_heads, rotated=True, back=True)
        at.move(out, at.heads + at.kv_heads, grad_v, at.kv_heads, rotated=False, back=True)
        return out, None


def attention(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    groups: Tensor | None,
    heads: int,
    kv_heads: int,
    interleaved: bool,
) -> Tensor:
    """Rotary grouped-query attention, bidirectional or masked; softmax in float32.

    The probabilities are kept for the backward pass in bfloat16: ``2 * batch * heads * length**2`` bytes, about half
    of that with a mask, which is causal.

    Parameters
    ----------
    qkv : Tensor
        bfloat16 ``(batch, length, (heads + 2 * kv_heads) * head_dim)``: query, key, then value heads.
    cos, sin : Tensor
        float32 ``(1 or batch, length, rotary)`` with ``rotary <= head_dim`` even. One half is read.
    groups : Tensor or None
        int32 ``(1 or batch, length, 2)``, see :func:`qvpic_rag.reader.operations.visible`. None: no mask.
    heads, kv_heads : int
        Query head ``h`` uses key head ``h // (heads // kv_heads)``.
    interleaved : bool
        Pairs ``(0, 1), (2, 3) ...`` are rotated (GLM) instead of ``(i, i + rotary / 2)``.

    Returns
    -------
    Tensor
        bfloat16 ``(batch, length, heads * head_dim)``.

    Raises
    ------
    ConfigError
        A tensor has another dtype, device or shape, or there is no C compiler.
    """
    qkv = _require("qkv", qkv, torch.bfloat16)
    cos, sin = _require("cos", cos, torch.float32), _require("sin", sin, torch.float32)
    batch, length, width = qkv.shape
    head_dim, rest = divmod(width, heads + 2 * kv_heads)
    if rest or heads % kv_heads:
        raise ConfigError(f"attention needs rows of (heads + 2 * kv_heads) * head_dim, not {width}")
    rotary = cos.shape[-1]
    if cos.shape != sin.shape or cos.shape[:2] not in ((1, length), (batch, length)) or rotary % 2 or rotary > head_dim:
        raise ConfigError("attention needs cos and sin of (1 or batch, length, rotary), rotary even and <= head_dim")
    if groups is not None:
        groups = _require("groups", groups, torch.int32)
        if groups.shape not in ((1, length, 2), (batch, length, 2)):
            raise ConfigError("attention needs groups of (1 or batch, length, 2)")
    layout = _Layout(qkv, cos, sin, groups, heads, kv_heads, interleaved)
    out: Tensor = _Attention.apply(qkv, layout)  # type: ignore[no-untyped-call]
    return out
