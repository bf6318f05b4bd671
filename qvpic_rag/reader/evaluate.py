"""How well a reader reads and answers: the tables of its card, on documents it never saw.

Everything goes through the engine: its renderer, its chat template, its compiler, its linking and its generation.
Names, values and wordings are of the ``test`` split.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from qvpic_rag.assemble import assemble
from qvpic_rag.baselines import FullPrefill
from qvpic_rag.compile import compile_pages, compile_text
from qvpic_rag.config import GenerateConfig, RenderProfile
from qvpic_rag.errors import ConfigError
from qvpic_rag.generate import generate, prompt
from qvpic_rag.models import VisionLanguageModel
from qvpic_rag.reader.facts import NOT_STATED, PAGES_PER_WORLD, FactQuestion, World, make_world
from qvpic_rag.reader.prompts import REFINE_STYLES, conversation
from qvpic_rag.reader.tokens import TRANSCRIBE
from qvpic_rag.records import BlockKey, KVBlock, Message, Page
from qvpic_rag.render import Renderer
from qvpic_rag.template import ChatTemplate

__all__ = ["CONDITIONINGS", "MODES", "Examiner", "Outcome", "character_errors"]

CONDITIONINGS = ("native", "prefix-free", "dummy-4")
MODES = ("low", "high", "evidence")
_LONGEST = 40  # tokens of an answer
_DUMMY = "x"
_TRIES = 50


@dataclass(frozen=True)
class Outcome:
    """One answered question.

    Attributes
    ----------
    world : int
        Questions of one world share pages, so intervals resample worlds.
    method : str
        ``full`` prefill or one of :data:`CONDITIONINGS` over page caches.
    mode : str
        All pages ``low`` or ``high``, or the ``evidence`` high and the others low.
    """

    world: int
    pages: int
    method: str
    mode: str
    style: str
    kind: str
    question: str
    expected: str
    answer: str

    @property
    def right(self) -> bool:
        """Exact match."""
        return self.answer == self.expected


class Examiner:
    """Asks a model about generated documents.

    Parameters
    ----------
    model : VisionLanguageModel
        Loaded by the engine.
    profile : RenderProfile
        How pages are drawn.
    dpis : tuple[int, int]
        Low and high resolution.
    """

    def __init__(self, model: VisionLanguageModel, profile: RenderProfile, dpis: tuple[int, int]) -> None:
        self.model, self.dpis = model, dpis
        self.template, self.renderer = ChatTemplate(model), Renderer(profile)
        self.full = FullPrefill(model, self.template)
        self.key = BlockKey("card", "", "", "", "", "", 0, "", "")  # blocks live as long as their question
        self.prefix = compile_text(model, self.template.prefix, self.key, prefix=0)
        self.settings = GenerateConfig(max_new_tokens=_LONGEST)

    def world(self, number: int, split: str = "test") -> tuple[World, list[Page]]:
        """A world of :data:`PAGES_PER_WORLD` pages, the same for the same number."""
        rng = random.Random(f"card {split} {number}")
        world = make_world(rng, split, PAGES_PER_WORLD, lambda text: len(self.renderer.pages(text, "card")) == 1)
        return world, [self.renderer.pages(text, "card")[0] for text in world.pages]

    def compiled(self, pages: Sequence[Page], dpi: int, conditioning: str) -> list[KVBlock]:
        """Blocks of pages at one resolution, each compiled alone."""
        prefix = self._condition(conditioning)
        blocks: dict[int, KVBlock] = {}
        images = [self.renderer.image(page, dpi) for page in pages]
        for size in {image.size for image in images}:
            chosen = [index for index, image in enumerate(images) if image.size == size]
            found = compile_pages(
                self.model, self.template, [images[i] for i in chosen], [self.key] * len(chosen), prefix=prefix
            )
            blocks.update(zip(chosen, found, strict=True))
        return [blocks[index] for index in range(len(pages))]

    def _condition(self, conditioning: str) -> list[int] | None:
        if conditioning not in CONDITIONINGS:
            raise ConfigError(f"conditioning must be one of {', '.join(CONDITIONINGS)}, not {conditioning!r}.")
        if conditioning == "native":
            return None
        if conditioning == "prefix-free":
            return []
        ids = self.model.tokenizer(_DUMMY, add_special_tokens=False)["input_ids"]
        return [*ids] * int(conditioning.removeprefix("dummy-"))

    def from_caches(self, messages: Sequence[Message], blocks: Sequence[KVBlock]) -> str:
        """The answer over linked page caches."""
        ids = self.template.suffix(messages)
        new = self.settings.max_new_tokens
        context = assemble(self.model, [self.prefix, *blocks], query_tokens=len(ids), new_tokens=new)
        return generate(self.model, prompt(self.model, context, ids), self.settings).text

    def exact_match(
        self,
        pages: int,
        worlds: Sequence[int],
        per_world: int,
        *,
        methods: Sequence[str] = ("full", *CONDITIONINGS),
        modes: Sequence[str] = MODES,
        styles: Sequence[str] = ("bare",),
        kind: str | None = None,
    ) -> Iterator[Outcome]:
        """Questions about ``pages`` pages of each world, each answered in every method and mode.

        ``kind`` asks for questions of one kind only; worlds whose pages hold none are passed over.
        """
        for number in worlds:
            world, drawn = self.world(number)
            rng = random.Random(f"card {pages} {number} {kind} {','.join(styles)}")
            chosen = rng.sample(range(PAGES_PER_WORLD), pages)
            shown = [drawn[index] for index in chosen]
            low, high = self.dpis
            needed = sorted({dpi for mode in modes for dpi in {"low": (low,), "high": (high,)}.get(mode, (low, high))})
            blocks = {
                (method, dpi): self.compiled(shown, dpi, method)
                for method in methods
                if method != "full"
                for dpi in needed
            }
            images = {dpi: [self.renderer.image(page, dpi) for page in shown] for dpi in needed}
            for index in range(per_world):
                question = _draw(rng, world, chosen, kind)
                if question is None:
                    continue
                style = styles[index % len(styles)]
                existing = NOT_STATED if style in REFINE_STYLES else None
                messages = conversation(style, question.text, existing=existing)
                for mode in modes:
                    dpis = self._resolutions(mode, chosen, question)
                    for method in methods:
                        if method == "full":
                            pictures = [images[dpi][place] for place, dpi in enumerate(dpis)]
                            text = self.full.answer(messages, pictures, self.settings).text
                        else:
                            linked = [blocks[method, dpi][place] for place, dpi in enumerate(dpis)]
                            text = self.from_caches(messages, linked)
                        yield Outcome(
                            number, pages, method, mode, style, question.kind, question.text, question.answer, text
                        )

    def _resolutions(self, mode: str, chosen: Sequence[int], question: FactQuestion) -> list[int]:
        low, high = self.dpis
        if mode == "evidence":
            return [high if page in question.evidence else low for page in chosen]
        return [low if mode == "low" else high] * len(chosen)

    def transcriptions(self, worlds: Sequence[int], dpi: int) -> Iterator[tuple[int, str, str]]:
        """``(world, what the page says, what the reader wrote)`` for two pages of each world."""
        settings = GenerateConfig(max_new_tokens=200)
        for number in worlds:
            _, pages = self.world(number)
            for page, block in zip(pages[:2], self.compiled(pages[:2], dpi, "native"), strict=True):
                ids = self.template.suffix([Message("user", TRANSCRIBE)])
                context = assemble(self.model, [self.prefix, block], query_tokens=len(ids), new_tokens=200)
                yield (
                    number,
                    "\n".join(page.lines),
                    generate(self.model, prompt(self.model, context, ids), settings).text,
                )


def _draw(rng: random.Random, world: World, pages: Sequence[int], kind: str | None) -> FactQuestion | None:
    """A question, or None where chance finds none of its kind."""
    for _ in range(_TRIES):
        question = world.ask(rng, pages, kind)
        if question is not None:
            return question
    return None


def character_errors(expected: str, found: str) -> int:
    """Levenshtein distance: characters to insert, delete or replace."""
    row = np.arange(len(found) + 1)
    for index, character in enumerate(expected):
        differs = np.array([character != other for other in found], dtype=np.int64)
        best = np.concatenate(([index + 1], np.minimum(row[1:] + 1, row[:-1] + differs)))
        # Insertions run along the row: the least of all earlier cells plus the distance to them.
        offsets = np.arange(len(best))
        row = np.minimum.accumulate(best - offsets) + offsets
    return int(row[-1])
