"""Prompts and chat messages as LlamaIndex makes them, to what the engine is asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock
from qvpic_rag import Asked, Document, Message, Page, Recognised
from qvpic_rag.errors import InputError

from llama_index.llms.qvpic.tickets import TICKET, Ticket

__all__ = ["Request", "request_of", "turns_of"]

# SimpleSummarize writes its context with repr, in which a line break is the two characters \n.
_BETWEEN = re.compile(r"(?:\s|\\n)*")

_SYSTEM = (MessageRole.SYSTEM, MessageRole.DEVELOPER)
_ASSISTANT = (MessageRole.ASSISTANT, MessageRole.CHATBOT, MessageRole.MODEL)


@dataclass(frozen=True)
class Request:
    """What the engine is asked, and the tickets in it, in prompt order."""

    asked: Asked
    nodes: tuple[Ticket, ...]


def request_of(
    turns: Sequence[Message],
    find: Callable[[str], Ticket | None],
    read: Callable[[Sequence[Message], Sequence[Document | Page]], Asked],
) -> Request:
    """The request that turns amount to.

    Pages are scored against the words that the nodes were retrieved for, where there are nodes.

    Parameters
    ----------
    find : Callable[[str], Ticket | None]
        The ticket of a name.
    read : Callable[[Sequence[Message], Sequence[Document | Page]], Asked]
        :meth:`qvpic_rag.QVPIC.read`.

    Raises
    ------
    InputError
        The last turn is not the user's.
    """
    nodes: dict[tuple[str, str], Ticket] = {}
    redeemed = [Message(turn.role, _redeem(turn.content, find, nodes)) for turn in turns]
    asked = read(redeemed, [Document(ticket.text, ticket.ref_doc_id) for ticket in nodes.values()])
    query = next((ticket.query for ticket in nodes.values() if ticket.query.strip()), asked.query) or asked.question
    return Request(replace(asked, query=query), tuple(nodes.values()))


def turns_of(messages: Sequence[ChatMessage]) -> list[Message]:
    """Turns of text; what tools say counts as the user's.

    Raises
    ------
    InputError
        A message holds something else than text.
    """
    turns: list[Message] = []
    for message in messages:
        if any(not isinstance(block, TextBlock) for block in message.blocks):
            raise InputError("QVPICLLM reads text messages; leave pictures, audio and tool calls out of the chat.")
        text = "\n".join(block.text for block in message.blocks if isinstance(block, TextBlock))
        role = "system" if message.role in _SYSTEM else "assistant" if message.role in _ASSISTANT else "user"
        turns.append(Message(role, text))
    return turns


def _redeem(text: str, find: Callable[[str], Ticket | None], nodes: dict[tuple[str, str], Ticket]) -> str:
    """A text with placeholders for its runs of tickets, whose nodes are added; a ticket that repeats adds nothing."""
    pieces: list[str] = []
    cut = 0
    after_ticket = False
    for match in TICKET.finditer(text):
        ticket = find(match.group())
        if ticket is None:
            continue
        nodes.setdefault((ticket.ref_doc_id, ticket.text), ticket)
        between = text[cut : match.start()]
        if not (after_ticket and _BETWEEN.fullmatch(between)):
            pieces += [between, Recognised.PLACEHOLDER]
        cut, after_ticket = match.end(), True
    return "".join([*pieces, text[cut:]])
