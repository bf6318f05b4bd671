"""What every method of answering is: offline work on pages, then questions about them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from qvpic_rag.config import GenerateConfig
from qvpic_rag.records import Answer, Page

__all__ = ["Method", "Offline", "Request"]


@dataclass(frozen=True)
class Request:
    """One question about pages, the same for every method.

    Attributes
    ----------
    pages : tuple[Page, ...]
        The context, in its order.
    before, after : str
        What the user turn says before and after the pages; ``after`` holds the question.
    query : str
        The words that pages are scored against.
    generation : GenerateConfig
        How the answer is generated.
    """

    pages: tuple[Page, ...]
    before: str
    after: str
    query: str
    generation: GenerateConfig


@dataclass(frozen=True)
class Offline:
    """What was done ahead of questions: ``pages`` pages, ``seconds`` of work, ``nbytes`` of caches kept."""

    pages: int
    seconds: float
    nbytes: int


class Method(ABC):
    """One way to answer; ``name`` is its specification as users write it."""

    name: str

    @abstractmethod
    def prepare(self, pages: Sequence[Page], before: str) -> Offline:
        """Do ahead of questions what can be done; pages that are prepared already cost nothing.

        ``before`` is what the user turn says before the pages: where it is part of what conditions them, caches hold
        for it alone.
        """

    @abstractmethod
    def forget(self) -> None:
        """Let go of what :meth:`prepare` and earlier questions left in memory."""

    @abstractmethod
    def answer(self, request: Request) -> Answer:
        """Answer one question.

        ``timing.ttft`` runs from before the question is embedded (where it is) to the first token; caches are in
        memory, in host memory where there is an accelerator.

        Raises
        ------
        ContextOverflowError
            The request does not fit the model's context.
        """
