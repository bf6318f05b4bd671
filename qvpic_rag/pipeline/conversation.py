"""A conversation as an application sends it, taken apart into what the engine is asked.

Frameworks fill templates: the user's words and the retrieved texts arrive as one string, in one turn or several.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qvpic_rag.errors import InputError
from qvpic_rag.pipeline.recognise import Recognised
from qvpic_rag.records import Document, Message, Page

__all__ = ["Asked", "asked", "user_words"]

# Where the default templates of LlamaIndex and LangChain have the user's words, and what follows them there.
_LABEL = re.compile(r"^[ \t]*(?:Question|Query|The original query is as follows):[ \t]*", re.MULTILINE)
_NEXT = re.compile(
    r"^[ \t]*(?:Context|New Context|Answer|Helpful Answer|Original Answer|New Answer|Refined Answer|"
    r"We have provided an existing answer):",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Asked:
    """Arguments of :meth:`qvpic_rag.QVPIC.ask`.

    Attributes
    ----------
    question : str
        The last user turn, :attr:`Recognised.PLACEHOLDER` in place of the texts of stored pages.
    query : str
        The user's own words in it; "" where there are none.
    context : tuple[Document | Page, ...]
        What was given, or the pages that were recognised.
    system : str | None
        All system turns, joined by empty lines.
    history : tuple[Message, ...]
        The turns before the question, beginning with the user's.
    """

    question: str
    query: str
    context: tuple[Document | Page, ...]
    system: str | None
    history: tuple[Message, ...]


def asked(
    messages: Sequence[Message], context: Sequence[Document | Page], recognise: Callable[[str], Recognised]
) -> Asked:
    """Take a conversation apart.

    Turns of one role that follow each other are one turn. What the assistant said earlier is no retrieved text, and
    neither is what the user asks, even where it equals a stored page. A conversation that begins with the assistant, as
    one that was cut to a length may, gets an empty user turn before it.

    Parameters
    ----------
    messages : Sequence[Message]
        Oldest first; roles ``system``, ``user`` and ``assistant``.
    context : Sequence[Document | Page]
        What is known to be retrieved, such as documents that came beside the text. Nothing is recognised then.
    recognise : Callable[[str], Recognised]
        Finds the texts of stored pages.

    Raises
    ------
    InputError
        The last turn is not the user's.
    """
    if context:
        recognise = _nothing
    pages: dict[Page, None] = {}
    systems: list[str] = []
    turns: list[Message] = []
    for message in messages:
        if message.role == "system":
            systems += [message.content] if message.content else []
        elif turns and turns[-1].role == message.role:
            parts = (turns[-1].content, message.content)
            turns[-1] = Message(message.role, "\n\n".join(part for part in parts if part))
        else:
            turns.append(message)
    if not turns or turns[-1].role != "user":
        raise InputError("The last message must be the user's; add one that asks.")
    if turns[0].role != "user":
        turns.insert(0, Message("user", ""))

    instructions = recognise("\n\n".join(systems))
    pages.update(dict.fromkeys(instructions.pages))
    for at, turn in enumerate(turns):
        if turn.role == "user":
            found = _without_pages(turn.content, recognise)
            turns[at] = Message("user", found.text)
            pages.update(dict.fromkeys(found.pages))
    question = turns[-1].content
    return Asked(question, user_words(question), (*context, *pages), instructions.text or None, tuple(turns[:-1]))


def _nothing(text: str) -> Recognised:
    return Recognised(text, ())


def _without_pages(turn: str, recognise: Callable[[str], Recognised]) -> Recognised:
    """A user's turn without retrieved texts, but with the user's words, whatever they equal."""
    found = recognise(turn)
    labelled, words = _words(found.text)
    if (Recognised.PLACEHOLDER not in words) if labelled else words.replace(Recognised.PLACEHOLDER, "").strip():
        return found
    _, words = _words(turn)
    before, after = turn.rsplit(words, 1) if words else (turn, "")
    parts = recognise(before), recognise(after)
    return Recognised(parts[0].text + words + parts[1].text, parts[0].pages + parts[1].pages)


def user_words(turn: str) -> str:
    """The user's own words in a turn: what pages are scored against.

    What follows the last line that begins with ``Question:``, ``Query:`` or ``The original query is as follows:``, up
    to the next label of a template; where there is nothing of the kind, the whole turn. Places of pages are left out.
    """
    for words in (_words(turn)[1], turn):
        if found := words.replace(Recognised.PLACEHOLDER, " ").strip():
            return found
    return ""


def _words(turn: str) -> tuple[bool, str]:
    """Whether there is a label, and what stands behind it, else everything."""
    labels = list(_LABEL.finditer(turn))
    if not labels:
        return False, turn
    start = labels[-1].end()
    following = _NEXT.search(turn, start)
    return True, turn[start : following.start() if following else len(turn)]
