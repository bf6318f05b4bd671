"""``qvpic bench``."""

from __future__ import annotations

import pytest
import torch

from qvpic_rag.bench import bank
from tests.cli.conftest import Run


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bank, "LAYERS", 2)
    monkeypatch.setattr(bank, "PAGES", 3)
    monkeypatch.setattr(bank, "TOKENS", 66)


@pytest.mark.usefixtures("small")
def test_the_command_prints_every_figure(run: Run) -> None:
    threads = torch.get_num_threads()
    found = run("bench", "bank", "--rounds", 2, "--storage", "int8", "--json").json
    assert torch.get_num_threads() == threads
    times = ["memcpy", "link", "assemble", "read", "map", "copy", "ram", "checksum", "write", "put"]
    assert list(found) == ["storage", "threads", "nbytes", "memcpy_bytes", *times, "ratios"]
    assert all(0 < found[name] < 60 for name in times)
    assert found["ratios"]["assemble / memcpy"] == pytest.approx(found["assemble"] / found["memcpy"])
    assert found["nbytes"] < found["memcpy_bytes"]
    shown = run("bench", "bank", "--rounds", 1)
    assert shown.out.startswith("3 pages, 198 tokens, ")
    assert all(ratio in shown.out for ratio in found["ratios"])


def test_wrong_options_are_refused(run: Run) -> None:
    assert run("bench", "bank", "--storage", "int2").code == 2
    assert run("bench", "bank", "--rounds", 0).code == 2
