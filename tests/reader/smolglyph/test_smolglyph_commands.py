"""``qvpic reader smolglyph``: train, export, eval on a tiny language model, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from qvpic_rag.models import load_model
from qvpic_rag.models.smolglyph import adapter
from qvpic_rag.models.smolglyph.base import Base
from qvpic_rag.reader.smolglyph import corpus, evaluate, train
from tests.cli.conftest import Run
from tests.reader.smolglyph.conftest import TOWER
from tests.reader.smolglyph.texts import english

RECIPE = """
seed = 1
looks = 1
rank = 2
answers = 1

[[stage]]
name = "letters"
steps = 2
tokens = 100
muon = 0.02
adam = 0.003
kinds = { prose = 1.0 }
sheets = 3
shelf_steps = 2
"""


@pytest.fixture(autouse=True)
def _denormals() -> Iterator[None]:
    """Training flushes denormal numbers to zero in this process; other tests should not."""
    yield
    torch.set_flush_denormal(False)


@pytest.fixture
def texts(tiny_base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of English; the tiny language model and tower stand for the real ones."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(corpus, "_LEAST", 1000)
    for module in (train, adapter):
        monkeypatch.setattr(module, "load_base", lambda: tiny_base)
    monkeypatch.setattr(train, "Tower", lambda sections: TOWER)
    monkeypatch.setattr(train.Trainer, "examine", lambda self, stage: {"unseen": 0.5})
    for name in ("_REPEATED", "_ANSWERED", "_TOLD"):
        monkeypatch.setattr(evaluate, name, 2)
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "book.txt").write_text("\n\n".join(english(0, 400)), encoding="ascii")
    return folder


def test_train_export_load_and_eval(run: Run, texts: Path, tmp_path: Path) -> None:
    folder, shipped, recipe = tmp_path / "run", tmp_path / "adapter", tmp_path / "recipe.toml"
    recipe.write_text(RECIPE, encoding="utf-8")
    options = ("--recipe", recipe, "--corpus", texts)
    stopped = run("reader", "smolglyph", "train", folder, *options, "--minutes", 0)
    assert stopped.code == 0
    assert (folder / "checkpoint.pt").exists()
    trained = run("reader", "smolglyph", "train", folder, "--recipe", recipe)  # its text is in the run's folder
    assert trained.code == 0
    line = json.loads(trained.out.splitlines()[-1])
    assert (line["stage"], line["step"], line["unseen"]) == ("letters", 2, 0.5)

    exported = run("reader", "smolglyph", "export", folder, shipped)
    assert exported.out == f"The adapter is in {shipped}; measure it with: qvpic reader smolglyph eval {shipped}\n"
    model = load_model(str(shipped))
    assert model.model.config.model_type == "qwen2_5_vl"
    assert model.checkpoint.name == str(shipped)

    measured = run("reader", "smolglyph", "eval", shipped, "--run", folder, "--questions", 5, "--pages", 1)
    assert measured.code == 0
    assert "| prose | 72 DPI |" in measured.out
    assert "| character error of prose | 10% |" in measured.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("train",), "Missing argument 'RUN'"),
        (("train", "run", "--recipe", "none.toml"), "The recipe none.toml cannot be read"),
        (("export", "run", "reader"), "There is no run/checkpoint.pt; name the folder of a run"),
        (("eval", "./none"), "There is no folder './none' to load a model from"),
        (("eval", "./none", "--run", "nowhere"), "There is no nowhere/corpus.txt; name the folder of a run"),
        (("eval", "./none", "--pages", "0"), "Invalid value for '--pages'"),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_one_sentence(
    run: Run, arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("reader", "smolglyph", *arguments)
    assert (result.code, result.out) == (2, "")
    assert words in result.error
    assert list(tmp_path.iterdir()) == []
