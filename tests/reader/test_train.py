"""Training: it learns, and an interrupted run goes on as if nothing had happened; a damaged one is refused."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from qvpic_rag.errors import ConfigError, MissingDependencyError
from qvpic_rag.reader import train
from qvpic_rag.reader.facts import make_world
from qvpic_rag.reader.lessons import Prompts
from qvpic_rag.reader.network import Dimensions, build_model
from qvpic_rag.reader.pictures import SLOTS, UNSURE, Look
from qvpic_rag.reader.recipe import Recipe, Stage
from qvpic_rag.reader.samples import Asked, Context, pack
from qvpic_rag.reader.train import Trainer, examine

Make = Callable[..., Trainer]

SEE = Stage("see", 5, 300, see=1.0, worlds=2, shelf_steps=3)
READ = Stage(
    "read", 4, 400, see=0.3, pages={"1": 0.5, "2": 0.5}, questions={"1": 2, "2": 3}, framed=0.5, transcribe=True,
    isolated=0.5, worlds=2, shelf_steps=3,
)  # fmt: skip
ASK = Stage("ask", 4, 600, pages={"2": 1.0}, questions={"2": 3}, freeze_vision=True, worlds=2, shelf_steps=3)
RECIPE = Recipe(seed=3, looks=2, muon_rate=0.02, adam_rate=0.003, stages=(SEE, READ, ASK))


@pytest.fixture
def make(tmp_path: Path, fresh: Any, prompts: Prompts, monkeypatch: pytest.MonkeyPatch, same_font: None) -> Make:
    """``make(name="run", recipe=RECIPE)``: a trainer of the same fresh weights each time, with a short examination."""
    monkeypatch.setattr(train, "examine", lambda trainer: {"exact": 0.5})

    def trainer(name: str = "run", recipe: Recipe = RECIPE, log: list[dict[str, Any]] | None = None) -> Trainer:
        lines = [] if log is None else log
        return Trainer(tmp_path / name, recipe, copy.deepcopy(fresh), prompts, lines.append)

    return trainer


def stop_after(steps: int) -> Callable[[], bool]:
    """For :meth:`Trainer.run`: it asks before every step."""
    asked = iter([False] * steps)
    return lambda: next(asked, True)


def letter_loss(trainer: Trainer, look: Look) -> float:
    """Of pages that are not trained on."""
    losses = []
    for text in make_world(random.Random(8), "validation", 8, look.fits).pages:
        page = look.page(text)
        assert page is not None
        picture = look.picture(page, 72)
        letters = torch.from_numpy(look.letters(page, 72, picture.shape))
        with torch.no_grad():
            loss, wrong = trainer.letter_loss(trainer.forward.see(torch.from_numpy(picture.copy())[None]), letters)
        assert 0 <= wrong <= 1
        losses.append(loss.item())
    return sum(losses) / len(losses)


def test_it_learns_letters(make: Make, look: Look) -> None:
    stage = Stage("letters", 45, 600, see=1.0, end_rate=1.0, own_look=1.0, worlds=2, shelf_steps=100)
    trainer = make(recipe=dataclasses.replace(RECIPE, looks=1, stages=(stage,)))
    before = letter_loss(trainer, look)
    trainer.run()
    assert before > 4
    assert letter_loss(trainer, look) < 0.85 * before


def test_unsure_letters_teach_nothing(make: Make) -> None:
    trainer = make()
    width = trainer.model.config.text_config.hidden_size
    embeddings = torch.randn(2, width, generator=torch.Generator().manual_seed(1))
    letters = torch.tensor([[3] * SLOTS, [UNSURE] * SLOTS])
    both, sure = trainer.letter_loss(embeddings, letters), trainer.letter_loss(embeddings[:1], letters[:1])
    torch.testing.assert_close(both, sure)  # a matrix of two rows may be summed in another order


def test_it_learns_answers(make: Make) -> None:
    stage = dataclasses.replace(ASK, steps=25, shelf_steps=100, tokens=1000)
    trainer = make(recipe=dataclasses.replace(RECIPE, stages=(stage,)))
    losses: list[float] = []
    answer_loss = trainer.answer_loss

    def watched(*arguments: Any) -> tuple[torch.Tensor, dict[str, float]]:
        loss, seen = answer_loss(*arguments)
        losses.append(loss.item())
        return loss, seen

    trainer.answer_loss = watched  # type: ignore[method-assign]
    vision = copy.deepcopy(trainer.model.model.visual.state_dict())
    trainer.run()
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    assert all(torch.equal(value, vision[name]) for name, value in trainer.model.model.visual.state_dict().items())


def test_what_counts_as_a_mistake(make: Make) -> None:
    """One answer of two wrong in one token, one token of three of a copy: the loss weighs, the shares count."""
    trainer = make()
    asked = [
        Asked([21], [31, 32, 0], prompt_weight=0.5),
        Asked([22], [33, 0]),
        Asked([23], [34, 35, 0], weight=0.25, copied=True),
    ]
    batch = pack([Context([11], [13], [14], [0], [(1, 1)], asked)])
    labels = batch.labels[batch.weights > 0]
    assert labels.tolist() == [31, 32, 0, 33, 0, 34, 35, 0]
    said = labels.clone()
    said[[1, 6]] = 40
    logits = torch.full((len(said), 50), -20.0).scatter(1, said[:, None], 20.0)
    width = 4
    trainer.forward = SimpleNamespace(  # type: ignore[assignment]
        embed=lambda ids: torch.zeros(*ids.shape, width), read=lambda x, *rest: x, logits=lambda hidden: logits
    )
    loss, seen = trainer.answer_loss(batch, torch.zeros(1, width))
    assert seen == pytest.approx({"missed": 1 / 2, "copied": 1 / 3})
    assert loss.item() == pytest.approx(40 * (1 + 0.25) / (5 + 3 * 0.25))


@pytest.mark.parametrize("after", [(2,), (5,), (4, 3), (7, 1, 3)], ids=str)
def test_an_interrupted_run_is_the_uninterrupted_one(make: Make, after: tuple[int, ...]) -> None:
    whole = make("whole")
    whole.run()
    for steps in after:
        part = make("parts")
        part.run(stop_after(steps))
        assert part.done != [stage.name for stage in RECIPE.stages]
    resumed = make("parts")
    resumed.run()
    assert resumed.done == whole.done == ["see", "read", "ask"]
    for ours, theirs in ((whole.model, resumed.model), (whole.letters, resumed.letters)):
        expected = theirs.state_dict()
        for name, value in ours.state_dict().items():
            torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-6)


def test_a_finished_run_does_nothing(make: Make) -> None:
    recipe = dataclasses.replace(RECIPE, stages=(SEE,))
    make(recipe=recipe).run()
    again = make(recipe=recipe)
    written = (again.folder / "checkpoint.pt").read_bytes()
    again.run()
    assert (again.folder / "checkpoint.pt").read_bytes() == written


def test_a_longer_recipe_goes_on_at_its_own_rates(make: Make) -> None:
    make(recipe=dataclasses.replace(RECIPE, stages=(SEE,))).run()
    trainer = make(recipe=dataclasses.replace(RECIPE, stages=(SEE, ASK), muon_rate=0.01, adam_rate=0.001))
    assert trainer.done == ["see"]
    trainer.run(stop_after(1))
    assert (trainer.stage, trainer.step) == ("ask", 1)
    rates = [group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups]
    assert rates == pytest.approx([0.01 / 40, 0.001 / 40])


def test_the_log(make: Make) -> None:
    lines: list[dict[str, Any]] = []
    trainer = make(recipe=dataclasses.replace(RECIPE, stages=(SEE, ASK)), log=lines)
    trainer.run()
    assert [(line["stage"], line["step"], line["exact"]) for line in lines] == [("see", 5, 0.5), ("ask", 4, 0.5)]
    assert all(line["minutes"] >= 0 for line in lines)
    written = (trainer.folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in written] == lines


def test_a_checkpoint_holds_tensors_and_plain_values_only(make: Make) -> None:
    trainer = make()
    trainer.run(stop_after(2))
    state = torch.load(trainer.folder / "checkpoint.pt", weights_only=True)
    assert (state["stage"], state["step"], state["done"]) == ("see", 2, [])
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(state["run"]["model"][name], value)
    assert sorted(path.name for path in trainer.folder.iterdir()) == ["checkpoint.pt", "log.jsonl"]


def test_a_kill_while_writing_leaves_the_old_checkpoint(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make()
    trainer.run(stop_after(2))
    path = trainer.folder / "checkpoint.pt"
    old = path.read_bytes()

    def killed(*arguments: Any) -> None:
        raise KeyboardInterrupt

    for owner, name in ((Path, "replace"), (torch, "save")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, killed)
            with pytest.raises(KeyboardInterrupt):
                trainer.run(stop_after(1))
        assert path.read_bytes() == old
    assert make().step == 2


def _damage(path: Path, how: str) -> None:
    if how == "no file of torch":
        path.write_bytes(b"not a checkpoint")
    elif how == "cut short":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif how == "nothing in it":
        torch.save({}, path)
    elif how == "other words":
        state = torch.load(path, weights_only=True)
        torch.save({**state, "run": {**state["run"], "vocabulary": "other"}}, path)


@pytest.mark.parametrize("how", ["no file of torch", "cut short", "nothing in it", "other words", "other sizes"])
def test_a_checkpoint_that_cannot_be_continued(make: Make, how: str, tokenizer: Any, prompts: Prompts) -> None:
    trainer = make()
    trainer.run(stop_after(1))
    path = trainer.folder / "checkpoint.pt"
    _damage(path, how)
    kept = path.read_bytes()
    model = trainer.model
    if how == "other sizes":
        sizes = Dimensions(text_hidden=32, text_layers=1, text_mlp=32, vision_hidden=24, vision_layers=1)
        model = build_model(sizes, len(tokenizer), seed=0)
    with pytest.raises(ConfigError) as refused:
        Trainer(trainer.folder, RECIPE, model, prompts, print)
    message = str(refused.value)
    assert re.fullmatch(r".*checkpoint\.pt (is no|cannot be) .*; name another .*\.", message)  # one line
    assert "weights_only" not in message  # torch advises to unpickle what it refuses
    assert path.read_bytes() == kept


def test_without_muon_it_says_what_to_install(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(MissingDependencyError, match=r"torch 2\.9"):
        make()


def test_an_examination(make: Make) -> None:
    trainer = make()
    found = examine(trainer, worlds=2, counts=(1, 2))
    assert set(found) == {"exact 1 at 72", "exact 2 at 72", "exact 1 at 120", "exact 2 at 120"}
    assert set(found.values()) == {0.0}
    assert found == examine(trainer, worlds=2, counts=(1, 2))
