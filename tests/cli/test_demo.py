"""``qvpic demo``: right answers, with and without a bank of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run


@pytest.fixture(autouse=True)
def _once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are not looked at here, so every question is asked once."""
    monkeypatch.setattr("qvpic_rag.demo._REPETITIONS", 1)


def test_three_right_answers_and_what_to_do_next(run: Run) -> None:
    result = run("demo")
    assert (result.code, result.err) == (0, "")
    assert result.out.count("(right)") == 3
    for answer in ("TB-209", "Tove Brandt", "$48.20"):
        assert f"A  {answer} " in result.out
    assert "first token after" in result.out
    assert "full prefill" in result.out
    assert "--bank DIR" in result.out


def test_a_bank_that_is_kept(run: Run, tmp_path: Path) -> None:
    bank = tmp_path / "my bank"
    shown = run("demo", "--bank", bank, "--json").json
    assert [entry["correct"] for entry in shown] == [True] * 3
    for entry in shown:
        assert entry["qvpic"]["answer"] == entry["expected"]
        assert "ttft" in entry["full_prefill"]["timing"]
    result = run("demo", "--bank", bank)
    assert "unchanged" in result.out
    assert f"--bank '{bank}'" in result.out
    assert run("ask", shown[0]["question"], "--bank", bank).out == f"{shown[0]['expected']}\n"


def test_a_wrong_answer_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qvpic_rag.demo.Shown.correct", False)
    result = run("demo", "--json")
    assert result.code == 1
    assert "wrong answer" in result.error
    assert len(json.loads(result.out)) == 3
