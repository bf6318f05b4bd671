"""What smolglyph is taught: pages to look at, and requests about pages with what should be answered."""

from __future__ import annotations

import random
import string
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from qvpic_rag.reader.facts import World, make_world
from qvpic_rag.reader.lessons import questions
from qvpic_rag.reader.pictures import Look
from qvpic_rag.reader.samples import Asked, Context
from qvpic_rag.reader.smolglyph.corpus import Corpus
from qvpic_rag.reader.smolglyph.pages import DPIS, Sheet, sheet
from qvpic_rag.reader.smolglyph.recipe import Stage
from qvpic_rag.reader.smolglyph.requests import BRIEFLY, Prompts
from qvpic_rag.reader.words import KINDS, person, value

__all__ = ["Answered", "Lesson", "Prose", "Shelf", "vocabulary_words"]

_LENGTHS = (60, 200, 450, 700, 700)  # characters that a page of running text is cut from
_WORLD = 8  # pages of a world of facts
_CONTINUED = 48  # tokens of a continuation
_WORLDS = 20  # worlds of a shelf that questions are asked about
_RARE = (0.25, 8.0)  # limits of how much more often a paragraph is drawn than another


@dataclass(frozen=True)
class Answered:
    """What SmolLM2 answered to a request about a text."""

    text: str
    request: str
    answer: str


@dataclass(frozen=True, eq=False)
class Lesson:
    """Contexts for one step.

    Attributes
    ----------
    task : str
        One of :data:`~qvpic_rag.reader.smolglyph.recipe.TASKS`.
    places : list[tuple[Sheet, int]]
        Page and resolution of each picture that the contexts name by number.
    teachers : list[Context] | None
        The same requests about the same pages as text, in the same order: where these are, SmolLM2's own
        probabilities are learnt and not the answers.
    """

    task: str
    contexts: list[Context]
    places: list[tuple[Sheet, int]]
    teachers: list[Context] | None = None


def vocabulary_words(tokenizer: Any) -> tuple[str, ...]:
    """The vocabulary's printable tokens that begin a word, without the blank before it."""
    tokens = (tokenizer.convert_tokens_to_string([token]) for token in sorted(tokenizer.get_vocab()))
    words = (token[1:] for token in tokens if token.startswith(" ") and token.isascii() and token.isprintable())
    return tuple(word for word in words if word and " " not in word)


class Prose:
    """Stretches of a split's paragraphs; paragraphs with rare tokens are drawn more often.

    Parameters
    ----------
    tokenizer : Any
        Of the language model.
    """

    def __init__(self, corpus: Corpus, split: str, tokenizer: Any) -> None:
        self.paragraphs = corpus.of(split)
        found: list[list[int]] = tokenizer(list(self.paragraphs), add_special_tokens=False)["input_ids"]
        counts: Counter[int] = Counter()
        for each in found:
            counts.update(each)
        usual = sum(len(each) for each in found) / max(1, len(counts))
        low, high = _RARE
        weights = [sum(min(high, max(low, (usual / counts[i]) ** 0.5)) for i in each) / len(each) for each in found]
        self._totals = list(accumulate(weights))

    def draw(self, rng: random.Random, length: int) -> str:
        """About ``length`` characters from the head of a sentence on."""
        place = bisect_left(self._totals, rng.random() * self._totals[-1])
        text = self.paragraphs[min(place, len(self.paragraphs) - 1)]
        heads = [0, *(i + 2 for i in range(len(text) - 40) if text[i] in ".!?" and text[i + 1] == " ")]
        return text[rng.choice(heads) :][:length].rstrip()


