"""Training smolglyph: the vision tower learns to write SmolLM2's words, then both learn to answer together.

A run's folder holds, besides the checkpoint and the log, the text that was trained on and SmolLM2's own answers, so
that it can be continued on another machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from safetensors import SafetensorError
from torch import Tensor

from qvpic_rag.errors import ConfigError
from qvpic_rag.models.device import resolve_device
from qvpic_rag.models.smolglyph.adapter import save_adapter
from qvpic_rag.models.smolglyph.base import Base, load_base
from qvpic_rag.models.smolglyph.lora import Lora
from qvpic_rag.models.smolglyph.model import Tower, build_model, build_tokenizer
from qvpic_rag.reader.loop import Loop, read_checkpoint
from qvpic_rag.reader.pictures import SLOTS, stack
from qvpic_rag.reader.samples import Batch, Context, pack
from qvpic_rag.reader.smolglyph.answers import load_answers
from qvpic_rag.reader.smolglyph.corpus import Corpus, load_corpus
from qvpic_rag.reader.smolglyph.forward import TrainingForward
from qvpic_rag.reader.smolglyph.lessons import Answered, Lesson, Prose, Shelf, vocabulary_words
from qvpic_rag.reader.smolglyph.pages import DPIS, Sheet, looks
from qvpic_rag.reader.smolglyph.recipe import Recipe, Stage
from qvpic_rag.reader.smolglyph.requests import Prompts
from qvpic_rag.reader.smolglyph.targets import Targets, letter_loss
from qvpic_rag.reader.tokens import CHARACTERS

__all__ = ["Trainer", "export_run", "open_run"]

_WARM_UP = 40  # steps of a stage over which its learning rates rise
_NEAR, _WHICH, _LETTERS = 0.5, 0.4, 1.0  # weights of the losses of pages that are looked at
_BESIDE = 0.3  # weight of these losses for the pages that are asked about
_TOGETHER = 16  # pictures of one size that are computed at once
_SPLITS = ("train", "validation")


class Trainer(Loop[Stage, Shelf]):
    """One run.

    Parameters
    ----------
    folder : Path
        Of the run; made if missing. A checkpoint in it is continued.
    recipe : Recipe
        Stages and sizes.
    base : Base
        SmolLM2.
    tower : Tower
        Sizes of the vision tower.
    corpus : Corpus
        English text.
    device : torch.device
        Where to compute.
    log : Callable[[dict[str, Any]], None]
        Called with every line that goes into the log.
    """

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        base: Base,
        tower: Tower,
        corpus: Corpus,
        device: torch.device,
        log: Callable[[dict[str, Any]], None],
    ) -> None:
        super().__init__(folder, recipe.stages, recipe.seed, log)
        self.recipe, self.device = recipe, device
        self.identity = {
            "base": base.digest, "tower": tower.to_dict(), "rank": recipe.rank, "corpus": corpus.digest,
            "profile": recipe.profile,
        }  # fmt: skip
        self.prompts = Prompts(build_tokenizer(base))
        self.model = build_model(base, tower, seed=recipe.seed).to(device)
        self.lora = Lora(self.model.config.text_config, recipe.rank, seed=recipe.seed).to(device)
        self.forward = TrainingForward(self.model, self.lora)
        self.targets = Targets(self.forward.embedding, self.prompts.ids(" ")[0])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            features = self.model.model.visual.merger.hidden_size
            self.letters = torch.nn.Linear(features, SLOTS * len(CHARACTERS)).to(device)
        self.muon, self.adam, self.adam_lora = self._optimizers()
        self.looks = looks(recipe.looks, recipe.seed, recipe.profile)
        self.prose = {split: Prose(corpus, split, self.prompts.tokenizer) for split in _SPLITS}
        self.words = vocabulary_words(self.prompts.tokenizer)
        self.answered: list[Answered] = []
        self.resume()

    def prepare(self, stage: Stage, rng: random.Random) -> Shelf:
        """Pages for the next steps."""
        if "own" in stage.tasks and not self.answered:
            self.answered = load_answers(
                self.folder / "answers.jsonl", self.recipe.answers, self.model, self.prompts, self.prose["train"],
                self.seed, lambda text: self._say({"doing": text}),
            )  # fmt: skip
        return self._shelf(stage, "train", rng)

    def _shelf(self, stage: Stage, split: str, rng: random.Random) -> Shelf:
        return Shelf(rng, stage, split, self.looks, self.prose[split], self.words, self.prompts, self.answered)

    def learn(self, stage: Stage, shelf: Shelf, rng: random.Random) -> dict[str, float]:
        """One optimiser step: pages that are looked at, and pages that are asked about."""
        found: dict[str, float] = {}
        self.model.model.visual.requires_grad_(bool(stage.muon or stage.adam))
        if stage.look > 0:
            dpi = DPIS[1] if rng.random() < stage.high else DPIS[0]
            sheets = _some(rng, shelf.sheets, dpi, stage.tokens * stage.look)
            loss, seen = self.looked_at([(each, dpi) for each in sheets], rng)
            loss.backward()  # type: ignore[no-untyped-call]
            found |= {f"{name} {dpi}": value for name, value in seen.items()}
        if stage.look < 1:
            loss, asked = self.asked_about(shelf.lesson(rng), rng)
            loss.backward()  # type: ignore[no-untyped-call]
            found |= asked
        self._step(stage)
        return found

    def _step(self, stage: Stage) -> None:
        multiple = stage.rate_at(self.step) * min(1.0, (self.step + 1) / _WARM_UP)
        for optimizer, rate in ((self.muon, stage.muon), (self.adam, stage.adam), (self.adam_lora, stage.lora)):
            parameters = [each for group in optimizer.param_groups for each in group["params"]]
            if rate and optimizer is not self.muon:
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            for group in optimizer.param_groups:
                group["lr"] = rate * multiple
            if rate:
                optimizer.step()
            optimizer.zero_grad()

    def looked_at(self, places: Sequence[tuple[Sheet, int]], rng: random.Random) -> tuple[Tensor, dict[str, float]]:
        """Loss, and shares of wrong characters and words, of pages at resolutions."""
        embeddings, features = self._see(places)
        return self._compared(places, torch.cat(embeddings), torch.cat(features), rng)

    def _compared(
        self, places: Sequence[tuple[Sheet, int]], embeddings: Tensor, features: Tensor, rng: random.Random
    ) -> tuple[Tensor, dict[str, float]]:
        letters = torch.cat([torch.from_numpy(sheet.letters(dpi)) for sheet, dpi in places]).to(self.device)
        tokens = [torch.from_numpy(sheet.tokens(self.prompts.tokenizer, dpi)) for sheet, dpi in places]
        by_letter, wrong = letter_loss(self.letters, features, letters)
        generator = torch.Generator().manual_seed(rng.getrandbits(62))
        seen = self.targets.losses(embeddings, torch.cat(tokens).to(self.device), generator)
        loss = _NEAR * seen.near + _WHICH * seen.which + _LETTERS * by_letter
        return loss, {"letters": wrong, "words": seen.wrong, "near": seen.near.item()}

    def _see(self, places: Sequence[tuple[Sheet, int]]) -> tuple[list[Tensor], list[Tensor]]:
        """Embeddings and features ``(tokens, ...)`` of pages at resolutions, equal sizes together."""
        pictures = [sheet.picture(dpi) for sheet, dpi in places]
        found: dict[int, tuple[Tensor, Tensor]] = {}
        for group in stack(pictures).values():
            for start in range(0, len(group), _TOGETHER):
                part = group[start : start + _TOGETHER]
                stacked = torch.stack([torch.from_numpy(pictures[index].copy()) for index in part])
                embeddings, features = self.forward.see(stacked.to(self.device))
                found.update(zip(part, zip(embeddings, features, strict=True), strict=True))
        ordered = [found[index] for index in range(len(places))]
        return [each[0] for each in ordered], [each[1] for each in ordered]

    def asked_about(self, lesson: Lesson, rng: random.Random) -> tuple[Tensor, dict[str, float]]:
        """Loss of the answers, and how many of them and of their tokens were right."""
        embeddings, features = self._see(lesson.places) if lesson.places else ([], [])
        batch = pack(lesson.contexts).to(self.device)
        logits = self._logits(lesson.contexts, batch, embeddings)
        chosen = batch.weights > 0
        labels, weights, number = batch.labels[chosen], batch.weights[chosen], batch.questions[chosen]
        right = logits.detach().argmax(-1) == labels
        found = {f"{lesson.task} tokens": float(right.float().mean())}
        if lesson.teachers is None:
            losses = F.cross_entropy(logits, labels, reduction="none")
            if (answer := number >= 0).any():
                missed = len(torch.unique(number[answer & ~right])) / len(torch.unique(number[answer]))
                found[f"{lesson.task} exact"] = 1 - missed
        else:
            losses = F.kl_div(logits.log_softmax(-1), self._own(lesson.teachers), reduction="none", log_target=True)
            losses = losses.sum(-1)
            found["own distance"] = float(losses.detach().mean())
        loss = (losses * weights).sum() / weights.sum()
        if embeddings and embeddings[0].requires_grad:
            beside, _ = self._compared(lesson.places, torch.cat(embeddings), torch.cat(features), rng)
            loss = loss + _BESIDE * beside
        return loss, found

    def _own(self, teachers: Sequence[Context]) -> Tensor:
        """SmolLM2's log-probabilities of the answers' tokens, where it reads the pages as text."""
        with torch.no_grad():
            batch = pack(teachers).to(self.device)
            return self._logits(teachers, batch, [], updated=False).log_softmax(-1)

    def _logits(
        self, contexts: Sequence[Context], batch: Batch, embeddings: Sequence[Tensor], *, updated: bool = True
    ) -> Tensor:
        """Logits at all places that have a weight in the loss, in the order of contexts and requests."""
        forward = self.forward
        x = forward.embed(batch.token_ids)
        shown = [
            embeddings[page]
            for context in contexts
            for page, (rows, _) in zip(context.pages, context.grids, strict=True)
            if rows  # a page of words has no visual tokens
        ]
        if shown:
            flat = x.view(-1, x.shape[-1]).index_copy(0, batch.visual[:, 0], torch.cat(shown))
            x = flat.view(x.shape)
        hidden = forward.read(x, batch.positions, batch.groups, updated=updated)
        return forward.logits(hidden[batch.weights > 0])

    def examine(self, stage: Stage) -> dict[str, float]:
        """Unseen pages in the profile's own look: wrong characters and words, and answers token by token."""
        found: dict[str, float] = {}
        with torch.no_grad():
            for dpi in DPIS:
                calm = replace(
                    stage, own_look=1.0, high=float(dpi == DPIS[1]), isolated=0.0, look=1.0, sheets=12,
                    kinds={"prose": 1.0}, tasks={}, muon=1.0,
                )  # fmt: skip
                rng = self.rng("examine", dpi)
                shelf = self._shelf(calm, "validation", rng)
                _, seen = self.looked_at([(each, dpi) for each in shelf.sheets], rng)
                found |= {f"unseen {name} {dpi}": value for name, value in seen.items()}
                for task, pages in (("repeat", 1), ("facts", 1), ("facts", 4)) if stage.look < 1 else ():
                    asked = replace(
                        calm, look=0.0, tasks={task: 1.0}, pages={str(pages): 1.0}, tokens=1500, muon=0.0, adam=0.0,
                        lora=1.0,
                    )  # fmt: skip
                    lesson = self._shelf(asked, "validation", rng).lesson(rng)
                    _, right = self.asked_about(lesson, rng)
                    found |= {f"unseen {name} {pages} at {dpi}": value for name, value in right.items()}
        return found

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {
            "identity": self.identity,
            "visual": self.model.model.visual.state_dict(),
            "lora": self.lora.state_dict(),
            "letters": self.letters.state_dict(),
            "optimizers": [each.state_dict() for each in (self.muon, self.adam, self.adam_lora)],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's state; raises ValueError for one of another model or text."""
        for name, value in self.identity.items():
            if state["identity"][name] != value:
                raise ValueError(f"it was trained with another {name}")
        self.model.model.visual.load_state_dict(state["visual"])
        self.lora.load_state_dict(state["lora"])
        self.letters.load_state_dict(state["letters"])
        for optimizer, saved in zip((self.muon, self.adam, self.adam_lora), state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)

    def _optimizers(self) -> tuple[torch.optim.Optimizer, ...]:
        """Muon for the tower's matrices, AdamW for its other parameters and the character head, AdamW for updates."""
        matrices: list[torch.nn.Parameter] = []
        plain = list(self.letters.parameters())
        for name, parameter in self.model.model.visual.named_parameters():
            inner = name.startswith(("blocks.", "merger."))
            (matrices if inner and parameter.ndim == 2 else plain).append(parameter)
        return (
            torch.optim.Muon(matrices, lr=1.0, weight_decay=0.02, momentum=0.95),
            torch.optim.AdamW(plain, lr=1.0, betas=(0.9, 0.98), weight_decay=0.0),
            torch.optim.AdamW(self.lora.parameters(), lr=1.0, betas=(0.9, 0.98), weight_decay=0.0),
        )


def _some(rng: random.Random, sheets: Sequence[Sheet], dpi: int, tokens: float) -> list[Sheet]:
    """Pages that hold about ``tokens`` visual tokens together, at least one."""
    found: list[Sheet] = []
    used = 0
    while used < tokens or not found:
        found.append(rng.choice(sheets))
        rows, columns = found[-1].grid(dpi)
        used += rows * columns
    return found


def open_run(
    folder: Path,
    recipe: Recipe,
    *,
    corpus: Sequence[Path] = (),
    device: str = "cpu",
    log: Callable[[dict[str, Any]], None] = lambda line: None,
) -> Trainer:
    """A run to train, new or as its checkpoint left it; :meth:`Trainer.run` trains.

    Parameters
    ----------
    corpus : Sequence[Path]
        Folders of text for a new run; by default the machine's documentation.
    device : str
        Such as ``cpu`` or ``cuda:0``.

    Raises
    ------
    MissingDependencyError
        SmolLM2's package is not installed.
    ConfigError
        Too little text, a font is missing, the sections do not fit the language model, or the checkpoint cannot be
        continued.
    """
    torch.set_flush_denormal(True)  # masked softmax makes denormals, which cost a CPU half of its speed
    where, base = resolve_device(device), load_base()  # what may be missing, before minutes of collecting text
    _check_sections(recipe, base)
    found = load_corpus(folder / "corpus.txt", corpus, lambda text: log({"doing": text}))
    return Trainer(folder, recipe, base, Tower(sections=recipe.sections), found, where, log)


def _check_sections(recipe: Recipe, base: Base) -> None:
    pairs = base.config.hidden_size // base.config.num_attention_heads // 2
    if recipe.sections and sum(recipe.sections) != pairs:
        raise ConfigError(
            f"recipe: sections must add up to {pairs}, half the dimension of a head of the language model, not to "
            f"{sum(recipe.sections)}."
        )


def export_run(run: Path, folder: Path) -> None:
    """Write a run's newest adapter.

    Raises
    ------
    ConfigError
        There is no checkpoint of smolglyph, or the adapter would be too large or cannot be written.
    """
    state = read_checkpoint(run)["run"]
    try:
        about = {name: state["identity"][name] for name in ("tower", "rank", "base", "profile", "corpus")}
        visual, lora = state["visual"], state["lora"]
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{run} holds the run of another reader; name one of smolglyph.") from error
    try:
        save_adapter(visual, lora, about, folder)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"The adapter cannot be written to {folder} ({error}); name another folder.") from error
