"""Retrieve, then read: only the text of the most relevant pages goes into the prompt, in full prefill.

What many people would do in place of all this. The other pages of the request are not read at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from qvpic_rag.baselines.base import Method, Offline, Request
from qvpic_rag.baselines.finish import finish
from qvpic_rag.baselines.full import full_text_prompt
from qvpic_rag.baselines.ranking import Ranking
from qvpic_rag.baselines.subject import Subject
from qvpic_rag.clock import Clock
from qvpic_rag.records import Answer, Page

__all__ = ["TopText"]


class TopText(Method):
    """The ``count`` pages that are nearest to the question, in the request's order."""

    def __init__(self, subject: Subject, count: int) -> None:
        self.name = f"top{count}@text"
        self._subject, self._count, self._ranking = subject, count, Ranking(subject)

    def prepare(self, pages: Sequence[Page], before: str) -> Offline:
        """Embed the pages."""
        return self._ranking.prepare(pages)

    def forget(self) -> None:
        """Let go of embeddings."""
        self._ranking.clear()

    def answer(self, request: Request) -> Answer:
        """Rank, and prefill the text of the best pages."""
        model, clock = self._subject.model, Clock()
        vector = self._ranking.query(request.query)
        clock.lap("embed")
        scores = self._ranking.scores(request.pages, vector)
        best = sorted(range(len(scores)), key=lambda place: -scores[place])[: self._count]
        pages = [request.pages[place] for place in sorted(best)]
        clock.lap("route")
        tail = self._subject.prompts.tail(request.after)
        whole = full_text_prompt(self._subject, request.before, pages, tail, request.generation)
        return finish(model, whole, request.generation, clock, query_tokens=len(tail))
