"""Training a reader: what one step of a recipe's stage is.

:mod:`qvpic_rag.reader.loop` goes through the stages, keeps checkpoints and continues a run on any machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from qvpic_rag.errors import MissingDependencyError
from qvpic_rag.reader.lessons import DPIS, Drawn, Prompts, Shelf, draw_world, free_text, questions
from qvpic_rag.reader.loop import Loop
from qvpic_rag.reader.network import TrainingForward
from qvpic_rag.reader.pictures import SLOTS, UNSURE, looks, stack
from qvpic_rag.reader.recipe import Recipe, Stage
from qvpic_rag.reader.samples import COPIED, Batch, Context, pack
from qvpic_rag.reader.tokens import CHARACTERS

__all__ = ["Prepared", "Trainer", "examine"]

_WARM_UP = 40  # steps of a stage over which its learning rate rises
_EDGE = 0.25  # pixels; see Look.letters
_EMPTY = 0.1  # weight of "no character here"
_CHOICE = 3  # times as many contexts as a batch holds are drawn, to choose some of similar length
_FREE = 0.2  # share of batches of single pages that may be meaningless text, to be written down


class Trainer(Loop[Stage, "Prepared"]):
    """One run.

    Parameters
    ----------
    folder : Path
        Of the run; made if missing. A checkpoint in it is continued.
    recipe : Recipe
        Stages. A continued run may have another recipe: finished stages are recognised by their names.
    model : Any
        ``Glm4vForConditionalGeneration`` with float32 weights; a checkpoint's weights replace them.
    prompts : Prompts
        Cuts requests into token ids.
    log : Callable[[dict[str, Any]], None]
        Called with every line that goes into the log.

    Raises
    ------
    ConfigError
        The folder cannot be made, its checkpoint cannot be continued, or a font is missing.
    MissingDependencyError
        torch has no Muon.
    """

    def __init__(
        self, folder: Path, recipe: Recipe, model: Any, prompts: Prompts, log: Callable[[dict[str, Any]], None]
    ) -> None:
        super().__init__(folder, recipe.stages, recipe.seed, log)
        self.recipe, self.model, self.prompts = recipe, model, prompts
        self.forward = TrainingForward(model)
        width = model.config.text_config.hidden_size
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            self.letters = torch.nn.Linear(width, SLOTS * len(CHARACTERS)).to(model.device)
        self.optimizers = self._optimizers()
        self.looks = looks(recipe.looks, recipe.seed)
        self.resume()

    def prepare(self, stage: Stage, rng: random.Random) -> Prepared:
        """Worlds for the next steps."""
        return Prepared(self, stage, rng)

    def examine(self, stage: Stage) -> dict[str, float]:
        """Exact match on unseen documents, teacher-forced: a glimpse during training, not a measurement."""
        return examine(self)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {
            "vocabulary": self.prompts.vocabulary,
            "model": self.model.state_dict(),
            "letters": self.letters.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's state; raises ValueError for one of another tokenizer."""
        if state["vocabulary"] != self.prompts.vocabulary:
            raise ValueError("it was trained with other words than the tokenizer has now")
        self.model.load_state_dict(state["model"])
        self.letters.load_state_dict(state["letters"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            bases = [group["base"] for group in optimizer.param_groups]
            optimizer.load_state_dict(saved)
            for group, base in zip(optimizer.param_groups, bases, strict=True):
                group["base"] = base  # the recipe may have changed

    def learn(self, stage: Stage, shelf: Prepared, rng: random.Random) -> dict[str, float]:
        """One optimiser step."""
        rate = stage.rate_at(self.step) * min(1.0, (self.step + 1) / _WARM_UP)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base"] * rate
        if rng.random() < stage.see or not stage.pages:
            loss, found = self._see(shelf.batch_to_see(rng, stage.tokens))
        else:
            loss, found = self._ask(stage, shelf, rng)
        loss.backward()  # type: ignore[no-untyped-call]
        plain = [p for group in self.optimizers[1].param_groups for p in group["params"]]
        torch.nn.utils.clip_grad_norm_(plain, 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return found

    def _see(self, batch: tuple[int, Tensor, Tensor]) -> tuple[Tensor, dict[str, float]]:
        dpi, pictures, letters = batch
        loss, error = self.letter_loss(self.forward.see(pictures), letters)
        return loss, {f"letters {dpi}": error}

    def letter_loss(self, embeddings: Tensor, letters: Tensor) -> tuple[Tensor, float]:
        """Loss and share of wrong characters, where each visual token names those in its cell."""
        weight, bias = self.letters.weight.to(embeddings.dtype), self.letters.bias.to(embeddings.dtype)
        logits = F.linear(embeddings, weight, bias).float().view(-1, len(CHARACTERS))
        labels = letters.flatten()
        there = labels > 0
        losses = F.cross_entropy(logits, labels, reduction="none", ignore_index=UNSURE)
        weights = torch.where(there, 1.0, torch.where(labels == UNSURE, 0.0, _EMPTY))
        wrong = (logits.detach().argmax(-1) != labels)[there].float().mean().item()
        return (losses * weights).sum() / weights.sum(), wrong

    def _ask(self, stage: Stage, shelf: Prepared, rng: random.Random) -> tuple[Tensor, dict[str, float]]:
        pages = int(rng.choices(list(stage.pages), list(stage.pages.values()))[0])
        contexts = shelf.contexts(rng, stage, pages)
        batch = pack(contexts).to(self.model.device)
        visual = shelf.embeddings(batch.pictures)
        loss, seen = self.answer_loss(batch, visual)
        found = {f"{name} {pages}": value for name, value in seen.items()}
        found["loss"] = loss.item()
        if not stage.freeze_vision:
            letter_loss, error = self.letter_loss(visual, shelf.letters(batch.pictures))
            loss = loss + 0.3 * letter_loss
            found["letters"] = error
        return loss, found

    def answer_loss(self, batch: Batch, visual: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Loss; share of answers ``missed`` anywhere, and of ``copied`` tokens wrong, given all before them."""
        forward = self.forward
        x = forward.embed(batch.token_ids)
        flat = x.view(-1, x.shape[-1]).index_copy(0, batch.visual[:, 0], visual)
        hidden = forward.read(flat.view(x.shape), batch.positions, batch.groups)
        chosen = batch.weights > 0
        logits, labels, weights = forward.logits(hidden[chosen]), batch.labels[chosen], batch.weights[chosen]
        losses = F.cross_entropy(logits, labels, reduction="none")
        wrong = logits.detach().argmax(-1) != labels
        number, seen = batch.questions[chosen], {}
        if (copied := number == COPIED).any():
            seen["copied"] = wrong[copied].float().mean().item()
        if (answer := number >= 0).any():
            questions = torch.unique(number[answer])
            missed = torch.unique(number[answer & wrong])
            seen["missed"] = len(missed) / len(questions)
        return (losses * weights).sum() / weights.sum(), seen

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        """Muon for the weight matrices of layers, AdamW for embeddings, norms, biases and the output."""
        matrices: list[torch.nn.Parameter] = []
        plain = list(self.letters.parameters())
        for name, parameter in self.model.named_parameters():
            inner = any(part in name for part in (".layers.", ".blocks.", ".merger."))
            (matrices if inner and parameter.ndim == 2 else plain).append(parameter)
        if not hasattr(torch.optim, "Muon"):
            raise MissingDependencyError("Training needs torch 2.9 or newer; install: pip install 'qvpic-rag[reader]'")
        muon = torch.optim.Muon(matrices, lr=self.recipe.muon_rate, weight_decay=0.02, momentum=0.95)
        adam = torch.optim.AdamW(plain, lr=self.recipe.adam_rate, betas=(0.9, 0.98), weight_decay=0.0)
        for optimizer in (muon, adam):
            for group in optimizer.param_groups:
                group["base"] = group["lr"]
        return [muon, adam]


class Prepared:
    """A shelf of drawn worlds for a number of steps, with what is computed once for all of them."""

    def __init__(self, trainer: Trainer, stage: Stage, rng: random.Random) -> None:
        own, others = trainer.looks[0], trainer.looks[1:]
        worlds: list[Drawn] = []
        for index in range(stage.worlds):
            look = own if rng.random() < stage.own_look or not others else rng.choice(others)
            worlds.append(draw_world(rng, "train", look))
            if stage.see and index % 2:
                worlds.append(free_text(rng, "train", look, 16))
        self.trainer = trainer
        self.shelf = Shelf(worlds)
        self.prompts = trainer.prompts
        self._where = {place: key for key, place in self.shelf.places.items()}
        self._groups = [group for group in stack(self.shelf.pictures).values() if len(group) >= 4]
        # Those of them that state something that can be asked.
        states = {
            (number, fact.page) for number, drawn in enumerate(worlds) for fact in drawn.world.facts + drawn.world.owned
        }
        stating = [[index for index in group if self._where[index] in states] for group in self._groups]
        self._stating = [group for group in stating if group]
        self._all: list[Tensor] | None = None
        if stage.freeze_vision:
            with torch.no_grad():
                self._all = _look_at(trainer.forward, self.shelf.pictures, range(len(self.shelf.pictures)))

    def batch_to_see(self, rng: random.Random, tokens: int) -> tuple[int, Tensor, Tensor]:
        """DPI, pictures of one size, and their letters."""
        # By area: a batch holds a third as many pages at the high resolution, so it must come thrice as often.
        areas = [len(each) * self.shelf.pictures[each[0]].size for each in self._groups]
        group = rng.choices(self._groups, areas)[0]
        height, width = self.shelf.pictures[group[0]].shape
        count = max(4, tokens * 256 // (height * width))
        chosen = rng.sample(group, min(count, len(group)))
        pictures = torch.stack([torch.from_numpy(self.shelf.pictures[index].copy()) for index in chosen])
        world, page = self._where[chosen[0]]
        dpi = self.shelf.worlds[world].dpis[page]
        return dpi, pictures.to(self.trainer.model.device), self.letters(chosen)

    def letters(self, pictures: Sequence[int]) -> Tensor:
        """int64 ``(tokens, SLOTS)`` of pictures, one after the other."""
        found = []
        for index in pictures:
            world, page = self._where[index]
            drawn = self.shelf.worlds[world]
            height, width = drawn.pictures[page].shape
            found.append(
                torch.from_numpy(drawn.look.letters(drawn.pages[page], drawn.dpis[page], (height, width), edge=_EDGE))
            )
        return torch.cat(found).to(self.trainer.model.device)

    def contexts(self, rng: random.Random, stage: Stage, pages: int) -> list[Context]:
        """Contexts of similar length that fill a batch, padding included."""
        isolated = rng.random() < stage.isolated
        # Seeing many sizes in one step is slow; single pages are therefore all of one size while the tower learns.
        alike = None
        if pages == 1 and not stage.freeze_vision:
            groups = self._groups if stage.transcribe and rng.random() < _FREE else self._stating
            alike = rng.choices(groups, [len(each) for each in groups])[0]
        found: list[Context] = []
        while sum(context.length for context in found) < _CHOICE * stage.tokens:
            context = self.shelf.context(
                rng, self.prompts, pages, stage.questions[str(pages)], framed=stage.framed, isolated=isolated,
                transcribe=stage.transcribe and pages == 1,
                at=None if alike is None else self._where[rng.choice(alike)],
            )  # fmt: skip
            if context is not None and context.asked:
                found.append(context)
        found.sort(key=lambda context: context.length)
        longest = rng.randrange(len(found))
        count = max(1, stage.tokens // found[longest].length)
        return found[max(0, longest + 1 - count) : longest + 1]

    def embeddings(self, pictures: Sequence[int]) -> Tensor:
        """``(tokens, hidden)`` of pictures, one after the other."""
        if self._all is not None:
            return torch.cat([self._all[index] for index in pictures])
        return torch.cat(_look_at(self.trainer.forward, self.shelf.pictures, pictures))


def _look_at(forward: TrainingForward, pictures: Sequence[Any], chosen: Sequence[int], most: int = 48) -> list[Tensor]:
    """Embeddings ``(tokens, hidden)`` of the chosen pictures, equal sizes together."""
    found: list[Tensor | None] = [None] * len(chosen)
    weights = forward.vision_weights()
    for group in stack([pictures[index] for index in chosen]).values():
        for start in range(0, len(group), most):
            part = group[start : start + most]
            stacked = torch.stack([torch.from_numpy(pictures[chosen[index]].copy()) for index in part])
            seen = forward.see(stacked.to(forward.model.device), weights)
            for index, embedding in zip(part, seen, strict=True):
                found[index] = embedding
    return [each for each in found if each is not None]


def examine(trainer: Trainer, worlds: int = 16, counts: Sequence[int] = (1, 2, 4, 8)) -> dict[str, float]:
    """Exact match on unseen documents, teacher-forced: a glimpse during training, not a measurement."""
    found: dict[str, float] = {}
    template = trainer.prompts.template
    for dpi in DPIS:
        rng = random.Random(f"{trainer.recipe.seed} examine")
        shelf = Shelf([draw_world(rng, "validation", trainer.looks[0], dpi=dpi) for _ in range(worlds)])
        with torch.no_grad():
            everything = _look_at(trainer.forward, shelf.pictures, range(len(shelf.pictures)))
            for pages in counts:
                missed = []
                for number, drawn in enumerate(shelf.worlds):
                    chosen = rng.sample(range(len(drawn.pages)), pages)
                    asked = questions(rng, drawn.world, chosen, 6)
                    if not asked:
                        continue
                    context = Context(
                        template.prefix, template.open, template.close,
                        [shelf.places[number, page] for page in chosen], [drawn.grid(page) for page in chosen],
                        [trainer.prompts.asked(rng, each, 0.0, []) for each in asked],
                    )  # fmt: skip
                    batch = pack([context]).to(trainer.model.device)
                    visual = torch.cat([everything[place] for place in batch.pictures])
                    missed.append(trainer.answer_loss(batch, visual)[1]["missed"])
                found[f"exact {pages} at {dpi}"] = 1 - sum(missed) / len(missed)
    return found
