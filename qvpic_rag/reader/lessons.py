"""What the reader is taught: pages to see, and contexts with questions as applications send them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qvpic_rag.reader.facts import NOT_STATED, PAGES_PER_WORLD, FactQuestion, World, make_world
from qvpic_rag.reader.pictures import CELL, Look
from qvpic_rag.reader.prompts import REFINE_STYLES, STYLES, SYSTEM_PROMPTS, conversation
from qvpic_rag.reader.samples import Asked, Context
from qvpic_rag.reader.tokens import CHARACTERS, TRANSCRIBE
from qvpic_rag.reader.words import KINDS, person, value
from qvpic_rag.records import Message, Page, stable_digest

__all__ = ["DPIS", "Drawn", "Prompts", "Shelf", "draw_world", "free_text", "questions"]

DPIS = (72, 120)
_PROMPT_WEIGHT = 0.1  # of each token of a bare question: only the end of a name can be known
_ANSWER_WEIGHT = 6.0  # at least, of all tokens of an answer together: "yes" is worth a name
_COPY_WEIGHT = 0.3  # of each token of a page that is written down: they outnumber the answers'
# Harder kinds come more often than they are asked in measurements.
_PRACTICE = {"fact": 34, "look_alike": 12, "owner": 12, "yes_no": 18, "two_hop": 14, "not_stated": 10}
# Share of framed questions left open by the pages that bring an answer to repeat: what every later call of LlamaIndex's
# "refine" is about.
_REPEAT = 0.5
_FRAMED = tuple(style for style in STYLES if style != "bare")


@dataclass(frozen=True, eq=False)
class Drawn:
    """A world and the pictures of its pages.

    Attributes
    ----------
    dpis : tuple[int, ...]
        Resolution of each page: all low, all high, or mixed, as the pages of a request are.
    pictures : list[NDArray[uint8]]
        ``(height, width)`` each, grey.
    """

    world: World
    look: Look
    pages: list[Page]
    dpis: tuple[int, ...]
    pictures: list[npt.NDArray[np.uint8]]

    def grid(self, page: int) -> tuple[int, int]:
        """Rows and columns of visual tokens."""
        height, width = self.pictures[page].shape
        return height // CELL, width // CELL


def draw_world(
    rng: random.Random, split: str, look: Look, pages: int = PAGES_PER_WORLD, *, dpi: int | None = None
) -> Drawn:
    """Generate a world and draw it; at one resolution if ``dpi`` names it."""
    return _drawn(rng, make_world(rng, split, pages, look.fits), look, dpi)


def free_text(rng: random.Random, split: str, look: Look, pages: int) -> Drawn:
    """Pages of words, values and odd characters that mean nothing: reading practice beyond the wordings of facts.

    Nothing is asked about them, and a name in small letters may be what another split has as a value.
    """
    texts = [_scribble(rng, split, look) for _ in range(pages)]
    return _drawn(rng, World(split, tuple(texts), (), ()), look, None)


def _drawn(rng: random.Random, world: World, look: Look, dpi: int | None) -> Drawn:
    pages = [page for text in world.pages if (page := look.page(text)) is not None]
    if dpi is None and rng.random() < 0.5:
        dpi = rng.choice(DPIS)
    dpis = tuple(dpi or rng.choice(DPIS) for _ in pages)
    return Drawn(world, look, pages, dpis, [look.picture(*drawn) for drawn in zip(pages, dpis, strict=True)])


def _scribble(rng: random.Random, split: str, look: Look) -> str:
    text, odd = "", rng.random()
    longest = rng.choice((20, 60, 200, 200))
    while len(text) < longest:
        draw = rng.random()
        if odd < 0.25:
            word = "".join(rng.choice(CHARACTERS[2:]) for _ in range(rng.randint(1, 9)))
        elif draw < 0.4:
            word = value(rng, split, rng.choice(KINDS))
        else:
            word = person(rng, split)
            word = word.lower() if draw < 0.8 else word.upper() if draw < 0.85 else word
            word += rng.choice((*" " * 8, *",.;:?!"))
        joined = f"{text} {word}".strip()
        if not look.fits(joined):
            break
        text = joined
    return text or "empty"


class Prompts:
    """Token ids of requests, cut by the engine's own chat template.

    Parameters
    ----------
    template : Any
        A :class:`qvpic_rag.template.ChatTemplate`, without a system prompt.
    with_system : Sequence[Any]
        Others, each with one.
    tokenizer : Any
        Of the reader.

    Attributes
    ----------
    vocabulary : str
        SHA-256 (hex) of the tokens and their ids, which weights depend on.
    """

    def __init__(self, template: Any, with_system: Sequence[Any], tokenizer: Any) -> None:
        self.template, self.with_system = template, list(with_system)
        self._tokenizer, self._end = tokenizer, int(tokenizer.eos_token_id)
        self.vocabulary = stable_digest(tokenizer.get_vocab())

    def ids(self, messages: Sequence[Message], answer: str) -> tuple[list[int], list[int]]:
        """Token ids after the pages, and of the answer with the end token."""
        prompt = self.template.suffix(messages)
        return prompt, [*self._tokenizer(answer, add_special_tokens=False)["input_ids"], self._end]

    def transcription(self, page: Page) -> Asked:
        """The page's lines, written down."""
        prompt, answer = self.ids((Message("user", TRANSCRIBE),), "\n".join(page.lines))
        return Asked(prompt, answer, weight=_COPY_WEIGHT, copied=True)

    def asked(self, rng: random.Random, question: FactQuestion, framed: float, earlier: list[FactQuestion]) -> Asked:
        """A question as it arrives: bare, or with chance ``framed`` inside a framework's prompt.

        ``earlier`` are questions about the same pages, for turns of chat that came before; this one is left out.
        """
        if rng.random() >= framed:
            prompt, answer = self.ids(conversation("bare", question.text), question.answer)
            return Asked(prompt, answer, _answer_weight(answer), prompt_weight=_PROMPT_WEIGHT)
        style = rng.choice(_FRAMED) if rng.random() < 0.8 else "bare"
        if question.answer == NOT_STATED and rng.random() < _REPEAT:
            style = rng.choice(REFINE_STYLES)
        earlier = [each for each in earlier if each.text != question.text]
        existing, answer_text = None, question.answer
        if style in REFINE_STYLES:
            existing = rng.choice([each.answer for each in earlier] + [NOT_STATED, question.answer])
            if question.answer == NOT_STATED:
                answer_text = existing  # what refine asks for where the pages do not help
        chat = rng.random() < 0.15
        history = [(each.text, each.answer) for each in rng.sample(earlier, min(2, len(earlier)))] if chat else []
        system = rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.15 else None
        messages = conversation(style, question.text, existing=existing, history=history, system=system)
        prompt, answer = self.ids(messages, answer_text)
        return Asked(prompt, answer, _answer_weight(answer))

    def context(self, rng: random.Random) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """Prefix, open and close ids; now and then with a system prompt in the prefix."""
        template = rng.choice(self.with_system) if rng.random() < 0.1 else self.template
        return template.prefix, template.open, template.close


