"""Training on a tiny language model: it learns, it resumes, it exports."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from qvpic_rag.config import RenderProfile
from qvpic_rag.errors import ConfigError, MissingDependencyError
from qvpic_rag.models import load_model
from qvpic_rag.models.smolglyph import adapter
from qvpic_rag.models.smolglyph.base import Base
from qvpic_rag.reader import loop
from qvpic_rag.reader.loop import read_checkpoint
from qvpic_rag.reader.smolglyph import train
from qvpic_rag.reader.smolglyph.corpus import Corpus
from qvpic_rag.reader.smolglyph.evaluate import trained_on
from qvpic_rag.reader.smolglyph.recipe import Recipe, Stage
from tests.reader.smolglyph.conftest import TOWER
from tests.reader.smolglyph.texts import english

CORPUS = Corpus(tuple(english(0, 60)), tuple(english(100, 20)), tuple(english(200, 20)))
SEE = Stage("see", 8, 300, muon=0.02, adam=0.003, high=0.2, kinds={"prose": 0.7, "words": 0.3}, sheets=8, shelf_steps=4)
READ = Stage(
    "read", 5, 500, muon=0.003, adam=0.001, lora=0.01, look=0.25, kinds={"prose": 1.0}, sheets=6, shelf_steps=3,
    tasks={"repeat": 1.0, "facts": 1.0, "continue": 1.0, "own": 1.0, "words": 1.0}, pages={"1": 0.5, "2": 0.5},
    isolated=0.3,
)  # fmt: skip
RECIPE = Recipe(seed=3, looks=2, rank=2, answers=3, stages=(SEE, READ))

EXAMINE = train.Trainer.examine


def _trainer(base: Base, folder: Path, recipe: Recipe = RECIPE, **change: Any) -> train.Trainer:
    lines: list[dict[str, Any]] = []
    arguments = {"base": base, "tower": TOWER, "corpus": CORPUS, "device": torch.device("cpu"), "log": lines.append}
    trainer = train.Trainer(folder, recipe, **(arguments | change))
    trainer.lines = lines  # type: ignore[attr-defined]
    return trainer


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A glimpse at unseen pages takes longer than these runs."""
    monkeypatch.setattr(train.Trainer, "examine", lambda self, stage: {"unseen": 1.0})


def _weights(trainer: train.Trainer) -> dict[str, torch.Tensor]:
    state = trainer.state()
    return {f"{part} {name}": value for part in ("visual", "lora", "letters") for name, value in state[part].items()}


def test_an_interrupted_run_is_the_uninterrupted_one(tiny_base: Base, tmp_path: Path) -> None:
    whole = _trainer(tiny_base, tmp_path / "whole")
    whole.run()
    assert whole.done == ["see", "read"]
    assert (tmp_path / "whole" / "answers.jsonl").exists()
    for stops in (3, 10, 99):  # within the first stage, within the second, at the end
        part = _trainer(tiny_base, tmp_path / "parts")
        steps = iter(range(stops - len(part.done) * SEE.steps - part.step))
        part.run(lambda steps=steps: next(steps, None) is None)  # type: ignore[misc]
    assert part.done == ["see", "read"]
    for name, value in _weights(whole).items():
        torch.testing.assert_close(value, _weights(part)[name], atol=1e-6, rtol=1e-5, msg=name)
    assert not list((tmp_path / "parts").glob("*.part"))


@pytest.mark.parametrize("stage", [SEE, replace(READ, lora=0.0)], ids=lambda stage: stage.name)
def test_the_glimpse_at_unseen_pages(stage: Stage, tiny_base: Base, tmp_path: Path) -> None:
    """Also of a stage that asks and trains the vision tower alone."""
    found = EXAMINE(_trainer(tiny_base, tmp_path), stage)
    assert {"unseen letters 72", "unseen words 120"} <= set(found)
    assert any("facts" in name for name in found) == (stage is not SEE)


def test_letters_and_words_are_learnt(tiny_base: Base, tmp_path: Path) -> None:
    stage = replace(SEE, steps=45, tokens=200, high=0.0, own_look=1.0, kinds={"prose": 1.0}, sheets=4, shelf_steps=99)
    trainer = _trainer(tiny_base, tmp_path, replace(RECIPE, stages=(stage,)))
    rng = random.Random(0)
    shelf = trainer.prepare(stage, random.Random(1))
    places = [(each, 72) for each in shelf.sheets]
    with torch.no_grad():
        before, at_first = trainer.looked_at(places, rng)
    trainer.run()
    with torch.no_grad():
        after, at_last = trainer.looked_at(places, rng)
    assert float(after) < 0.8 * float(before)
    assert at_last["letters"] < at_first["letters"] - 0.1
    assert len(trainer.lines) >= 2  # type: ignore[attr-defined]


def test_the_language_model_stays_as_it_is(tiny_base: Base, tmp_path: Path) -> None:
    trainer = _trainer(tiny_base, tmp_path)
    before = {name: value.clone() for name, value in trainer.model.model.language_model.state_dict().items()}
    trainer.run()
    after = trainer.model.model.language_model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert trainer.lora.o_up.abs().max() > 0


