"""Tickets: what stands for a retrieved node in a prompt, so that the model knows which node it was.

LlamaIndex hands a language model one string. A synthesizer puts into it whatever ``get_content(MetadataMode.LLM)`` of
a node returns; for a :class:`TicketNode` that is a short random name, minted when the node was retrieved. The model
finds the names and reads the nodes' pages. A name that was not minted here is plain text, so neither a document nor a
question can forge one.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from llama_index.core.base.llms.types import TextBlock
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import Document, MetadataMode, TextNode
from qvpic_rag import QVPICError

__all__ = ["TICKET", "TICKETS", "Ticket", "TicketBook", "TicketExpiredError", "TicketNode"]

TICKET = re.compile(r"qvpic-[0-9a-f]{16}")
"""What looks like a ticket."""

_KEPT_S = 3600.0  # after a ticket was last used; a query engine answers within seconds, a queue within minutes
_KEPT = 100_000
_REMEMBERED = 100_000  # names of expired tickets, so that one is told from a name that never was a ticket


class TicketExpiredError(QVPICError):
    """A prompt holds a ticket that was minted too long ago."""


@dataclass(frozen=True)
class Ticket:
    """A retrieved node.

    Attributes
    ----------
    text : str
        What the model is to read.
    node_id, ref_doc_id : str
        As LlamaIndex knows it.
    query : str
        The user's words it was retrieved for, "" where they are not known.
    rank : int
        Its place among the nodes of that query, from 0.
    score : float | None
        The retriever's.
    calls : list | None
        Where the query engine that retrieved it collects the model's calls.
    """

    text: str
    node_id: str
    ref_doc_id: str
    query: str
    rank: int
    score: float | None
    calls: list[dict[str, Any]] | None = field(default=None, compare=False, repr=False)


class TicketBook:
    """Tickets by name, for a while; safe to use from several threads.

    Parameters
    ----------
    kept_s : float
        Seconds that a ticket is kept after its last use.
    kept : int
        How many are kept at most; the longest unused goes first.
    clock : Callable[[], float]
        Seconds, never going back.
    """

    def __init__(self, kept_s: float = _KEPT_S, kept: int = _KEPT, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept_s, self._kept, self._clock = kept_s, kept, clock
        self._tickets: OrderedDict[str, tuple[float, Ticket]] = OrderedDict()  # the longest unused first
        self._expired: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._tickets)

    def mint(self, ticket: Ticket) -> str:
        """A new name for a ticket."""
        name = f"qvpic-{secrets.token_hex(8)}"
        with self._lock:
            self._forget()
            self._tickets[name] = self._clock(), ticket
        return name

    def find(self, name: str) -> Ticket | None:
        """The ticket of a name, or None where no such name was minted.

        Raises
        ------
        TicketExpiredError
            It was minted, too long ago.
        """
        with self._lock:
            self._forget()
            if name in self._expired:
                raise TicketExpiredError(
                    "The retrieved nodes in this prompt are too old to be looked up; run the query again."
                )
            if name not in self._tickets:
                return None
            _, ticket = self._tickets.pop(name)
            self._tickets[name] = self._clock(), ticket
            return ticket

    def _forget(self) -> None:
        oldest = self._clock() - self._kept_s
        while self._tickets:
            name, (used, _) = next(iter(self._tickets.items()))
            if used >= oldest and len(self._tickets) < self._kept:
                break
            del self._tickets[name]
            self._expired[name] = None
        while len(self._expired) > _REMEMBERED:
            self._expired.popitem(last=False)


TICKETS = TicketBook()
"""The tickets of this process."""


class TicketNode(TextNode):
    """A text node that a language model is shown as a ticket; everybody else sees the node as it is.

    The ticket is private: a node that is stored, sent or pickled becomes a plain one with its real text.
    """

    _ticket: str = PrivateAttr(default="")
    _text: str = PrivateAttr(default="")

    @classmethod
    def class_name(cls) -> str:
        """As stored nodes are called, so that loading one gives a plain ``TextNode``."""
        return "TextNode"

    @classmethod
    def of(cls, node: TextNode | Document, ticket: str) -> TicketNode:
        """A node like another one, shown as a ticket; they share metadata and relationships."""
        made = cls.model_construct(
            **{name: getattr(node, name) for name in TextNode.model_fields if hasattr(node, name)}
        )
        made._ticket, made._text = ticket, TextNode.get_content(made, MetadataMode.LLM)
        return made

    def _shown(self) -> bool:
        """Whether the ticket stands for what the node says; a postprocessor may have changed it since."""
        return bool(self._ticket) and super().get_content(MetadataMode.LLM) == self._text

    def get_content(self, metadata_mode: MetadataMode = MetadataMode.NONE) -> str:
        """The ticket for a language model, else the text."""
        if metadata_mode == MetadataMode.LLM and self._shown():
            return self._ticket
        return super().get_content(metadata_mode)

    def get_content_blocks(self, metadata_mode: MetadataMode = MetadataMode.NONE) -> list[Any]:
        """As :meth:`get_content`, for synthesizers that ask for content blocks."""
        if metadata_mode == MetadataMode.LLM and self._shown():
            return [TextBlock(text=self._ticket)]
        return super().get_content_blocks(metadata_mode)
