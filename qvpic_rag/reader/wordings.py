"""How generated documents state facts and how questions ask for them.

Wordings are combinations of parts, and each combination belongs to one split: a test question is worded as no
training question was, though its parts were seen. ``{a}`` is an attribute ("badge code"), ``{p}`` a person, ``{o}`` an
owned thing ("locker 4411"), ``{v}`` a value.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from itertools import product

from qvpic_rag.reader.words import check_split

__all__ = ["FAMILIES", "OWNERS", "fixed_words", "wordings"]

# Ways to speak of somebody's attribute, and of the owner of a thing.
_PHRASES = ("the {a} of {p}", "{p}'s {a}", "the {a} that {p} has", "the {a} for {p}", "the {a} belonging to {p}")
OWNERS = ("the owner of {o}", "the person who owns {o}", "whoever owns {o}")
_ASK = (
    "What is {b}?", "What's {b}?", "Tell me {b}.", "Give me {b}.", "Find {b}.", "Please state {b}.", "I need {b}.",
    "Please look up {b}.", "Do you know {b}?", "Can you tell me {b}?", "{b}?", "What do the pages say is {b}?",
    "I want to know {b}.", "Show {b}, please.", "According to the pages, what is {b}?", "Quickly: {b}?",
)  # fmt: skip
_ASK_WHOLE = (
    "Which {a} does {p} have?", "What {a} does {p} have?", "Which {a} belongs to {p}?", "Which {a} was given to {p}?",
    "For {p}, what is the {a}?", "{p}: what is the {a}?", "About {p}: which {a}?",
    "Which {a} do the pages give for {p}?",
)  # fmt: skip
_CHECK = (
    "Is {b} {v}?", "Is it true that {b} is {v}?", "Is {v} {b}?", "Yes or no: {b} is {v}?",
    "Can you confirm that {b} is {v}?", "Do the pages say that {b} is {v}?", "Is it right that {b} is {v}?",
)  # fmt: skip
_CHECK_WHOLE = ("Does {p} have {a} {v}?", "Does {a} {v} belong to {p}?", "Is {a} {v} the one of {p}?")
_OWNER_PHRASES = ("the owner of {o}", "the person who owns {o}", "the one who owns {o}")
_ASK_OWNER = (
    "Who is {b}?", "Tell me {b}.", "Name {b}.", "Find {b}.", "Please state {b}.", "{b}?", "Do you know {b}?",
    "Can you tell me {b}?", "I want to know {b}.", "What is the name of {b}?",
)  # fmt: skip
_ASK_OWNER_WHOLE = (
    "Who owns {o}?",
    "Whose is {o}?",
    "Who has {o}?",
    "To whom does {o} belong?",
    "Tell me who owns {o}.",
)
_LEAD = ("", "Note: ", "Now ")
_STATE = (
    "the {a} of {p} is {v}.", "{p} has {a} {v}.", "{p}: {a} {v}.", "{a} of {p}: {v}.", "{p}'s {a} is {v}.",
    "{v} is the {a} of {p}.", "the {a} for {p} is {v}.", "{a} for {p}: {v}.", "{p} uses {a} {v}.",
    "{p} was given {a} {v}.", "for {p} the {a} is {v}.", "the {a} that {p} has is {v}.",
)  # fmt: skip
_STATE_OWNER = (
    "{o} belongs to {p}.", "the owner of {o} is {p}.", "{p} owns {o}.", "{o}: owner {p}.", "{o} is owned by {p}.",
    "{p} is the owner of {o}.", "{o} is the property of {p}.", "{p} has {o}.",
)  # fmt: skip
_FILL = (
    "{p} met {q} in {c}.", "the {n} was {x} and {y}.", "{p} likes the {x} {n}.", "{p} wrote to {q}.",
    "the {x} {n} is in {c}.", "{p} and {q} came on {d}.", "no {n} was {x}.", "{p} left {c} on {d}.",
    "a {x} {n} is not a {y} one.", "it was {x} in {c}.",
)  # fmt: skip

# Combinations, which are divided among the splits, and whole sentences, which are only learnt from: a wording none of
# whose parts was seen would test knowledge of English, which a reader of this size has not.
_COMBINED: dict[str, tuple[str, ...]] = {
    "ask": tuple(ask.replace("{b}", phrase) for ask, phrase in product(_ASK, _PHRASES)),
    "check": tuple(check.replace("{b}", phrase) for check, phrase in product(_CHECK, _PHRASES)),
    "ask_owner": tuple(ask.replace("{b}", phrase) for ask, phrase in product(_ASK_OWNER, _OWNER_PHRASES)),
    # Of somebody known by what he owns; "the owner of locker 4411's badge code" is nobody's English.
    "ask_through": tuple(
        ask.replace("{b}", phrase).replace("{p}", owner)
        for ask, phrase, owner in product(_ASK, _PHRASES, OWNERS)
        if "'s" not in phrase
    ),
    "state": tuple(lead + state for lead, state in product(_LEAD, _STATE)),
    "state_owner": tuple(lead + state for lead, state in product(_LEAD, _STATE_OWNER)),
}
_WHOLE: dict[str, tuple[str, ...]] = {
    "ask": _ASK_WHOLE,
    "check": _CHECK_WHOLE,
    "ask_owner": _ASK_OWNER_WHOLE,
    "ask_through": tuple(ask.replace("{p}", owner) for ask, owner in product(_ASK_WHOLE[:5], OWNERS)),
}
FAMILIES = (*_COMBINED, "fill")
# What most people write must be among what a reader learns from.
_ALWAYS_TRAINED = {
    "What is the {a} of {p}?", "the {a} of {p} is {v}.", "{p} has {a} {v}.", "{p}: {a} {v}.", "{o} belongs to {p}.",
    "Is the {a} of {p} {v}?", "What is the {a} of the owner of {o}?",
}  # fmt: skip


@cache
def wordings(family: str, split: str) -> tuple[str, ...]:
    """The wordings of one of :data:`FAMILIES` that belong to a split. Fillers state nothing and serve every split."""
    check_split(split)
    if family == "fill":
        return _FILL
    free = sorted(set(_COMBINED[family]) - _ALWAYS_TRAINED, key=lambda each: sha256(each.encode()).digest())
    tenth = -(-len(free) // 10)
    held_out = {"validation": free[:tenth], "test": free[tenth : 2 * tenth]}
    if split in held_out:
        return tuple(held_out[split])
    known = (*_COMBINED[family], *_WHOLE.get(family, ()))
    return tuple(each for each in known if each not in free[: 2 * tenth])


def fixed_words() -> tuple[str, ...]:
    """All wordings, for building a tokenizer's word list."""
    return (*_FILL, *(each for group in (_COMBINED, _WHOLE) for family in group.values() for each in family))
