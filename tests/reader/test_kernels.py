"""The fused kernels against the same operations in float32 PyTorch, forward and gradients, and how they are built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from qvpic_rag.errors import ConfigError
from qvpic_rag.reader import kernels, operations

needs_compiler = pytest.mark.skipif(not kernels.available(), reason="no C compiler with OpenMP")
Operation = Callable[..., Tensor]


def _random(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(torch.bfloat16)


def _run(operation: Operation, inputs: list[Tensor]) -> list[Tensor]:
    """Output and the gradients of all inputs, for one fixed random gradient of the output."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = operation(*leaves)
    out.backward(_random(*out.shape, seed=99).to(out.dtype))
    return [out.detach(), *(x.grad for x in leaves if x.grad is not None)]


def _assert_close(fused: Operation, plain: Operation, inputs: list[Tensor], tolerance: float) -> None:
    """Relative error in the mean square below ``tolerance`` for output and each gradient, no element far off."""
    got, expected = _run(fused, inputs), _run(plain, [x.float() for x in inputs])
    assert len(got) == len(expected) == 1 + len(inputs)
    for ours, theirs in zip(got, expected, strict=True):
        error = ours.float() - theirs
        assert error.norm() <= tolerance * theirs.norm()
        assert error.abs().max() <= 4 * tolerance * theirs.abs().max()


