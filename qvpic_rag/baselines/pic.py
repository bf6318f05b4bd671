"""Position-independent caching: every page compiled alone, linked as it is.

Over pictures at one resolution with ``native`` conditioning this is the paper's template-conditioned PIC; with
``prefix-free`` it is naive caching of rendered pages.
"""

from __future__ import annotations

from collections.abc import Sequence

from qvpic_rag.assemble import assemble
from qvpic_rag.baselines.base import Method, Offline, Request
from qvpic_rag.baselines.blocks import Blocks, over_name
from qvpic_rag.baselines.conditioning import Conditioning
from qvpic_rag.baselines.finish import check_fits, finish_linked
from qvpic_rag.baselines.subject import Subject
from qvpic_rag.clock import Clock
from qvpic_rag.records import Answer, Page

__all__ = ["Pic"]


class Pic(Method):
    """``over`` is a resolution (DPI) or :data:`~qvpic_rag.baselines.blocks.TEXT`."""

    def __init__(self, subject: Subject, over: int, conditioning: str) -> None:
        self.name = f"pic@{over_name(over)}/{conditioning}"
        self._subject, self._over = subject, over
        self._conditioning = Conditioning(conditioning)
        self._blocks = Blocks(subject)

    def prepare(self, pages: Sequence[Page], before: str) -> Offline:
        """Compile the pages."""
        self._blocks.prepare_head(self._conditioning.prompts(self._subject), before, self._over)
        return self._blocks.prepare(pages, self._over, self._conditioning.ids(self._subject, before))

    def forget(self) -> None:
        """Let go of all blocks."""
        self._blocks.clear()

    def answer(self, request: Request) -> Answer:
        """Link the pages' caches and prefill the question."""
        model, clock = self._subject.model, Clock()
        prompts = self._conditioning.prompts(self._subject)
        condition = self._conditioning.ids(self._subject, request.before)
        overs = [self._over] * len(request.pages)
        blocks = self._blocks.link(prompts, request.before, request.pages, overs, condition)
        tail = prompts.tail(request.after)
        check_fits(model, sum(block.tokens for block in blocks), len(tail), request.generation)
        context = assemble(model, blocks, query_tokens=len(tail), new_tokens=request.generation.max_new_tokens)
        clock.lap("assemble")
        return finish_linked(model, context, tail, request.generation, clock)