def _answer_weight(answer: Sequence[int]) -> float:
    return max(1.0, _ANSWER_WEIGHT / len(answer))


def questions(rng: random.Random, world: World, pages: Sequence[int], count: int) -> list[FactQuestion]:
    """``count`` questions about a selection of a world's pages, mostly different."""
    found: list[FactQuestion] = []
    known: set[str] = set()
    for attempt in range(40 * count):
        question = world.ask(rng, pages, rng.choices(list(_PRACTICE), list(_PRACTICE.values()))[0])
        if question is not None and (question.text not in known or attempt > 20 * count):
            known.add(question.text)
            found.append(question)
            if len(found) == count:
                break
    return found


class Shelf:
    """Drawn worlds and where each of their pictures is in one list of pictures (or of embeddings made from it)."""

    def __init__(self, worlds: Sequence[Drawn]) -> None:
        self.worlds = list(worlds)
        self.pictures: list[npt.NDArray[np.uint8]] = []
        self.places: dict[tuple[int, int], int] = {}
        for number, drawn in enumerate(self.worlds):
            for page, picture in enumerate(drawn.pictures):
                self.places[number, page] = len(self.pictures)
                self.pictures.append(picture)

    def context(
        self,
        rng: random.Random,
        prompts: Prompts,
        pages: int,
        count: int,
        *,
        framed: float,
        isolated: bool = False,
        transcribe: bool = False,
        at: tuple[int, int] | None = None,
    ) -> Context | None:
        """A context of ``pages`` pages with ``count`` questions; None where its pages say nothing to ask.

        The pages are chosen by chance, or are the one page ``(world, page)`` that ``at`` names.
        """
        number = rng.randrange(len(self.worlds)) if at is None else at[0]
        drawn = self.worlds[number]
        chosen = rng.sample(range(len(drawn.pages)), pages) if at is None else [at[1]]
        asked = questions(rng, drawn.world, chosen, count)
        if len(asked) < count and not transcribe:
            return None
        prefix, before, after = prompts.context(rng)
        segments = [prompts.asked(rng, each, framed, asked) for each in asked]
        if transcribe:
            segments.append(prompts.transcription(drawn.pages[chosen[0]]))
        return Context(
            prefix,
            before,
            after,
            [self.places[number, page] for page in chosen],
            [drawn.grid(page) for page in chosen],
            segments,
            isolated,
        )
