"""Generated documents: people and what is said of them, with known answers and known evidence pages.

They are the documents that the bundled reader reads (:mod:`qvpic_rag.reader.facts`), drawn from words that no training
run sees. What is tested is found under these kinds:

* a single fact: ``fact``, one sentence on one page;
* exact codes and numbers: any kind whose answer is one, tagged ``code`` and ``number``;
* look-alike distractors: ``look_alike``, where the same attribute is stated of a person whose name shares a word or
  differs in one letter; ``owner``, which person of many; and every ``fact``, since the same person has other attributes
  and other people have the same one;
* two hops: ``two_hop``, the attribute of whoever owns a thing, mostly over two pages;
* yes or no: ``yes_no``, where the claim that is denied is often the value of another person or one letter off;
* what no page states: ``not_stated``, of people and attributes that the pages do name, but not together.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, ClassVar

from qvpic_rag.errors import ConfigError, InputError
from qvpic_rag.evaluation.records import Example
from qvpic_rag.evaluation.suites.base import Paginator, one_of, some_of, whole
from qvpic_rag.reader.facts import PAGES_PER_WORLD, QUESTION_KINDS, FactQuestion, World, make_world
from qvpic_rag.reader.words import SPLITS
from qvpic_rag.records import Page

__all__ = ["Facts"]

_LONGEST = 40  # tokens of an answer
_PER_WORLD = 5  # questions about the pages of one world
_SCARCEST = 20  # times as many worlds are looked at as would do if every page held something to ask
_TRIES = 20  # draws for a question of a kind, not asked yet
_SELECTIONS = 40  # of a world's pages, looking for some that hold a question of a kind
_MISSES = 2000  # sentences in a row that fit no page
_CODE = re.compile(r"(?=.*[A-Z])[A-Z0-9-]+")


@dataclass(frozen=True)
class Facts:
    """The suite ``facts``.

    The questions about one world of sixteen pages follow each other, whatever the number of pages they are asked about.

    Attributes
    ----------
    pages : tuple[int, ...]
        How many pages of a world a question is asked about, 1 to 16; each count has its own questions.
    questions : int
        For each count.
    seed : int
        Of the worlds and the questions.
    split : str
        Whose names, values and wordings: ``test``, ``validation`` or ``train``. Readers are trained on ``train``.
    kinds : tuple[str, ...] | None
        Ask for these kinds in turn; None: all in their natural shares, in which look-alikes and two hops are rare.
    """

    name: ClassVar[str] = "facts"

    pages: tuple[int, ...] = (2, 4, 8, 16)
    questions: int = 50
    seed: int = 0
    split: str = "test"
    kinds: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        counts = tuple(self.pages) if isinstance(self.pages, tuple | list) else ()
        for pages in counts:
            whole("facts", "pages", pages, 1, PAGES_PER_WORLD)
        if not counts or len(set(counts)) < len(counts):
            raise ConfigError(f"facts.pages must be different numbers of pages such as (2, 4), not {self.pages!r}.")
        whole("facts", "questions", self.questions, 1)
        whole("facts", "seed", self.seed, 0)
        one_of("facts", "split", self.split, SPLITS)
        object.__setattr__(self, "pages", counts)
        if self.kinds is not None:
            object.__setattr__(self, "kinds", some_of("facts", "kinds", self.kinds, QUESTION_KINDS))

    @property
    def settings(self) -> Mapping[str, Any]:
        """The options."""
        return {
            "pages": list(self.pages),
            "questions": self.questions,
            "seed": self.seed,
            "split": self.split,
            "kinds": None if self.kinds is None else list(self.kinds),
        }

    def examples(self, reader: Paginator) -> Iterator[Example]:
        """World after world, and for each all counts of pages.

        Raises
        ------
        InputError
            Pages are too small for a sentence, or hold too few questions of the kinds asked for.
        """
        asked = dict.fromkeys(self.pages, 0)
        most = -(-self.questions // _PER_WORLD) * _SCARCEST
        for number in count():
            open_counts = [pages for pages in self.pages if asked[pages] < self.questions]
            if not open_counts:
                return
            if number == most:
                raise InputError(
                    f"{most} worlds hold only {asked[open_counts[0]]} of {self.questions} questions of the kinds asked "
                    f"for about {open_counts[0]} pages; ask for fewer, for more kinds, or about more pages."
                )
            world, drawn = self._world(reader, number)
            for pages in open_counts:
                for example in self._questions(world, drawn, pages, number, asked[pages]):
                    asked[pages] += 1
                    yield example

    def _world(self, reader: Paginator, number: int) -> tuple[World, list[Page]]:
        rng = random.Random(f"facts {self.split} {self.seed} {number}")
        world = make_world(rng, self.split, PAGES_PER_WORLD, _patient(reader.fits_one))
        drawn = []
        for index, text in enumerate(world.pages):
            [page] = reader.pages(text, f"world-{number}")
            drawn.append(replace(page, number=index))
        return world, drawn

    def _questions(
        self, world: World, drawn: Sequence[Page], pages: int, number: int, before: int
    ) -> Iterator[Example]:
        """Questions about ``pages`` pages of a world, where ``before`` were asked about as many of others."""
        rng = random.Random(f"facts {self.split} {self.seed} {number} {pages} {self.kinds}")
        kinds = [None] if self.kinds is None else self.kinds
        for _ in range(_SELECTIONS):  # few pages hold what a scarce kind needs: the first one decides which are taken
            chosen = rng.sample(range(PAGES_PER_WORLD), pages)
            if _draw(rng, world, chosen, kinds[before % len(kinds)], set()) is not None:
                break
        seen: set[str] = set()
        for index in range(min(_PER_WORLD, self.questions - before)):
            question = _draw(rng, world, chosen, kinds[(before + index) % len(kinds)], seen)
            if question is None:
                return
            seen.add(question.text)
            yield Example(
                id=f"{pages}p-{number}-{index}",
                group=f"world-{number}",
                kind=question.kind,
                pages=tuple(drawn[place] for place in chosen),
                before="",
                after=question.text,
                query=question.text,
                answers=(question.answer,),
                evidence=tuple(sorted(chosen.index(page) for page in question.evidence)),
                scoring="exact",
                max_new_tokens=_LONGEST,
                tags=_tags(question),
            )


def _draw(
    rng: random.Random, world: World, chosen: Sequence[int], kind: str | None, seen: set[str]
) -> FactQuestion | None:
    """A question not asked yet, or None where chance finds none of its kind."""
    for _ in range(_TRIES):
        question = world.ask(rng, chosen, kind)
        if question is not None and question.text not in seen:
            return question
    return None


def _tags(question: FactQuestion) -> tuple[str, ...]:
    tags = {
        "number": any(character.isdigit() for character in question.answer),
        "code": _CODE.fullmatch(question.answer) is not None,
        "name": question.kind in ("look_alike", "owner"),
        "negation": question.kind == "not_stated" or question.answer == "no",
        "two-hop": question.kind == "two_hop",
    }
    return tuple(tag for tag, holds in tags.items() if holds)


def _patient(fits: Callable[[str], bool]) -> Callable[[str], bool]:
    """``fits``, until so many texts in a row do not that none ever will."""
    misses = 0

    def patient(text: str) -> bool:
        nonlocal misses
        fitting = fits(text)
        misses = 0 if fitting else misses + 1
        if misses > _MISSES:
            raise InputError("No sentence fits a page; use a render profile with larger pages, or larger chunks.")
        return fitting

    return patient
