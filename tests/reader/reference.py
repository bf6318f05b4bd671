"""Generated documents and questions read back with regular expressions made of the wordings: a second, blunt reader.

It knows nothing of how a world is made. A sentence or question becomes the list of everything it can mean, so that
a test can ask for exactly one meaning; questions are then answered from what sentences say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

from qvpic_rag.reader.wordings import wordings
from qvpic_rag.reader.words import ADJECTIVES, KINDS, NOUNS, SPLITS

__all__ = ["QUESTIONS", "STATEMENTS", "VALUES", "Meaning", "answer", "meaning", "sentences"]

STATEMENTS = ("state", "state_owner", "fill")
QUESTIONS = ("ask", "check", "ask_owner", "ask_through")
NAME = r"(?!Now |Note\b)[A-Z][a-z]+(?: [A-Z][a-z]+)?"  # "Now Nina has ..." is not about somebody called Now Nina
VALUES = {
    "code": r"[A-Z]{2}-\d{2,4}|[A-Z0-9]{4,6}",
    "number": r"\d{2,6}|\d",
    "city": r"[A-Z][a-z]{2,}",
    "date": r"\d{1,2} [A-Z][a-z]{2} \d{4}",
    "key": r"[a-z]{3,}",
    "price": r"\$\d{1,3}\.\d{2}",
    "time": r"\d{2}:\d{2}",
    "room": r"[A-Z]\d{2,3}",
    "street": r"\d{1,3} [A-Z][a-z]{2,} [A-Z][a-z]{2,5}",
    "note": r"[a-z]+ [a-z]{3} [a-z]+ [a-z]+(?: [a-z]{2,4} [A-Za-z]+)?",
}
_NOUN, _ADJECTIVE = "|".join(NOUNS), "|".join(ADJECTIVES)
_OWNED = "|".join(f"(?:{VALUES[kind]})" for kind in ("number", "code", "room"))
_FIELDS = {
    "p": NAME, "q": NAME, "n": _NOUN, "x": _ADJECTIVE, "y": _ADJECTIVE, "c": VALUES["city"], "d": VALUES["date"],
    "o": f"(?:{_NOUN}) (?:{_OWNED})",
}  # fmt: skip


class Meaning(NamedTuple):
    """What a text says, in which wordings, and of which splits these are."""

    family: str
    fields: dict[str, str]
    wordings: frozenset[str]
    splits: frozenset[str]


@cache
def _patterns(family: str, kind: str) -> tuple[tuple[re.Pattern[str], str], ...]:
    """A pattern for each wording of any split; ``kind`` decides what attributes and values look like."""
    fields = {**_FIELDS, "a": f"(?:{_NOUN}) {kind}", "v": VALUES.get(kind, "")}
    return tuple(
        (
            re.compile(
                "".join(
                    f"(?P<{part[1]}>{fields[part[1]]})" if part.startswith("{") else re.escape(part)
                    for part in re.split(r"(\{\w\})", wording)
                )
            ),
            wording,
        )
        for wording in dict.fromkeys(each for split in SPLITS for each in wordings(family, split))
    )


def meaning(text: str, families: Iterable[str]) -> list[Meaning]:
    """Everything that a sentence or question can mean. Its first letter may be a capital for the sentence's sake."""
    kinds = sorted(set(re.findall(rf"\b(?:{'|'.join(KINDS)})\b", text.lower()))) or [""]
    found: dict[tuple[str, tuple[tuple[str, str], ...]], set[str]] = {}
    for family in families:
        for kind in kinds:
            for form in (text, text[0].lower() + text[1:]):
                for pattern, wording in _patterns(family, kind):
                    if match := pattern.fullmatch(form):
                        found.setdefault((family, tuple(sorted(match.groupdict().items()))), set()).add(wording)
    return [
        Meaning(
            family, dict(fields), frozenset(used),
            frozenset(split for split in SPLITS if used & set(wordings(family, split))),
        )
        for (family, fields), used in found.items()
    ]  # fmt: skip


def sentences(page: str) -> Iterator[Meaning]:
    """What a page says, sentence by sentence; each must mean exactly one thing."""
    for text in re.split(r"(?<=\.)[ \n]", page):
        meanings = meaning(text, STATEMENTS)
        assert len(meanings) == 1, (text, meanings)
        yield meanings[0]


def answer(pages: Iterable[str], question: str) -> str:
    """The right answer by what the pages say."""
    facts: dict[tuple[str, str], str] = {}
    owners: dict[str, str] = {}
    for said in (each for page in pages for each in sentences(page)):
        if said.family == "state":
            assert facts.setdefault((said.fields["p"], said.fields["a"]), said.fields["v"]) == said.fields["v"]
        elif said.family == "state_owner":
            assert owners.setdefault(said.fields["o"], said.fields["p"]) == said.fields["p"]
    [asked] = meaning(question, QUESTIONS)
    fields = asked.fields
    if asked.family == "ask_owner":
        return owners.get(fields["o"], "not stated")
    subject = owners.get(fields["o"], "") if asked.family == "ask_through" else fields["p"]
    stated = facts.get((subject, fields["a"]), "not stated")
    if asked.family == "check" and stated != "not stated":
        return "yes" if stated == fields["v"] else "no"
    return stated
