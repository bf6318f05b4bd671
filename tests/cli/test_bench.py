"""``qvpic bench``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from qvpic_rag.bench import bank
from qvpic_rag.bench.ttft import TEXT_TOKENS
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


def test_first_tokens_as_table_and_figures(run: Run, tmp_path: Path) -> None:
    options = ["--geometry", "tiny", "--pages", 1, "--rounds", 1, "--text-tokens", 50, "--device", "cpu"]
    result = run("bench", "ttft", *options, "--out", tmp_path / "new" / "folder")
    assert (result.code, result.err) == (0, "")
    assert (tmp_path / "new" / "folder" / "ttft.md").read_text(encoding="utf-8") == result.out
    found = json.loads((tmp_path / "new" / "folder" / "ttft.json").read_text(encoding="utf-8"))
    assert list(found["methods"]) == ["full@120", "full@72", "full@text", "pic@text/native", "qvpic"]
    assert found["settings"]["promoted"] == 1
    assert all(f"| {method} |" in result.out for method in found["methods"])
    assert run("bench", "ttft", *options, "--dpis", "40,72", "--json").json["settings"]["dpis"] == [40, 72]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--geometry", "huge"], "geometry must be one of glm-4.1v-9b, "),
        (["--scale", "0"], "scale must be above 0 and at most 1, not 0"),
        (["--dpis", "72"], "--dpis must be two whole numbers such as 72,120, not '72'"),
        (["--geometry", "tiny", "--pages", "9"], "9 pages need up to 15812 tokens and tiny takes 4096"),
        (["--geometry", "tiny", "--device", "warp"], "Device 'warp' cannot be used here"),
        (["--geometry", "tiny", "--dtype", "int8"], "dtype must be one of bfloat16, float16, float32, not 'int8'"),
        (["--geometry", "tiny", "--out", "/dev/null/here"], "The folder '/dev/null/here' cannot be made"),
    ],
)
def test_wrong_workloads_are_one_sentence(run: Run, options: list[str], message: str) -> None:
    result = run("bench", "ttft", "--pages", "1", *options)
    assert result.code == 2
    assert message in result.error


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without one")
def test_a_missing_accelerator_is_named(run: Run) -> None:
    result = run("bench", "ttft", "--geometry", "tiny", "--device", "cuda")
    assert result.code == 2
    assert "Device 'cuda' cannot be used here" in result.error


def test_the_help_says_how_long_a_page_is(run: Run) -> None:
    assert f"{TEXT_TOKENS} on the" in " ".join(run("bench", "ttft", "--help").out.split())
