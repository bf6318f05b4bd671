"""``qvpic reader``: train, export, eval, and what is refused before anything is computed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from qvpic_rag.reader import evaluate, tables, train
from qvpic_rag.reader.options import until
from tests.cli.conftest import Run

RECIPE = """
seed = 1
looks = 1
muon_rate = 0.02
adam_rate = 0.003

[[stage]]
name = "letters"
steps = 2
tokens = 60
see = 1.0
worlds = 1
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two steps, and an examination that takes no time."""
    monkeypatch.setattr(train, "examine", lambda trainer: {"exact": 0.25})
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


def test_help(run: Run) -> None:
    shown = run("reader", "--help")
    assert (shown.code, shown.err) == (0, "")
    for word in ("train", "export", "eval"):
        assert word in shown.out
    for command, words in {
        "train": ["RUN", "--recipe", "--start", "--minutes", "--device"],
        "export": ["RUN", "FOLDER"],
        "eval": ["MODEL", "--questions", "--pages", "--tables", "--results"],
    }.items():
        shown = run("reader", command, "--help")
        assert (shown.code, shown.err) == (0, "")
        assert f"Usage: qvpic reader {command}" in shown.out
        for word in words:
            assert word in shown.out
    assert "..." not in run("reader", "--help").out.split("Commands:")[1]


def test_train_export_and_eval(run: Run, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, reader, results = tmp_path / "run", tmp_path / "reader", tmp_path / "results.jsonl"
    stopped = run("reader", "train", folder, "--recipe", recipe, "--minutes", 0)
    assert (stopped.code, stopped.out) == (0, "")
    assert (folder / "checkpoint.pt").exists()
    trained = run("reader", "train", folder, "--recipe", recipe)
    assert trained.code == 0
    line = json.loads(trained.out)
    assert (line["stage"], line["step"], line["exact"]) == ("letters", 2, 0.25)

    exported = run("reader", "export", folder, reader)
    assert exported.code == 0
    assert exported.out == f"The reader is in {reader}; measure it with: qvpic reader eval {reader}\n"
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    started = run("reader", "train", tmp_path / "next", "--recipe", recipe, "--start", reader, "--minutes", 0)
    assert started.code == 0
    again = torch.load(tmp_path / "next" / "checkpoint.pt", weights_only=True)
    for name, value in again["run"]["model"].items():
        assert torch.equal(value, state["run"]["model"][name].to(torch.bfloat16).float())

    monkeypatch.setattr(evaluate, "_LONGEST", 2)
    monkeypatch.setattr(tables, "_PER_WORLD", 1)
    options = ("--questions", 1, "--pages", "1, 2", "--tables", "pages", "--results", results)
    measured = run("reader", "eval", reader, *options)
    assert measured.code == 0
    assert measured.out.startswith("| pages | resolution | full prefill | page caches, native |")
    assert len(measured.out.splitlines()) == 2 + 2 + 3 + 1
    assert measured.err.count("measuring ") == 2
    assert len(results.read_text(encoding="utf-8").splitlines()) == 2
    known = run("reader", "eval", reader, *options)
    assert (known.out, known.err) == (measured.out, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("train",), "Missing argument 'RUN'"),
        (("train", "run", "--recipe", "none.toml"), "The recipe none.toml cannot be read"),
        (("train", "run", "--start", "none"), "none holds no reader to start from"),
        (("train", "run", "--device", "abacus"), "abacus"),
        (("train", "run", "--minutes", "-1"), "Invalid value for '--minutes'"),
        (("export", "run", "reader"), "There is no run/checkpoint.pt; name the folder of a run"),
        (("eval", "./none"), "There is no folder './none' to load a model from"),
        (("eval", "./reader", "--pages", "0"), "--pages must be numbers from 1 to 16 with commas between, not '0'"),
        (("eval", "./reader", "--pages", "1,17"), "--pages must be numbers from 1 to 16"),
        (("eval", "./reader", "--pages", "few"), "--pages must be numbers from 1 to 16"),
        (("eval", "./reader", "--pages", ""), "--pages must be numbers from 1 to 16"),
        (("eval", "./reader", "--tables", "letters,figures"), "There is no table figures; choose of letters, pages"),
        (("eval", "./reader", "--questions", "0"), "Invalid value for '--questions'"),
        (("frob",), "No such command 'frob'; see: qvpic reader --help"),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_one_sentence(
    run: Run, arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("reader", *arguments)
    assert (result.code, result.out) == (2, "")
    assert words in result.error
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_recipe(run: Run, recipe: Path, tmp_path: Path) -> None:
    recipe.write_text(RECIPE.replace("steps", "stepps"), encoding="utf-8")
    result = run("reader", "train", tmp_path / "run", "--recipe", recipe)
    assert (result.code, result.out) == (2, "")
    assert "a stage has no stepps" in result.error
    assert not (tmp_path / "run").exists()


def test_a_run_folder_of_something_else(run: Run, recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint.pt").write_bytes(b"no checkpoint")
    result = run("reader", "train", tmp_path / "run", "--recipe", recipe)
    assert (result.code, result.out) == (2, "")
    assert "name another run folder" in result.error


def test_a_run_folder_that_cannot_be_made(run: Run, recipe: Path) -> None:
    result = run("reader", "train", recipe / "run", "--recipe", recipe)
    assert (result.code, result.out) == (2, "")
    assert str(recipe) in result.error


def test_results_that_cannot_be_kept(run: Run, exported: Path, tmp_path: Path) -> None:
    result = run("reader", "eval", exported, "--tables", "pages", "--results", tmp_path / "none" / "r.jsonl")
    assert (result.code, result.out) == (2, "")
    assert "name another file" in result.error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_training_that_is_asked_to_stop_writes_a_checkpoint(
    run: Run, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    learn = train.Trainer.learn

    def interrupted(*arguments: Any) -> dict[str, float]:
        os.kill(os.getpid(), number)
        return learn(*arguments)

    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(train.Trainer, "learn", interrupted)
        result = run("reader", "train", tmp_path / "run", "--recipe", recipe)
    assert result.code == 0
    assert result.err == "Stopping after this step, with a checkpoint; run the same command again to go on.\n"
    assert torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["step"] == 1
    assert signal.getsignal(number) is before
    assert json.loads(run("reader", "train", tmp_path / "run", "--recipe", recipe).out)["step"] == 2


def test_asked_twice_it_ends_at_once() -> None:
    with until(None) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