class Shelf:
    """Pages drawn for a number of steps.

    Parameters
    ----------
    stage : Stage
        Says how many and which pages.
    all_looks : Sequence[Look]
        The profile's own first.
    words : Sequence[str]
        From :func:`vocabulary_words`.
    answered : Sequence[Answered]
        SmolLM2's own answers; may be empty where no task asks for them.
    """

    def __init__(
        self,
        rng: random.Random,
        stage: Stage,
        split: str,
        all_looks: Sequence[Look],
        prose: Prose,
        words: Sequence[str],
        prompts: Prompts,
        answered: Sequence[Answered] = (),
    ) -> None:
        self.stage, self.split, self.prose, self.words, self.prompts = stage, split, prose, words, prompts
        self.answered, self._looks = answered, all_looks
        self._worlds: dict[int, tuple[World, list[Sheet]]] = {}
        self._world_sheets: list[Sheet] = []
        self.sheets = [self._seen(rng) for _ in range(stage.sheets)] if stage.look > 0 else []
        self._seed = rng.getrandbits(62) if stage.look < 1 else 0

    def look(self, rng: random.Random) -> Look:
        """The profile's own look, or chance."""
        own, others = self._looks[0], self._looks[1:]
        return own if rng.random() < self.stage.own_look or not others else rng.choice(others)

    def _seen(self, rng: random.Random) -> Sheet:
        kind = rng.choices(list(self.stage.kinds), list(self.stage.kinds.values()))[0]
        if kind == "facts":
            if not self._world_sheets:
                self._world_sheets = self.world(rng)[1].copy()
            return self._world_sheets.pop()
        return self.page(rng, kind)

    def page(self, rng: random.Random, kind: str) -> Sheet:
        """A page of running text of a kind."""
        make = {"prose": self._prose, "words": self._some_words, "codes": self._codes}[kind]
        while True:
            found = sheet(make(rng), self.look(rng))
            if found is not None:
                return found

    def world(self, rng: random.Random) -> tuple[World, list[Sheet]]:
        """A new world of facts and its pages."""
        look = self.look(rng)
        while True:
            made = make_world(rng, self.split, _WORLD, look.fits)
            drawn = [each for text in made.pages if (each := sheet(text, look)) is not None]
            if len(drawn) == _WORLD:
                return made, drawn

    def _numbered(self, number: int) -> tuple[World, list[Sheet]]:
        """One of the shelf's worlds to ask about, made when it is first asked for.

        It follows from its number alone: a run that goes on in the middle of a shelf has not made the others.
        """
        if number not in self._worlds:
            self._worlds[number] = self.world(random.Random(f"{self._seed} world {number}"))
        return self._worlds[number]

    def _prose(self, rng: random.Random) -> str:
        length = rng.choice(_LENGTHS)
        text = self.prose.draw(rng, length)
        while len(text) < length and rng.random() < 0.8:
            text += rng.choice((" ", "\n", "\n", "\n\n")) + self.prose.draw(rng, length - len(text))
        return text

    def _some_words(self, rng: random.Random) -> str:
        count = rng.choice((8, 30, 90, 90))
        found = [rng.choice(self.words) + (rng.choice(",.;:") if rng.random() < 0.1 else "") for _ in range(count)]
        return " ".join(found)

    def _codes(self, rng: random.Random) -> str:
        visible = string.ascii_letters + string.digits + string.punctuation
        found = []
        for _ in range(rng.choice((6, 20, 60))):
            draw = rng.random()
            if draw < 0.4:
                found.append(value(rng, self.split, rng.choice(KINDS)))
            elif draw < 0.7:
                found.append(person(rng, self.split))
            else:
                found.append("".join(rng.choice(visible) for _ in range(rng.randint(1, 9))))
        return " ".join(found).replace("<|", "< |")

    def lesson(self, rng: random.Random) -> Lesson:
        """Contexts of one task, as many as fill a batch."""
        tasks = self.stage.tasks
        task = rng.choices(list(tasks), list(tasks.values()))[0]
        if task == "own":
            return self._own(rng)
        make = {"repeat": self._repeat, "facts": self._facts, "continue": self._continue, "words": self._words}[task]
        lesson = Lesson(task, [], [])
        used = 0
        while used < self.stage.tokens * (1 - self.stage.look) or not lesson.contexts:
            context = make(rng, lesson)
            if context is not None:
                lesson.contexts.append(context)
                used += _length(context)
        return lesson

    def _picture(self, rng: random.Random, drawn: Sheet, lesson: Lesson) -> tuple[int, tuple[int, int]]:
        dpi = DPIS[1] if rng.random() < self.stage.high else DPIS[0]
        lesson.places.append((drawn, dpi))
        return len(lesson.places) - 1, drawn.grid(dpi)

    def _pictures(self, rng: random.Random, pages: Sequence[Sheet], asked: Sequence[Asked], lesson: Lesson) -> Context:
        shown = [self._picture(rng, each, lesson) for each in pages]
        isolated = rng.random() < self.stage.isolated
        indices, grids = zip(*shown, strict=True)
        return self.prompts.as_pictures(indices, grids, asked, isolated=isolated)

    def _repeat(self, rng: random.Random, lesson: Lesson) -> Context:
        drawn = self.page(rng, rng.choices(("prose", "words", "codes"), (8, 1, 1))[0])
        return self._pictures(rng, [drawn], [self.prompts.repeat(drawn.text)], lesson)

    def _continue(self, rng: random.Random, lesson: Lesson) -> Context | None:
        drawn, rest = self._broken_off(rng)
        return self._pictures(rng, [drawn], [self.prompts.go_on(rest)], lesson) if rest else None

    def _broken_off(self, rng: random.Random) -> tuple[Sheet, str]:
        """The head of a paragraph on a page, and what follows there."""
        text = self.prose.draw(rng, 1500)
        ids = self.prompts.ids(text)
        cut = len(self.prompts.tokenizer.decode(ids[: rng.randint(len(ids) // 3, max(1, 2 * len(ids) // 3))]))
        drawn = sheet(text[:cut].rsplit(" ", 1)[0], self.look(rng))
        if drawn is None or not text.startswith(drawn.text):
            return self.page(rng, "prose"), ""
        rest = text[len(drawn.text) :].lstrip()
        return drawn, self.prompts.tokenizer.decode(self.prompts.ids(rest)[:_CONTINUED])

    def _asked_facts(self, rng: random.Random) -> tuple[list[Sheet], list[Asked]]:
        """Pages of a world and questions about them; more pages, more questions."""
        shares = self.stage.pages
        count = int(rng.choices(list(shares), list(shares.values()))[0])
        made, drawn = self._numbered(rng.randrange(_WORLDS))
        chosen = rng.sample(range(len(drawn)), count)
        found = questions(rng, made, chosen, self.stage.questions + count - 1)
        return [drawn[i] for i in chosen], [self.prompts.asked(each.text + BRIEFLY, each.answer) for each in found]

    def _facts(self, rng: random.Random, lesson: Lesson) -> Context | None:
        pages, asked = self._asked_facts(rng)
        if not asked:
            return None
        if len(pages) == 1 and rng.random() < 0.3:
            asked.append(self.prompts.repeat(pages[0].text))
        return self._pictures(rng, pages, asked, lesson)

    def _words(self, rng: random.Random, lesson: Lesson) -> Context | None:
        """The other tasks, about pages that are words."""
        draw = rng.random()
        if draw < 0.6:
            pages, asked = self._asked_facts(rng)
            return self.prompts.as_text([each.text for each in pages], asked) if asked else None
        if draw < 0.8:
            drawn, rest = self._broken_off(rng)
            return self.prompts.as_text([drawn.text], [self.prompts.go_on(rest)]) if rest else None
        text = self._prose(rng)
        return self.prompts.as_text([text], [self.prompts.repeat(text)])

    def _own(self, rng: random.Random) -> Lesson:
        """SmolLM2's answers about texts; now and then of the text itself, which must not be forgotten either."""
        lesson = Lesson("own", [], [])
        teachers: list[Context] = []
        used = 0
        while used < self.stage.tokens * (1 - self.stage.look):
            chosen = rng.choice(self.answered)
            drawn = sheet(chosen.text, self.look(rng))
            if drawn is None:
                continue
            # A look with few lines shows the head of the text alone; then the teacher reads no more either.
            asked = [self.prompts.asked(chosen.request, chosen.answer)]
            teachers.append(self.prompts.as_text([drawn.text], asked))
            plain = rng.random() < 0.3
            lesson.contexts.append(teachers[-1] if plain else self._pictures(rng, [drawn], asked, lesson))
            used += _length(lesson.contexts[-1])
        return replace(lesson, teachers=teachers)


def _length(context: Context) -> int:
    pictures = sum(rows * columns for rows, columns in context.grids)
    return pictures + sum(len(each.prompt) + len(each.answer) for each in context.asked) + len(context.open)
