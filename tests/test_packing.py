"""Storage formats: error bounds, what is exact, sizes, and the rotation of packed keys against one written out here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from qvpic_rag.errors import CompileError
from qvpic_rag.packing import Packed, in_float32, pack, storage_of
from qvpic_rag.records import BlockKey, KVBlock
from qvpic_rag.rope import rotate
from tests.serve import KEY, serve

STORAGES = ["int8", "int4"]
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 140), st.integers(1, 9))


def _block(keys: Tensor, values: Tensor, storage: str) -> KVBlock:
    tokens = keys.shape[2]
    ids, positions = torch.arange(tokens), torch.arange(tokens)[None]
    return KVBlock(keys, values, ids, positions, tokens, replace(KEY, storage=storage))


def _random(shape: tuple[int, ...], dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensor:
    """Numbers with outlying channels, as keys have, of very different sizes in different layers."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    x *= torch.randn(shape[-1:], generator=generator).mul(2).exp()
    x += torch.randn(shape[-1:], generator=generator) * 5
    x *= torch.randn(shape[0], 1, 1, 1, generator=generator).mul(3).exp()
    return x.clamp(-60000, 60000).to(dtype)


def _unpacked(packed: Tensor | Packed) -> Tensor:
    """By the definition of the format, number by number where it matters."""
    assert isinstance(packed, Packed)
    tokens, head_dim = packed.shape[2:]
    codes = packed.codes
    if packed.storage == "int4":
        codes = torch.cat([packed.codes % 16, packed.codes // 16], dim=-1)[..., :head_dim]
    scales, lows = (None if p is None else p.double() for p in (packed.scales, packed.lows))
    if packed.kind == "keys":
        group = torch.arange(tokens) // 64
        scales, lows = (None if p is None else p[:, :, group] for p in (scales, lows))
    return codes.double() * scales + (0 if lows is None else lows)


def _whole(packed: Tensor | Packed) -> Tensor:
    return torch.cat([part.clone() for _, part in in_float32(packed)])


@settings(max_examples=80, deadline=None)
@given(
    shape=SHAPES,
    dtype=st.sampled_from(DTYPES),
    storage=st.sampled_from(STORAGES),
    exponent=st.integers(-140, 126),
    seed=st.integers(0, 2**31),
)
def test_every_number_is_within_half_a_step(shape, dtype, storage, exponent, seed) -> None:
    x = (_random(shape, torch.float32, seed).double() * 2.0**exponent).float().to(dtype)
    x = torch.nan_to_num(x, posinf=0, neginf=0)
    x[x.abs() > 2.0**126] = 0
    block = pack(_block(x, x, storage))
    for packed in (block.keys, block.values):
        exact = _unpacked(packed)
        step = packed.scales.double()
        if packed.kind == "keys":
            step = step[:, :, torch.arange(shape[2]) // 64]
        most = x.double().abs().amax()
        assert bool(((x.double() - exact).abs() <= step * 0.5001 + most * 2**-22).all())
        levels = packed.codes if storage == "int8" else torch.cat([packed.codes % 16, packed.codes // 16], -1)
        assert int(levels.max()) <= (127 if storage == "int8" else 15)
        assert int(levels.min()) >= (-127 if storage == "int8" else 0)
        # In float32 nothing but the last sum is rounded.
        torch.testing.assert_close(_whole(packed).double(), exact, rtol=2**-23, atol=1e-38)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("kind", ["keys", "values"])
def test_what_is_constant_is_exact(storage: str, kind: str) -> None:
    x = _random((2, 2, 70, 6))
    if kind == "keys":
        x[:, :, :64, 1], x[:, :, 64:, 1] = 3.140625, -7e-30  # one number per group of tokens
        x[:, :, :, 2], x[:, :, :, 3] = 0, -1e30
        same = x[..., 1:4]
    else:
        x[:, :, 3], x[:, :, 4], x[:, :, 5] = 3.140625, 0, -1e30  # one number per token
        same = x[:, :, 3:6]
    found = _whole(getattr(pack(_block(x, x, storage)), kind)).to(x.dtype)
    assert torch.equal(found[..., 1:4] if kind == "keys" else found[:, :, 3:6], same)


@pytest.mark.parametrize("storage", STORAGES)
def test_zeros_and_a_single_token_are_exact(storage: str) -> None:
    for x in (torch.zeros(1, 2, 5, 3).bfloat16(), _random((2, 1, 1, 7))):
        block = pack(_block(x, torch.zeros_like(x), storage))
        assert torch.equal(_whole(block.keys).to(x.dtype), x)
        assert not _whole(block.values).any()


def test_signs_alone_are_exact_as_int8() -> None:
    x = torch.tensor([1.0, -1.0, -1.0, 1.0, 1.0]).view(1, 1, 5, 1).expand(1, 1, 5, 4) * 0.3
    x = x.bfloat16()
    assert torch.equal(_whole(pack(_block(x, x, "int8")).keys).to(x.dtype), x)


@pytest.mark.parametrize(("storage", "most"), [("int8", 0.53), ("int4", 0.30)])
def test_sizes_at_the_geometry_of_glm(storage: str, most: float) -> None:
    x = torch.zeros(40, 2, 645, 128, dtype=torch.bfloat16)
    block = pack(_block(x, x, storage))
    assert block.tokens == 645
    assert block.nbytes <= most * 2 * x.nbytes


@settings(max_examples=60, deadline=None)
@given(shape=SHAPES, storage=st.sampled_from(STORAGES), seed=st.integers(0, 2**31))
def test_one_layer_is_what_it_is_in_the_whole(shape, storage, seed) -> None:
    block = pack(_block(_random(shape, seed=seed), _random(shape, seed=seed + 1), storage))
    for packed in (block.keys, block.values):
        whole = _whole(packed)
        assert whole.shape == packed.shape == torch.Size(shape)
        for layer in range(shape[0]):
            one = torch.full((1, *shape[1:]), float("nan"))
            packed.unpack(slice(layer, layer + 1), one)
            assert torch.equal(one[0], whole[layer])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("kind", ["keys", "values"])
def test_what_is_not_finite_is_refused(bad: float, storage: str, kind: str) -> None:
    x = _random((1, 2, 70, 4))
    y = x.clone()
    y[0, 1, 66, 2] = bad
    keys, values = (y, x) if kind == "keys" else (x, y)
    with pytest.raises(CompileError, match=f"{kind} are not finite, or too large to be stored as {storage}"):
        pack(_block(keys, values, storage))


def test_a_range_beyond_float32_is_refused() -> None:
    x = torch.tensor([-3e38, 3e38]).view(1, 1, 2, 1).bfloat16()
    with pytest.raises(CompileError, match="too large"):
        pack(_block(x, x, "int4"))
    found = pack(_block(x, x, "int8"))
    assert torch.equal(_whole(found.keys).bfloat16(), x)


def test_native_blocks_and_packed_ones_stay_the_objects_they_are() -> None:
    x = _random((1, 1, 4, 4))
    native = _block(x, x, "native")
    assert pack(native) is native
    assert storage_of(native.keys) == "native"
    packed = pack(_block(x, x, "int4"))
    assert pack(packed) is packed
    assert (storage_of(packed.keys), packed.tokens) == ("int4", 4)
    assert torch.equal(x, _random((1, 1, 4, 4))), "packing only reads"


def test_another_form_is_refused_in_a_sentence() -> None:
    x = _random((1, 1, 4, 4))
    packed = pack(_block(x, x, "int4"))
    with pytest.raises(CompileError, match="int4 keys and int4 values cannot become 'int8'"):
        pack(replace(packed, key=replace(packed.key, storage="int8")))
    with pytest.raises(CompileError, match="cannot become 'int2'"):
        pack(_block(x, x, "int2"))


def test_keys_of_native_blocks_are_those_of_banks_made_before_there_were_other_forms() -> None:
    key = BlockKey("m", "bfloat16", "x", "p", "r", "native", 72, "page", "default")
    assert key.digest == "995f61c94d6b76c893b4a579331deef9d897c1f59d82227d19ae359bea816014"
    assert len({replace(key, storage=s).digest for s in ("native", "int8", "int4")}) == 3


def _turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """All layers at once, as the formula says: every number is computed and rounded once."""
    pairs = cos.shape[-1]
    out = x.float().clone()
    if interleaved:
        turned = torch.view_as_complex(out[..., : 2 * pairs].contiguous().view(*x.shape[:-1], pairs, 2))
        out[..., : 2 * pairs] = torch.view_as_real(turned * torch.complex(cos, sin)).flatten(-2)
    else:
        a, b = x[..., :pairs].float(), x[..., pairs : 2 * pairs].float()
        out[..., :pairs] = (a * cos).addcmul_(b, sin, value=-1)
        out[..., pairs : 2 * pairs] = (b * cos).addcmul_(a, sin)
    return out


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Where threads divide an operation, its vectors end, and the last bit of a complex product may differ there.

    So it may where rotary pairs that are not all of a head are no multiple of 16, which no model has.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("storage", ["native", *STORAGES])
@pytest.mark.parametrize(
    ("shape", "pairs"), [((5, 2, 70, 16), 8), ((3, 1, 5, 41), 16), ((6, 2, 900, 64), 16), ((2, 3, 65, 6), 3)]
)
def test_rotation_is_that_of_all_layers_at_once(shape, pairs, storage, dtype, interleaved) -> None:
    """Bit by bit for native blocks: layers at a time and the buffer's place and strides change nothing."""
    keys = _random(shape, dtype).clamp(-1000, 1000)
    angles = torch.rand(shape[2], pairs, generator=torch.Generator().manual_seed(1)) * 6
    source = pack(_block(keys, keys, storage)).keys
    exact = _turned(keys if storage == "native" else _whole(source), angles.cos(), angles.sin(), interleaved)
    buffer = torch.full((*shape[:2], shape[2] + 7, shape[3]), float("nan"), dtype=dtype)
    out = buffer[:, :, 3 : 3 + shape[2]]
    assert rotate(source, angles.cos(), angles.sin(), interleaved=interleaved, out=out) is out
    if storage == "native":
        assert torch.equal(out, exact.to(dtype))
    else:
        torch.testing.assert_close(out, exact.to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=1e-4)
    assert torch.equal(rotate(source, angles.cos(), angles.sin(), interleaved=interleaved), out)
    assert buffer[:, :, :3].isnan().all()
    assert buffer[:, :, 3 + shape[2] :].isnan().all()


@pytest.mark.parametrize("threads", [1, 2, 64])
def test_how_many_layers_go_at_a_time_changes_nothing(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    x = _random((7, 2, 300, 64))
    packed = pack(_block(x, x, "int4")).keys
    whole = _whole(packed)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    steps = [part.shape[0] for _, part in in_float32(packed)]
    assert steps[0] == min(7, 6 * threads)
    assert torch.equal(_whole(packed), whole)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("family", ["glm4v", "qwen2_vl", "llava_onevision"])
def test_linking_packed_blocks_is_linking_what_they_unpack_to(
    family: str, storage: str, tiny_folder: Callable[..., Path], make_page_images: Callable[..., list[Image.Image]]
) -> None:
    served = serve(tiny_folder(family))
    native = served.compile(make_page_images(3))
    packed = [pack(replace(block, key=replace(KEY, storage=storage))) for block in native]
    plain = [replace(b, keys=_unpacked(b.keys).float(), values=_unpacked(b.values).float()) for b in packed]
    (ours, _), (theirs, _) = (served.link(blocks, "Which door?") for blocks in (packed, plain))
    count = ours.tokens
    assert torch.equal(ours.cache.key_buffer[:, :, :count], theirs.cache.key_buffer[:, :, :count])
    assert torch.equal(ours.cache.value_buffer[:, :, :count], theirs.cache.value_buffer[:, :, :count])
    assert torch.equal(ours.positions, theirs.positions)
    assert ours.nbytes == theirs.nbytes == 2 * ours.cache.key_buffer[:, :, :count].nbytes
