"""Generated documents: worlds of people, what is said of them on each page, and questions with known evidence.

A :class:`World` is a set of pages that belong together. Any selection of its pages, in any order, is a context:
:meth:`World.ask` draws a question whose answer follows from the pages selected, or is :data:`NOT_STATED` because no
selected page says it. Distractors are the rule: the same person has other attributes, other people have the same
attribute, and names and values differ by one letter from others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qvpic_rag.reader.wordings import wordings
from qvpic_rag.reader.words import ADJECTIVES, KINDS, NOUNS, check_split, look_alike, person, value

__all__ = ["NOT_STATED", "PAGES_PER_WORLD", "QUESTION_KINDS", "FactQuestion", "World", "make_world"]

NOT_STATED = "not stated"
PAGES_PER_WORLD = 16
QUESTION_KINDS = ("fact", "look_alike", "owner", "yes_no", "two_hop", "not_stated")
_SHARES = (46, 12, 8, 13, 12, 9)
_TRIES = 12


@dataclass(frozen=True)
class FactQuestion:
    """A question and what makes its answer right.

    Attributes
    ----------
    text, answer : str
        The bare question; one to six words.
    kind : str
        One of :data:`QUESTION_KINDS`.
    evidence : tuple[int, ...]
        Pages of the world that the answer follows from; empty where no page states it.
    """

    text: str
    answer: str
    kind: str
    evidence: tuple[int, ...]


@dataclass(frozen=True)
class _Fact:
    """``owner`` facts have the owned thing as ``subject`` and a person as ``value``."""

    page: int
    subject: str
    attribute: str
    value: str


@dataclass(frozen=True)
class World:
    """Pages of text and the facts on them.

    Attributes
    ----------
    split : str
        ``train``, ``validation`` or ``test``: where its names, values and wordings come from.
    pages : tuple[str, ...]
        One text per page.
    """

    split: str
    pages: tuple[str, ...]
    facts: tuple[_Fact, ...]
    owned: tuple[_Fact, ...]

    def ask(self, rng: random.Random, pages: Sequence[int], kind: str | None = None) -> FactQuestion | None:
        """Draw a question about a selection of pages.

        Parameters
        ----------
        pages : Sequence[int]
            Indices of the selected pages.
        kind : str, optional
            One of :data:`QUESTION_KINDS`; drawn if None.

        Returns
        -------
        FactQuestion | None
            None where the pages hold nothing to ask of that kind.
        """
        seen = set(pages)
        facts = [fact for fact in self.facts if fact.page in seen]
        owned = [fact for fact in self.owned if fact.page in seen]
        kind = kind or rng.choices(QUESTION_KINDS, _SHARES)[0]
        return getattr(self, f"_{kind}")(rng, facts, owned)  # type: ignore[no-any-return]

    def _fact(self, rng: random.Random, facts: list[_Fact], owned: list[_Fact]) -> FactQuestion | None:
        if not facts:
            return None
        fact = rng.choice(facts)
        return FactQuestion(self._asked(rng, fact.attribute, fact.subject), fact.value, "fact", (fact.page,))

    def _look_alike(self, rng: random.Random, facts: list[_Fact], owned: list[_Fact]) -> FactQuestion | None:
        """A fact beside one that differs in one letter of the name, or in the name alone."""
        pairs = [
            fact
            for fact in facts
            if any(
                other is not fact and other.attribute == fact.attribute and _alike(other.subject, fact.subject)
                for other in facts
            )
        ]
        if not pairs:
            return None
        fact = rng.choice(pairs)
        return FactQuestion(self._asked(rng, fact.attribute, fact.subject), fact.value, "look_alike", (fact.page,))

    def _owner(self, rng: random.Random, facts: list[_Fact], owned: list[_Fact]) -> FactQuestion | None:
        if not owned:
            return None
        fact = rng.choice(owned)
        text = rng.choice(wordings("ask_owner", self.split)).format(o=fact.subject)
        return FactQuestion(_sentence(text), fact.value, "owner", (fact.page,))

    def _yes_no(self, rng: random.Random, facts: list[_Fact], owned: list[_Fact]) -> FactQuestion | None:
        if not facts:
            return None
        fact = rng.choice(facts)
        claimed, answer = fact.value, "yes"
        if rng.random() < 0.5:
            kind = fact.attribute.split()[1]
            others = [
                other.value
                for other in facts
                if other.attribute.split()[1] == kind and other.value != fact.value and other.subject != fact.subject
            ]
            draw = rng.random()
            if others and draw < 0.5:
                claimed = rng.choice(others)
            elif draw < 0.8:
                claimed = look_alike(rng, self.split, fact.value) or value(rng, self.split, kind)
            else:
                claimed = value(rng, self.split, kind)
            answer = "yes" if claimed == fact.value else "no"
        text = rng.choice(wordings("check", self.split)).format(a=fact.attribute, p=fact.subject, v=claimed)
        return FactQuestion(_sentence(text), answer, "yes_no", (fact.page,))

    def _two_hop(self, rng: random.Random, facts: list[_Fact], owned: list[_Fact]) -> FactQuestion | None:
        chains = [(have, fact) for have in owned for fact in facts if fact.subject == have.value]
        if not chains:
            return None
        have, fact = rng.choice(chains)
        text = rng.choice(wordings("ask_through", self.split)).format(a=fact.attribute, o=have.subject)
        return FactQuestion(_sentence(text), fact.value, "two_hop", tuple(sorted({have.page, fact.page})))

    def _not_stated(self, rng: random.Random, facts: list[_Fact], owned: list[_Fact]) -> FactQuestion | None:
        """Mostly of people and attributes that the pages do name, but not together."""
        stated = {(fact.subject, fact.attribute) for fact in facts}
        people = sorted({fact.subject for fact in facts})
        attributes = sorted({fact.attribute for fact in facts})
        if not people:
            return None
        for _ in range(_TRIES):
            draw = rng.random()
            subject = rng.choice(people) if draw < 0.75 else person(rng, self.split)
            if 0.75 <= draw < 0.85:
                subject = look_alike(rng, self.split, rng.choice(people), name=True) or subject
            attribute = rng.choice(attributes) if rng.random() < 0.75 else _attribute(rng)
            if (subject, attribute) in stated:
                continue
            if rng.random() < 0.85:
                text = self._asked(rng, attribute, subject)
            else:
                claimed = value(rng, self.split, attribute.split()[1])
                text = rng.choice(wordings("check", self.split)).format(a=attribute, p=subject, v=claimed)
                text = _sentence(text)
            return FactQuestion(text, NOT_STATED, "not_stated", ())
        return None

    def _asked(self, rng: random.Random, attribute: str, subject: str) -> str:
        return _sentence(rng.choice(wordings("ask", self.split)).format(a=attribute, p=subject))


def make_world(rng: random.Random, split: str, pages: int, fits: Callable[[str], bool]) -> World:
    """Generate pages that fit.

    Parameters
    ----------
    rng : random.Random
        The only source of chance.
    split : str
        ``train``, ``validation`` or ``test``.
    pages : int
        Number of pages.
    fits : Callable[[str], bool]
        Whether a text fits one page.
    """
    check_split(split)
    return _Builder(rng, split, fits).build(pages)


class _Builder:
    """A world under construction."""

    def __init__(self, rng: random.Random, split: str, fits: Callable[[str], bool]) -> None:
        self.rng, self.split, self.fits = rng, split, fits
        self.people: list[str] = []
        self.facts: list[_Fact] = []
        self.owned: list[_Fact] = []
        self.taken: set[tuple[str, str]] = set()

    def build(self, pages: int) -> World:
        texts = [self._page(number) for number in range(pages)]
        return World(self.split, tuple(texts), tuple(self.facts), tuple(self.owned))

    def _page(self, number: int) -> str:
        """Sentences until one does not fit; some pages end earlier."""
        rng, text = self.rng, ""
        most = rng.choice((1, 2, 9, 9, 9, 9))
        for _ in range(most):
            for _ in range(_TRIES):
                sentence, keep = self._said(number)
                joined = f"{text}{' ' if rng.random() < 0.7 else chr(10)}{sentence}" if text else sentence
                if self.fits(joined):
                    break
                if text and rng.random() < 0.1:
                    return text
            else:
                if text:
                    return text
                continue
            text = joined
            keep()
        return text or self._page(number)

    def _said(self, page: int) -> tuple[str, Callable[[], None]]:
        """A sentence, and what to remember once it stands on a page."""
        rng, draw = self.rng, self.rng.random()
        if draw < 0.1:
            return self._filler(), lambda: None
        if draw < 0.26:
            return self._ownership(page)
        subject, attribute = self._subject(), self._some_attribute()
        if (subject, attribute) in self.taken:
            subject = self._new_person()
        kind = attribute.split()[1]
        alike = [fact.value for fact in self.facts if fact.attribute.split()[1] == kind]
        said = (alike and rng.random() < 0.2 and look_alike(rng, self.split, rng.choice(alike))) or value(
            rng, self.split, kind
        )
        text = rng.choice(wordings("state", self.split)).format(a=attribute, p=subject, v=said)
        fact = _Fact(page, subject, attribute, said)

        def keep() -> None:
            self.facts.append(fact)
            self.taken.add((subject, attribute))

        return _sentence(text), keep

    def _ownership(self, page: int) -> tuple[str, Callable[[], None]]:
        rng = self.rng
        known = [fact.subject for fact in self.facts]
        person_ = rng.choice(known) if known and rng.random() < 0.6 else self._subject()
        kind = rng.choice(("number", "code", "room"))
        while True:
            thing = f"{rng.choice(NOUNS)} {value(rng, self.split, kind)}"
            if all(fact.subject != thing for fact in self.owned):
                break
        text = rng.choice(wordings("state_owner", self.split)).format(o=thing, p=person_)
        return _sentence(text), lambda: self.owned.append(_Fact(page, thing, "owner", person_))

    def _filler(self) -> str:
        rng, split = self.rng, self.split
        return _sentence(
            rng.choice(wordings("fill", split)).format(
                p=self._subject(), q=person(rng, split), c=value(rng, split, "city"), d=value(rng, split, "date"),
                n=rng.choice(NOUNS), x=rng.choice(ADJECTIVES), y=rng.choice(ADJECTIVES),
            )
        )  # fmt: skip

    def _subject(self) -> str:
        """Somebody: known (of whom more is then said), new, or new with a name like a known one's."""
        return self.rng.choice(self.people) if self.people and self.rng.random() < 0.55 else self._new_person()

    def _new_person(self) -> str:
        rng = self.rng
        while True:
            if self.people and rng.random() < 0.25:
                model = rng.choice(self.people)
                first, _, last = model.partition(" ")
                other_first, _, other_last = person(rng, self.split).partition(" ")
                draw = rng.random()
                if not last or draw < 0.5:
                    name = look_alike(rng, self.split, model, name=True) or person(rng, self.split)
                else:
                    name = f"{first} {other_last or other_first}" if draw < 0.75 else f"{other_first} {last}"
            else:
                name = person(rng, self.split)
            if name not in self.people:
                self.people.append(name)
                return name

    def _some_attribute(self) -> str:
        rng = self.rng
        if self.facts and rng.random() < 0.4:
            return rng.choice(self.facts).attribute
        return _attribute(rng)


def _attribute(rng: random.Random) -> str:
    return f"{rng.choice(NOUNS)} {rng.choice(KINDS)}"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _alike(name: str, other: str) -> bool:
    """Whether two different names share a word or differ in one letter."""
    if name == other:
        return False
    if set(name.split()) & set(other.split()):
        return True
    return len(name) == len(other) and sum(a != b for a, b in zip(name, other, strict=True)) == 1
