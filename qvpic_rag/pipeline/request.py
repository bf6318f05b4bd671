"""One question, online: embed, search, route, load, link, prefill the question only."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from qvpic_rag.assemble import assemble
from qvpic_rag.bank import BlockLoader
from qvpic_rag.clock import Clock
from qvpic_rag.config import GenerateConfig, RequestConfig, RouteConfig
from qvpic_rag.errors import ContextOverflowError, InputError
from qvpic_rag.generate import generate, prompt
from qvpic_rag.pipeline.context import given, retrieved, scored
from qvpic_rag.pipeline.engine import Engine
from qvpic_rag.pipeline.loading import LoadedPage, compiled, stored
from qvpic_rag.pipeline.turns import turns_of
from qvpic_rag.records import Answer, Document, Message, Page, Route, RoutedPage, Timing, Usage
from qvpic_rag.route import route

__all__ = ["Question", "answer"]

_log = logging.getLogger(__name__)
_WAIT_MS = 1.0  # less is what taking a free turn costs


@dataclass(frozen=True)
class Question:
    """What is asked and how.

    ``messages`` end with the user turn that asks; ``query`` is the text that retrieval and routing score pages
    against (the user's own words, never a whole prompt). ``context`` holds texts or pages to answer from, in place of
    what would be retrieved.
    """

    query: str
    messages: tuple[Message, ...]
    request: RequestConfig
    route: RouteConfig
    generation: GenerateConfig
    context: tuple[Document | Page, ...] | None = None


def answer(
    engine: Engine,
    question: Question,
    *,
    on_piece: Callable[[str], None] = lambda piece: None,
    cancelled: threading.Event | None = None,
) -> Answer:
    """Answer a question from the bank; see :class:`~qvpic_rag.records.Answer`.

    Raises
    ------
    InputError
        Empty question.
    ContextOverflowError
        The request does not fit and ``overflow="error"``, or the question alone does not fit.
    MissingBlockError
        A page is not compiled and ``on_miss="error"``.
    QueueFullError
        Too many questions wait for the model.
    """
    if not question.query.strip():
        raise InputError("The question is empty; ask something.")
    came = time.perf_counter()
    with turns_of(engine.model).turn(question.request.max_waiting, cancelled) as has_turn:
        if not has_turn:
            return Answer("", "cancelled", Route(), Timing(), Usage(0, 0, 0, 0))
        waited = (time.perf_counter() - came) * 1000
        found = _answer(engine, question, on_piece, cancelled)
    engine.bank.blocks.note_use()
    return replace(found, timing=replace(found.timing, wait=waited)) if waited >= _WAIT_MS else found


def _answer(
    engine: Engine, question: Question, on_piece: Callable[[str], None], cancelled: threading.Event | None
) -> Answer:
    clock = Clock()
    with BlockLoader(engine.bank.blocks) as loader:
        loaded, compiled_now, note = _pages(engine, question, loader, clock)
        tiers = dict(loader.tiers)
    query_ids = (
        engine.template.suffix(question.messages) if loaded else engine.template.without_pages(question.messages)
    )
    kept, dropped = _fit(engine, question, loaded, len(query_ids))
    if dropped:
        _log.warning(
            "%d of %d pages do not fit the context and were left out, lowest rank first; ask with overflow='error' to "
            "be told instead.", len(dropped), len(loaded),
        )  # fmt: skip
    if not kept and not dropped:
        note = (
            "No page was retrieved; the answer is generated without documents."
            if question.context is None
            else "No page came with the question or was recognised in it; the model reads only its text."
        )
    elif not kept:
        query_ids = engine.template.without_pages(question.messages)
        note = "No retrieved page fits the context; the answer is generated without documents."
    context = assemble(
        engine.model,
        engine.link([page.block for page in kept]),
        query_tokens=len(query_ids),
        new_tokens=question.generation.max_new_tokens,
    )
    clock.lap("assemble")
    generated = generate(
        engine.model,
        prompt(engine.model, context, query_ids),
        question.generation,
        on_piece=on_piece,
        cancelled=cancelled,
    )
    end = time.perf_counter()
    return Answer(
        text=generated.text,
        finish_reason=generated.finish_reason,
        reasoning=generated.reasoning,
        route=_route(kept, dropped, compiled_now, note),
        timing=_timing(clock, generated.first_token or end, end, tiers),
        usage=Usage(context.tokens, len(query_ids), len(generated.token_ids), context.nbytes),
    )


def _pages(
    engine: Engine, question: Question, loader: BlockLoader, clock: Clock
) -> tuple[list[LoadedPage], list[str], str]:
    """The request's pages with their blocks, the digests of those compiled now, and a note."""
    pages = None if question.context is None else given(engine, question.context)
    if pages is not None:  # they are known before the question is embedded, though not yet which are promoted
        loader.prefetch([engine.key(page, engine.low) for page in pages.values()])
    hybrid = question.route.router == "hybrid"
    if hybrid:
        vectors, signals = engine.embedder.signals([question.query], query=True)
    else:
        vectors = engine.embedder.encode([question.query], query=True)
    vector = vectors[0]
    clock.lap("embed")
    found = retrieved(engine, vector, question.request.top_k) if pages is None else scored(engine, vector, pages)
    clock.lap("search")
    note = ""
    if hybrid:
        found, made = engine.signals.scored(signals[0], found)
        if made and pages is None:
            note = f"What hybrid routing needs of {made} page(s) is not stored; ingest with router='hybrid' stores it."
    extra = None if question.route.token_budget is None else [engine.extra_tokens(page) for page, _ in found]
    decisions = route([score for _, score in found], question.route, extra)
    clock.lap("route")
    routed = [(page, score, decision) for (page, score), decision in zip(found, decisions, strict=True)]
    entries = stored(engine, loader, routed, question.request.on_miss)
    clock.lap("load")
    ready = [entry for entry in entries if isinstance(entry, LoadedPage)]
    low = sum(entry.decision.promoted and entry.dpi == engine.low for entry in ready)
    if low:
        note = f"The high resolution of {low} page(s) is not stored; the low one was read."
    if len(ready) == len(entries):
        return ready, [], note
    loaded, digests, problem = compiled(engine, loader, entries)
    clock.lap("compile")
    return loaded, digests, problem or note


def _fit(
    engine: Engine, question: Question, loaded: list[LoadedPage], query_tokens: int
) -> tuple[list[LoadedPage], list[LoadedPage]]:
    """Pages that fit, in request order, and those left out, lowest rank first."""
    limit = engine.model.max_context
    if question.request.max_context_tokens is not None:
        limit = min(limit, question.request.max_context_tokens)
    fixed = query_tokens + question.generation.max_new_tokens
    if fixed > limit:
        raise ContextOverflowError(
            f"The question ({query_tokens} tokens) and the longest allowed answer "
            f"({question.generation.max_new_tokens}) exceed the limit of {limit} tokens; shorten the question "
            "or lower max_new_tokens."
        )

    def needed(pages: list[LoadedPage]) -> int:
        return fixed + sum(block.tokens for block in engine.link([page.block for page in pages]))

    kept, dropped = list(loaded), []
    while kept and needed(kept) > limit:
        if question.request.overflow == "error":
            raise ContextOverflowError(
                f"The request needs {needed(kept)} tokens and the limit is {limit}; lower top_k or budget, raise "
                "max_context_tokens, or ask with overflow='drop'."
            )
        last = max(kept, key=lambda page: page.decision.rank)
        kept.remove(last)
        dropped.append(last)
    return kept, dropped


def _route(kept: list[LoadedPage], dropped: list[LoadedPage], compiled: list[str], note: str) -> Route:
    return Route(
        pages=tuple(
            RoutedPage(
                page_id=page.page.digest,
                source=page.page.source,
                number=page.page.number,
                dpi=page.dpi,
                score=page.score,
                rank=page.decision.rank,
                promoted=page.decision.promoted,
                tokens=page.block.tokens,
            )
            for page in kept
        ),
        dropped=tuple(page.page.digest for page in dropped),
        compiled=tuple(compiled),
        note=note,
    )


def _timing(clock: Clock, first: float, end: float, tiers: dict[str, int]) -> Timing:
    stages: dict[str, Any] = {name: value for name, value in clock.stages.items() if name != "compile"}
    spent = sum(clock.stages.values())
    ttft = (first - clock.start) * 1000
    timing = Timing(
        **stages,
        prefill=ttft - spent,
        ttft=ttft,
        decode=(end - first) * 1000,
        total=(end - clock.start) * 1000,
    )
    return replace(timing, compile=clock.stages.get("compile"), tiers=tiers)
