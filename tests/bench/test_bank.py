"""The bank's benchmark on small blocks: every figure is measured, and what is timed does what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from qvpic_rag.bench import bank
from qvpic_rag.bench.stopwatch import best_times
from qvpic_rag.packing import Packed


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bank, "LAYERS", 2)
    monkeypatch.setattr(bank, "PAGES", 3)
    monkeypatch.setattr(bank, "TOKENS", 66)


def turned(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The rotation of neighbouring channels, spelt out; the other channels stay."""
    x = keys.float()
    out = x.clone()
    pairs = cos.shape[-1]
    even, odd = x[..., : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
    out[..., : 2 * pairs : 2] = even * cos - odd * sin
    out[..., 1 : 2 * pairs : 2] = odd * cos + even * sin
    return out


def test_actions_take_turns_and_the_fastest_run_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0, 5, 5, 7, 10, 12, 20, 29])  # a: 5 then 2; b: 2 then 9
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    order: list[str] = []
    seen: list[tuple[int, int, str]] = []
    found = best_times(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 2, lambda *step: seen.append(step)
    )
    assert found == {"a": 2, "b": 2}
    assert order == ["a", "b", "a", "b"]
    assert seen == [(0, 2, "a"), (0, 2, "b"), (1, 2, "a"), (1, 2, "b"), (2, 2, "")]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("storage", ["native", "int8", "int4"])
def test_what_is_timed_is_the_real_thing(tmp_path: Path, storage: str) -> None:
    bench = bank._Bench(tmp_path, storage)
    bench.link()
    tokens = bank.PAGES * bank.TOKENS
    positions = torch.cat([block.positions for block in bench.blocks], dim=1)
    cos, sin = bench.geometry.rotary.angles(positions)
    assert cos.shape == (tokens, 32), "GLM-4.1V rotates 64 of 128 channels"
    for number, block in enumerate(bench.blocks):
        part = slice(number * bank.TOKENS, (number + 1) * bank.TOKENS)
        assert isinstance(block.keys, Packed) == (storage != "native")
        if storage == "native":
            found = bench.cache.key_buffer[:, :, part].float()
            torch.testing.assert_close(found, turned(block.keys, cos[part], sin[part]), rtol=2**-7, atol=1e-6)
            assert torch.equal(bench.cache.value_buffer[:, :, part], block.values)
    bench.put()
    assert bench.bank.stats().blocks == {72: 2 * bank.PAGES}
    bench.tidy()
    assert bench.bank.stats().blocks == {72: bank.PAGES}
    bench.cached.close()
    bench.bank.close()