def test_only_what_a_stage_names_is_trained(tiny_base: Base, tmp_path: Path) -> None:
    alone = replace(READ, muon=0.0, adam=0.0, look=0.0, tasks={"facts": 1.0}, kinds={})
    trainer = _trainer(tiny_base, tmp_path, replace(RECIPE, stages=(alone,)))
    before = {name: value.clone() for name, value in _weights(trainer).items()}
    trainer.run()
    changed = {name.split()[0] for name, value in _weights(trainer).items() if not torch.equal(value, before[name])}
    assert changed == {"lora"}


def test_own_answers_are_not_touched_where_nothing_was_learnt(tiny_base: Base, tmp_path: Path) -> None:
    """Without updates, a page of words is read as SmolLM2 reads it: the distance is nothing."""
    trainer = _trainer(tiny_base, tmp_path)
    stage = replace(READ, tasks={"own": 1.0})
    lesson = trainer.prepare(stage, random.Random(0)).lesson(random.Random(0))
    assert lesson.teachers is not None
    plain = [(a, b) for a, b in zip(lesson.contexts, lesson.teachers, strict=True) if a is b]
    lesson = replace(lesson, contexts=[a for a, _ in plain], teachers=[b for _, b in plain], places=[])
    loss, found = trainer.asked_about(lesson, random.Random(0))
    assert abs(float(loss.detach())) < 1e-4
    assert abs(found["own distance"]) < 1e-4


def test_a_recipe_chooses_profile_and_sections(tiny_base: Base, tmp_path: Path) -> None:
    """Such as pages of one long line, whose columns are a text's positions."""
    line = tmp_path / "line.toml"
    values = RenderProfile.load("smolglyph").to_dict() | {"page_width": 1600, "page_height": 16, "name": "line"}
    line.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
    recipe = replace(RECIPE, profile=str(line), sections=(0, 0, 16), looks=1, stages=(replace(SEE, steps=1, high=0.0),))
    trainer = _trainer(tiny_base, tmp_path / "run", recipe, tower=replace(TOWER, sections=recipe.sections))
    shelf = trainer.prepare(recipe.stages[0], random.Random(0))
    assert {each.grid(72)[0] for each in shelf.sheets} == {1}
    assert max(each.grid(72)[1] for each in shelf.sheets) > 60
    assert trainer.model.config.text_config.rope_parameters["mrope_section"] == [0, 0, 16]
    trainer.run()


def test_what_does_not_fit_is_said_before_text_is_collected(
    tiny_base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "load_corpus", lambda *arguments: pytest.fail("text is collected first"))
    monkeypatch.setattr(train, "load_base", lambda: tiny_base)
    with pytest.raises(ConfigError, match=r"sections must add up to 16, .* not to 32"):
        train.open_run(tmp_path / "run", replace(RECIPE, sections=(8, 12, 12)))

    def missing() -> Base:
        raise MissingDependencyError("not installed")

    monkeypatch.setattr(train, "load_base", missing)
    with pytest.raises(MissingDependencyError):
        train.open_run(tmp_path / "run", RECIPE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [({"recipe": replace(RECIPE, rank=3)}, "rank"), ({"corpus": Corpus(*[CORPUS.train] * 3)}, "corpus")],
)
def test_a_checkpoint_of_something_else_is_refused(
    change: dict[str, Any], said: str, tiny_base: Base, tmp_path: Path
) -> None:
    _trainer(tiny_base, tmp_path).save()
    with pytest.raises(ConfigError, match=f"another {said}"):
        _trainer(tiny_base, tmp_path, **change)


def test_a_damaged_checkpoint_is_refused(tiny_base: Base, tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").write_bytes(b"PK")
    with pytest.raises(ConfigError, match="no checkpoint"):
        _trainer(tiny_base, tmp_path)


def test_a_kill_while_saving_leaves_the_old_checkpoint(
    tiny_base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = _trainer(tiny_base, tmp_path)
    trainer.save()

    def killed(state: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(loop.torch, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        trainer.save()
    assert read_checkpoint(tmp_path)["done"] == []


def test_a_run_becomes_a_model(tiny_base: Base, tmp_path: Path) -> None:
    trainer = _trainer(tiny_base, tmp_path / "run")
    trainer.save()
    train.export_run(tmp_path / "run", tmp_path / "adapter")
    adapter.assemble(tmp_path / "adapter", tmp_path / "model", base=tiny_base)
    found = load_model(str(tmp_path / "model")).model.model.visual.state_dict()
    for name, value in trainer.model.model.visual.state_dict().items():
        assert torch.equal(found[name], value.bfloat16().float())
    assert trained_on(str(tmp_path / "adapter")) == CORPUS.digest
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="cannot be written to"):
            train.export_run(tmp_path / "run", place)
    with pytest.raises(ConfigError, match="nowhere"):
        train.export_run(tmp_path / "nowhere", tmp_path / "adapter")
    torch.save({"run": {"model": {}}}, tmp_path / "run" / "checkpoint.pt")
    with pytest.raises(ConfigError, match="another reader"):
        train.export_run(tmp_path / "run", tmp_path / "adapter")
