"""``qvpic eval report`` and ``qvpic eval audit``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.evaluation.runs import answered, example, routed, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [example("a"), answered("a", "qvpic", 0.0, route=(routed(0, promoted=True, rank=0),))]
    return write(tmp_path / "run", ["qvpic"], rows)


def test_a_report_and_an_audit(run: Run, folder: Path, tmp_path: Path) -> None:
    found = run("eval", "report", folder)
    assert (found.code, found.out, found.err) == (0, f"{folder / 'REPORT.md'}\n", "")
    found = run("eval", "audit", folder, "--method", "qvpic", "--most", 1, "--out", tmp_path / "audit")
    assert (found.code, found.out, found.err) == (0, f"{tmp_path / 'audit' / 'index.html'}\n", "")
    assert (tmp_path / "audit" / "1.html").is_file()


def test_wrong_use_exits_with_2(run: Run, folder: Path, tmp_path: Path) -> None:
    for command in ("report", "audit"):
        found = run("eval", command, tmp_path / "nowhere")
        assert found.code == 2
        assert "holds no run" in found.error
        found = run("eval", command, folder / "run.json")
        assert (found.code, f"name the folder that holds the run, such as {folder}" in found.error) == (2, True)
    found = run("eval", "audit", folder, "--method", "full@72")
    assert (found.code, "has no answers of 'full@72'" in found.error) == (2, True)
    assert run("eval", "audit", folder, "--most", -1).code == 2
    assert run("eval", "audit", folder, "--most", 10**24).code == 0


def test_a_report_without_matplotlib(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    found = run("eval", "report", folder)
    assert found.code == 1
    assert "pip install 'qvpic-rag[eval]'" in found.error
