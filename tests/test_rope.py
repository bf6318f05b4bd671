"""Laws of the rotary algebra, and its agreement with the models' own operators."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from qvpic_rag.rope import Rotary, request_positions, rotate
from tests.matrix import families
from tests.serve import KEY

AXES = st.sampled_from([1, 3])
LAYOUT = st.booleans()


class _Angles(nn.Module):
    """Plain rotary angles; with three axes channel c follows axis c % 3."""

    def __init__(self, pairs: int, axes: int, interleaved: bool) -> None:
        super().__init__()
        self.frequencies = 50.0 ** -(torch.arange(pairs) / pairs)
        self.axes, self.interleaved = axes, interleaved

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        ids = position_ids if self.axes == 3 else position_ids[None]
        angle = torch.stack([ids[c % self.axes].float() * f for c, f in enumerate(self.frequencies)], dim=-1)
        angle = angle.repeat_interleave(2, dim=-1) if self.interleaved else torch.cat([angle, angle], dim=-1)
        return angle.cos(), angle.sin()


def _rotary(axes: int, interleaved: bool) -> Rotary:
    return Rotary(_Angles(4, axes, interleaved), axes, interleaved)


def _turn(keys: Tensor, rotary: Rotary, positions: Tensor) -> Tensor:
    return rotate(keys, *rotary.angles(positions), interleaved=rotary.interleaved)


def _keys(tokens: int, seed: int) -> Tensor:
    return torch.randn(2, 3, tokens, 12, generator=torch.Generator().manual_seed(seed))


@given(axes=AXES, interleaved=LAYOUT, tokens=st.integers(1, 9), seed=st.integers(0, 999))
def test_identity(axes: int, interleaved: bool, tokens: int, seed: int) -> None:
    keys = _keys(tokens, seed)
    assert torch.equal(_turn(keys, _rotary(axes, interleaved), torch.zeros(axes, tokens, dtype=torch.long)), keys)


@given(axes=AXES, interleaved=LAYOUT, first=st.integers(0, 500), second=st.integers(0, 500), seed=st.integers(0, 999))
def test_composition(axes: int, interleaved: bool, first: int, second: int, seed: int) -> None:
    keys, rotary = _keys(5, seed), _rotary(axes, interleaved)
    base = torch.arange(axes * 5).view(axes, 5)
    twice = _turn(_turn(keys, rotary, base + first), rotary, torch.full((axes, 5), second))
    torch.testing.assert_close(twice, _turn(keys, rotary, base + first + second), atol=2e-4, rtol=0)


@given(axes=AXES, interleaved=LAYOUT, at=st.integers(0, 500), seed=st.integers(0, 999))
def test_inverse(axes: int, interleaved: bool, at: int, seed: int) -> None:
    keys, rotary = _keys(4, seed), _rotary(axes, interleaved)
    positions = torch.full((axes, 4), at)
    torch.testing.assert_close(_turn(_turn(keys, rotary, positions), rotary, -positions), keys, atol=2e-4, rtol=0)


@given(axes=AXES, interleaved=LAYOUT, seed=st.integers(0, 999))
def test_channels_beyond_the_rotary_part_pass_through(axes: int, interleaved: bool, seed: int) -> None:
    keys = _keys(4, seed)
    turned = _turn(keys, _rotary(axes, interleaved), torch.arange(axes * 4).view(axes, 4) + 1)
    assert torch.equal(turned[..., 8:], keys[..., 8:])
    norms = [t[..., :8].norm(dim=-1) for t in (turned, keys)]
    torch.testing.assert_close(*norms)


@settings(max_examples=30)
@given(dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]), seed=st.integers(0, 999))
def test_rotation_is_rounded_once(dtype: torch.dtype, seed: int) -> None:
    keys, rotary = _keys(6, seed).to(dtype), _rotary(3, True)
    positions = torch.randint(0, 3000, (3, 6), generator=torch.Generator().manual_seed(seed))
    exact = _turn(keys.float(), rotary, positions)
    out = torch.full((2, 3, 9, 12), float("nan"), dtype=dtype)
    rotate(keys, *rotary.angles(positions), interleaved=True, out=out[:, :, 2:8])
    assert torch.equal(out[:, :, 2:8], exact.to(dtype))
    assert out[:, :, :2].isnan().all()
    assert out[:, :, 8:].isnan().all()


@families()
def test_agrees_with_the_models_own_operator(family: str, tiny_model: Callable[..., Any]) -> None:
    text = tiny_model(family).model.language_model
    axes = 1 if family.startswith("llava") else 3
    rotary = Rotary(text.rotary_emb, axes, family.startswith("glm"))
    positions = torch.randint(0, 400, (axes, 7), generator=torch.Generator().manual_seed(0))
    head_dim = text.layers[0].self_attn.head_dim
    keys = torch.randn(1, 2, 7, head_dim, generator=torch.Generator().manual_seed(1))
    cos, sin = text.rotary_emb(keys, positions[:, None] if axes == 3 else positions)
    apply = sys.modules[type(text.layers[0].self_attn).__module__].apply_rotary_pos_emb
    expected = apply(keys, keys, cos, sin)[1]
    torch.testing.assert_close(_turn(keys, rotary, positions), expected, atol=1e-6, rtol=0)


def test_the_next_block_starts_after_the_span_not_after_the_tokens() -> None:
    from qvpic_rag.records import KVBlock

    nothing = torch.zeros(1, 1, 4, 2)
    image = torch.tensor([[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 0, 1]])
    block = KVBlock(nothing, nothing, torch.zeros(4, dtype=torch.long), image, 2, KEY)
    positions, following = request_positions([block, block])
    assert positions[:, 4:].tolist() == [[2, 2, 2, 2], [2, 2, 3, 3], [2, 3, 2, 3]]
    assert following == 4


def test_angles_of_no_tokens() -> None:
    cos, sin = _rotary(3, False).angles(torch.zeros(3, 0, dtype=torch.long))
    assert cos.shape == sin.shape == (0, 4)


@pytest.mark.parametrize("interleaved", [False, True])
def test_keys_are_not_changed(interleaved: bool) -> None:
    keys = _keys(3, 0)
    before = keys.clone()
    _turn(keys, _rotary(1, interleaved), torch.arange(3)[None] + 5)
    assert torch.equal(keys, before)
