"""``qvpic reader smolglyph``: train, export, eval on a tiny language model, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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


def test_train_export_load_and_eval(run: Run, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, shipped, recipe = tmp_path / "run", tmp_path / "adapter", tmp_path / "recipe.toml"
    recipe.write_text(RECIPE, encoding="utf-8")
    options = ("--recipe", recipe, "--corpus", texts)
    stopped = run("reader", "smolglyph", "train", folder, *options, "--minutes", 0)
    assert stopped.code == 0
    assert (folder / "checkpoint.pt").exists()
    trained = run("reader", "smolglyph", "train", folder, *options)
    assert trained.code == 0
    assert "corpus.txt is there already" in trained.out
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
    assert "trained on" not in measured.err

    monkeypatch.setattr(corpus, "default_folders", lambda: [texts.parent / "others"])
    (texts.parent / "others").mkdir()
    (texts.parent / "others" / "book.txt").write_text("\n\n".join(english(500, 400)), encoding="ascii")
    anew = run("reader", "smolglyph", "eval", shipped, "--questions", 5, "--pages", 1)
    assert anew.code == 0
    assert "name that run with --run" in anew.err
    other = tmp_path / "other"
    other.mkdir()
    (other / "corpus.txt").write_text("\n".join(english(500, 400)), encoding="ascii")
    refused = run("reader", "smolglyph", "eval", shipped, "--run", other)
    assert (refused.code, refused.out) == (2, "")
    assert f"{shipped} does not say that it was trained on {other / 'corpus.txt'}" in refused.error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("train",), "Missing argument 'RUN'"),
        (("train", "run", "--recipe", "none.toml"), "The recipe none.toml cannot be read"),
        (("export", "run", "reader"), "There is no run/checkpoint.pt; name the folder of a run"),
        (("eval", "./none"), "./none holds no smolglyph adapter; name a folder that"),
        (("eval", "demo"), "demo holds no smolglyph adapter; name a folder that"),
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
