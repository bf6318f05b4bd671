"""QV-PIC itself behind the interface of the other methods, its caches in memory.

Without template conditioning (another ``conditioning``) it is one of the paper's ablations.
"""

from __future__ import annotations

from collections.abc import Sequence

from qvpic_rag.assemble import assemble
from qvpic_rag.baselines.base import Method, Offline, Request
from qvpic_rag.baselines.blocks import Blocks
from qvpic_rag.baselines.conditioning import Conditioning
from qvpic_rag.baselines.finish import check_fits, finish_linked
from qvpic_rag.baselines.ranking import Ranking
from qvpic_rag.baselines.subject import Subject
from qvpic_rag.clock import Clock
from qvpic_rag.config import RouteConfig, check_dpis
from qvpic_rag.records import Answer, Page, Route, RoutedPage
from qvpic_rag.route import route

__all__ = ["QvPic"]


class QvPic(Method):
    """Pages at two resolutions ``dpis``, the promoted ones at the high one."""

    def __init__(
        self, subject: Subject, dpis: tuple[int, int], conditioning: str, config: RouteConfig, name: str
    ) -> None:
        self.name = name
        self._subject, self._dpis, self._config = subject, check_dpis(dpis), config
        self._conditioning = Conditioning(conditioning)
        self._blocks, self._ranking = Blocks(subject), Ranking(subject, hybrid=config.router == "hybrid")

    def prepare(self, pages: Sequence[Page], before: str) -> Offline:
        """Embed the pages and compile them at both resolutions."""
        self._blocks.prepare_head(self._conditioning.prompts(self._subject), before, self._dpis[0])
        condition = self._conditioning.ids(self._subject, before)
        parts = [self._ranking.prepare(pages), *(self._blocks.prepare(pages, dpi, condition) for dpi in self._dpis)]
        return Offline(parts[1].pages, sum(part.seconds for part in parts), sum(part.nbytes for part in parts))

    def forget(self) -> None:
        """Let go of blocks and embeddings."""
        self._blocks.clear()
        self._ranking.clear()

    def answer(self, request: Request) -> Answer:
        """Score, route, link, and prefill the question."""
        model, clock = self._subject.model, Clock()
        query = self._ranking.query(request.query)
        clock.lap("embed")
        condition = self._conditioning.ids(self._subject, request.before)
        scores = self._ranking.scores(request.pages, query)
        decisions = route(scores, self._config, self._extra_tokens(request.pages, condition))
        overs = [self._dpis[decision.promoted] for decision in decisions]
        clock.lap("route")
        prompts = self._conditioning.prompts(self._subject)
        blocks = self._blocks.link(prompts, request.before, request.pages, overs, condition)
        tail = prompts.tail(request.after)
        check_fits(model, sum(block.tokens for block in blocks), len(tail), request.generation)
        context = assemble(model, blocks, query_tokens=len(tail), new_tokens=request.generation.max_new_tokens)
        clock.lap("assemble")
        routed = Route(
            tuple(
                RoutedPage(
                    page.digest, page.source, page.number, over, score, decision.rank, decision.promoted,
                    self._blocks.get(page, over, condition).tokens,
                )
                for page, over, score, decision in zip(request.pages, overs, scores, decisions, strict=True)
            )
        )  # fmt: skip
        return finish_linked(model, context, tail, request.generation, clock, routed)

    def _extra_tokens(self, pages: Sequence[Page], condition: tuple[int, ...]) -> list[int]:
        low, high = self._dpis
        return [
            self._blocks.get(page, high, condition).tokens - self._blocks.get(page, low, condition).tokens
            for page in pages
        ]
