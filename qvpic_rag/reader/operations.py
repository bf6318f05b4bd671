"""The reader's three fused operations in plain PyTorch: any dtype, any device.

They are what :mod:`qvpic_rag.reader.kernels` is compared with, and what runs on a GPU or without a C compiler. Both
modules have the same signatures.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

__all__ = ["attention", "rms_norm", "swiglu", "visible"]

PREFIX, PAGE, QUESTION, PADDING = range(4)


def _wide(x: Tensor) -> Tensor:
    """``x`` in at least float32, the precision that sums and exponentials need."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
    """``residual + x * rsqrt(mean(x**2) + eps) * weight``, rounded once.

    Parameters
    ----------
    x : Tensor
        ``(..., dim)``.
    weight : Tensor
        ``(dim,)``, float32.
    eps : float
        Added to the mean square.
    residual : Tensor, optional
        Shape and dtype of ``x``.

    Returns
    -------
    Tensor
        Shape and dtype of ``x``.
    """
    wide = _wide(x)
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight
    if residual is not None:
        y = y + _wide(residual)
    return y.to(x.dtype)


def swiglu(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up`` of ``(..., 2 * dim)``, gate first: ``(..., dim)``, rounded once."""
    gate, up = _wide(gate_up).chunk(2, -1)
    return (F.silu(gate) * up).to(gate_up.dtype)


def visible(groups: Tensor) -> Tensor:
    """Which keys each query of a text sequence may see.

    Parameters
    ----------
    groups : Tensor
        int32 ``(1 or batch, length, 2)``: ``(own, kind)`` of each token. Kind 0 is the prefix, seen by all that
        follows; 1 a page; 2 a question, which sees the prefix, all pages and itself; 3 padding, seen by nobody. Pages
        with ``own >= 0`` see all earlier pages; those with ``own < 0`` only tokens of the same ``own``, as when each
        page is compiled alone.

    Returns
    -------
    Tensor
        bool ``(1 or batch, query, key)``; the diagonal is always True, so that no row is empty.
    """
    own, kind = groups.unbind(-1)
    same = own[:, :, None] == own[:, None, :]
    query, key = kind[:, :, None], kind[:, None, :]
    whole = (own >= 0)[:, :, None]
    pages = (key == PAGE) & ((query == QUESTION) | ((query == PAGE) & (same | whole)))
    questions = (key == QUESTION) & (query == QUESTION) & same
    length = kind.shape[1]
    allowed = ((key == PREFIX) | pages | questions).tril()
    return allowed | torch.eye(length, dtype=torch.bool, device=groups.device)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotate the first ``rotary`` dims of ``x (batch, heads, length, head_dim)``; the rest passes."""
    rotary = cos.shape[-1]
    turned, rest = _wide(x[..., :rotary]), x[..., rotary:]
    if interleaved:
        partner = torch.stack((-turned[..., 1::2], turned[..., ::2]), -1).flatten(-2)
    else:
        partner = torch.cat((-turned[..., rotary // 2 :], turned[..., : rotary // 2]), -1)
    turned = turned * cos[:, None] + partner * sin[:, None]
    return torch.cat((turned.to(x.dtype), rest), -1)


def attention(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    groups: Tensor | None,
    heads: int,
    kv_heads: int,
    interleaved: bool,
) -> Tensor:
    """Rotary grouped-query attention, bidirectional or with the text mask of :func:`visible`.

    Parameters
    ----------
    qkv : Tensor
        ``(batch, length, (heads + 2 * kv_heads) * head_dim)``: query heads, then key heads, then value heads.
    cos, sin : Tensor
        float32 ``(1 or batch, length, rotary)`` with ``rotary <= head_dim`` even: angles of the first ``rotary`` dims.
    groups : Tensor or None
        int32 ``(1 or batch, length, 2)``, see :func:`visible`. None: every token sees every token.
    heads, kv_heads : int
        Query head ``h`` uses key head ``h // (heads // kv_heads)``.
    interleaved : bool
        Pairs ``(0, 1), (2, 3) ...`` are rotated (GLM) instead of ``(i, i + rotary / 2)``.

    Returns
    -------
    Tensor
        ``(batch, length, heads * head_dim)``, dtype of ``qkv``.
    """
    batch, length, width = qkv.shape
    head_dim = width // (heads + 2 * kv_heads)
    q, k, v = torch.split(qkv.view(batch, length, -1, head_dim).transpose(1, 2), [heads, kv_heads, kv_heads], dim=1)
    q, k = _rotate(q, cos, sin, interleaved), _rotate(k, cos, sin, interleaved)
    k, v = (x.repeat_interleave(heads // kv_heads, 1) for x in (k, v))
    mask = None if groups is None else visible(groups)[:, None]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=head_dim**-0.5)
    return out.transpose(1, 2).reshape(batch, length, heads * head_dim)