def _angles(batch: int, length: int, rotary: int, interleaved: bool) -> tuple[Tensor, Tensor]:
    angles = torch.rand(batch, length, rotary // 2, generator=torch.Generator().manual_seed(7)) * 6.3
    angles = angles.repeat_interleave(2, -1) if interleaved else torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


def _groups(length: int, pages: list[int]) -> Tensor:
    """A prefix, a page for each ``own`` in ``pages``, two questions, then padding: ``(1, length, 2)``."""
    parts = [(0, 0), *((own, 1) for own in pages), (0, 2), (1, 2), (0, 3)]
    bounds = torch.linspace(0, length, len(parts) + 1).round().int().tolist()
    rows = [list(part) for part, a, b in zip(parts, bounds[:-1], bounds[1:], strict=True) for _ in range(b - a)]
    return torch.tensor([rows], dtype=torch.int32)


@needs_compiler
@pytest.mark.parametrize("shape", [(3, 5, 192), (1, 1), (7, 37), (64, 100)], ids=str)
@pytest.mark.parametrize("with_residual", [False, True])
def test_rms_norm(shape: tuple[int, ...], with_residual: bool) -> None:
    inputs = [_random(*shape), _random(shape[-1], seed=1).float() + 1]
    inputs += [_random(*shape, seed=2)] if with_residual else []

    def through(module: object) -> Operation:
        return lambda x, weight, *residual: module.rms_norm(x, weight, 1e-5, *residual)  # type: ignore[attr-defined]

    if shape[-1] == 1:  # the gradient by x is exactly 0 up to eps: only its size can be compared
        assert torch.equal(through(kernels)(*inputs), through(operations)(*inputs))
        return
    _assert_close(through(kernels), through(operations), inputs, 4e-3)


@needs_compiler
@pytest.mark.parametrize("shape", [(2, 3, 64), (5, 2), (11, 202)], ids=str)
def test_swiglu(shape: tuple[int, ...]) -> None:
    _assert_close(kernels.swiglu, operations.swiglu, [_random(*shape, scale=3.0)], 4e-3)


@needs_compiler
def test_swiglu_at_the_ends_of_the_range() -> None:
    gate = torch.tensor([-3e38, -300.0, -100.0, -20.0, -0.0, 20.0, 300.0, 3e38]).to(torch.bfloat16)
    x = torch.cat((gate, torch.ones_like(gate)))[None]
    torch.testing.assert_close(kernels.swiglu(x), operations.swiglu(x), rtol=1e-2, atol=1e-7)


CASES = {
    # batch, length, heads, kv_heads, head_dim, rotary
    "vision": (2, 49, 3, 3, 64, 64),
    "grouped": (2, 131, 4, 2, 32, 32),
    "odd": (3, 37, 6, 1, 10, 6),
    "blocks": (1, 300, 2, 1, 16, 8),
    "one": (1, 1, 1, 1, 2, 2),
}


@needs_compiler
@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
@pytest.mark.parametrize("mask", ["full", "pages", "isolated", "per sequence"])
@pytest.mark.parametrize("case", CASES)
def test_attention(case: str, mask: str, interleaved: bool) -> None:
    batch, length, heads, kv_heads, head_dim, rotary = CASES[case]
    own = {"full": None, "pages": [0, 1, 2], "isolated": [-1, -2, 0, -1, 1], "per sequence": [0, -3]}[mask]
    groups = None if own is None else _groups(length, own)
    if mask == "per sequence":
        groups = torch.cat([_groups(length, [i, -3, i + 1][: i + 1]) for i in range(batch)])
    tables = batch if mask in ("full", "per sequence") else 1
    cos, sin = _angles(tables, length, rotary, interleaved)
    qkv = _random(batch, length, (heads + 2 * kv_heads) * head_dim)

    def through(module: object) -> Operation:
        return lambda x: module.attention(x, cos, sin, groups, heads, kv_heads, interleaved)  # type: ignore[attr-defined]

    _assert_close(through(kernels), through(operations), [qkv], 1.5e-2)


@needs_compiler
def test_unmasked_attention_in_several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    cos, sin = _angles(1, 20, 8, True)
    qkv = _random(5, 20, 3 * 16)
    whole = _run(lambda x: kernels.attention(x, cos, sin, None, 2, 2, True), [qkv[..., :48]])
    monkeypatch.setattr(kernels, "_TILE_BYTES", 2 * 2 * 2 * 20 * 20)
    tiled = _run(lambda x: kernels.attention(x, cos, sin, None, 2, 2, True), [qkv[..., :48]])
    assert all(torch.equal(a, b) for a, b in zip(whole, tiled, strict=True))


def test_the_mask_of_a_small_text() -> None:
    """Prefix, pages own -1 and 0 and 1, a question, padding: who sees whom, written out."""
    groups = torch.tensor(
        [[[0, 0], [-1, 1], [0, 1], [1, 1], [5, 2], [5, 2], [6, 2], [0, 3], [0, 3]]], dtype=torch.int32
    )
    seen = ["0", "01", "012", "0123", "01234", "012345", "01236", "07", "08"]
    expected = torch.tensor([[str(key) in row for key in range(9)] for row in seen])
    assert torch.equal(operations.visible(groups)[0], expected)
    isolated = torch.tensor([[[0, 0], [-1, 1], [-1, 1], [-2, 1], [-2, 1]]], dtype=torch.int32)
    seen = ["0", "01", "012", "03", "034"]
    assert torch.equal(
        operations.visible(isolated)[0], torch.tensor([[str(k) in row for k in range(5)] for row in seen])
    )


@needs_compiler
def test_what_is_masked_has_no_influence_at_all() -> None:
    """Bytes of an isolated page do not change when another page or the padding does."""
    groups = _groups(140, [-1, -2])
    cos, sin = _angles(1, 140, 8, True)
    kind, own = groups[0, :, 1], groups[0, :, 0]
    first, second = _random(1, 140, 4 * 8), _random(1, 140, 4 * 8, seed=5)
    keep = (kind == 0) | ((kind == 1) & (own == -2))
    mixed = torch.where(keep[None, :, None], first, second)
    a, b = (kernels.attention(x, cos, sin, groups, 2, 1, True) for x in (first, mixed))
    assert torch.equal(a[:, keep], b[:, keep])


@needs_compiler
def test_the_same_bytes_every_time() -> None:
    cos, sin = _angles(1, 150, 16, False)
    groups = _groups(150, [0, 1])
    inputs = [_random(2, 150, 4 * 16)]
    first, second = (_run(lambda x: kernels.attention(x, cos, sin, groups, 2, 1, False), inputs) for _ in range(2))
    norm = [_random(300, 64), torch.ones(64)]
    first += _run(lambda x, w: kernels.rms_norm(x, w, 1e-5), norm)
    second += _run(lambda x, w: kernels.rms_norm(x, w, 1e-5), norm)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@needs_compiler
def test_nan_stays_in_its_row_and_is_not_lost() -> None:
    x = _random(4, 64)
    x[1, 3] = float("nan")
    for y in (kernels.rms_norm(x, torch.ones(64), 1e-5), kernels.swiglu(x)):
        assert y.isnan().any(-1).tolist() == [False, True, False, False]
    cos, sin = _angles(1, 40, 16, True)
    qkv = _random(2, 40, 3 * 16)
    qkv[1, 39, 2] = float("nan")  # a query of the last token
    out = kernels.attention(qkv, cos, sin, _groups(40, [0]), 1, 1, True)
    assert out.isnan().any(-1).nonzero().tolist() == [[1, 39]]


@needs_compiler
def test_denormals_survive_loading() -> None:
    """-ffast-math would have switched them off for the whole process."""
    assert (torch.tensor([1e-40]) * 1.0).item() != 0


@needs_compiler
@pytest.mark.parametrize(
    "call",
    [
        lambda: kernels.rms_norm(torch.ones(2, 4), torch.ones(4), 1e-5),
        lambda: kernels.rms_norm(_random(2, 4), torch.ones(5), 1e-5),
        lambda: kernels.rms_norm(_random(2, 4), torch.ones(4), 1e-5, _random(2, 5)),
        lambda: kernels.swiglu(_random(2, 5)),
        lambda: kernels.attention(_random(1, 4, 50), *_angles(1, 4, 8, True), None, 2, 2, True),
        lambda: kernels.attention(_random(1, 4, 48), *_angles(1, 5, 8, True), None, 2, 2, True),
        lambda: kernels.attention(_random(1, 4, 48), *_angles(1, 4, 10, True), None, 2, 2, True),
        lambda: kernels.attention(_random(1, 4, 48), *_angles(1, 4, 8, True), _groups(9, [0]), 2, 2, True),
        lambda: kernels.attention(_random(1, 4, 48), *_angles(1, 4, 8, True), _groups(4, [0]).long(), 2, 2, True),
    ],
)
def test_what_c_could_not_check_is_refused(call: Callable[[], Tensor]) -> None:
    with pytest.raises(ConfigError):
        call()


@pytest.fixture
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty cache folder, and no library loaded before or kept after."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernels._library.cache_clear()
    yield
    kernels._library.cache_clear()


@needs_compiler
@pytest.mark.usefixtures("_fresh")
def test_compiled_once_and_nothing_else_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels.available()
    (built,) = (tmp_path / "qvpic-rag").iterdir()
    kernels._library.cache_clear()
    monkeypatch.setenv("CC", "false")  # would fail if asked to compile again
    assert kernels.available()
    assert list((tmp_path / "qvpic-rag").iterdir()) == [built]


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("compiler", ["false", "no-such-compiler"])
def test_a_failing_compiler_says_what_to_install(
    compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", compiler)
    assert not kernels.available()
    with pytest.raises(ConfigError, match="install"):
        kernels.swiglu(_random(2, 4))
    assert not list(tmp_path.rglob("*.so"))


@needs_compiler
@pytest.mark.usefixtures("_fresh")
def test_an_unwritable_cache_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"):
        kernels.swiglu(_random(2, 4))
