"""Documents into the bank, a window at a time: lay out, render, compile both resolutions, embed, link."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from qvpic_rag.documents import Failure, LeftOut, document_digest
from qvpic_rag.errors import DocumentError, InputError
from qvpic_rag.pipeline.compiling import compile_missing
from qvpic_rag.pipeline.engine import Engine
from qvpic_rag.progress import Progress
from qvpic_rag.records import Document, KVBlock, Page

__all__ = ["IngestReport", "ingest"]

_PATIENCE_S = 600.0  # for other processes that compile the same pages
_WINDOW = 32
"""Pages compiled and embedded between two commits; what an interruption costs at most is embedding them again."""


@dataclass(frozen=True)
class IngestReport:
    """What one ingest did; sources in the order in which they came.

    ``repaired`` are unchanged documents some of whose blocks were lost and have been compiled again; ``left_out`` are
    files in folders of types that cannot be read. ``pages`` counts
    the pages of added, replaced and repaired documents, ``compiled`` the KV blocks that had to be computed
    (two per new page), ``seconds`` the wall time.
    """

    added: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    repaired: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    failed: tuple[Failure, ...] = ()
    left_out: tuple[str, ...] = ()
    pages: int = 0
    compiled: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class _Planned:
    document: Document
    digest: str
    pages: tuple[Page, ...]
    outcome: str


@dataclass
class _Tally:
    added: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    repaired: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    compiled: int = 0


def ingest(
    engine: Engine, items: Iterable[Document | Failure | LeftOut], progress: Progress, *, router: str = "dense"
) -> IngestReport:
    """Store documents; unchanged ones are skipped, changed ones replaced, unreadable ones listed.

    Blocks are stored as they are compiled and documents as soon as their window is complete, so an interrupted ingest
    continues where it stopped when it is run again. ``router="hybrid"`` also stores what hybrid routing needs of every
    page in the bank that lacks it.
    """
    start, tally = time.perf_counter(), _Tally()
    plan = list(_plan(engine, items, tally))
    total, done = sum(len(item.pages) for item in plan), 0
    for window in _windows(plan):
        progress(done, total, window[0].document.source)
        for pages in _compile_window(engine, window, tally):
            progress(done + pages, total, window[0].document.source)
        _commit(engine, window, tally)
        done += sum(len(item.pages) for item in window)
    progress(done, total, "")
    engine.refresh_index()
    if router == "hybrid":
        engine.signals.prepare(total, progress)
    return IngestReport(
        added=tuple(tally.added),
        replaced=tuple(tally.replaced),
        repaired=tuple(tally.repaired),
        unchanged=tuple(tally.unchanged),
        failed=tuple(tally.failed),
        left_out=tuple(tally.left_out),
        pages=total,
        compiled=tally.compiled,
        seconds=time.perf_counter() - start,
    )


def _plan(engine: Engine, items: Iterable[Document | Failure | LeftOut], tally: _Tally) -> Iterator[_Planned]:
    """Lay out what is new or changed."""
    seen: set[str] = set()
    home = engine.bank.path.resolve()
    for item in items:
        if isinstance(item, Failure):
            tally.failed.append(item)
            continue
        if isinstance(item, LeftOut):
            if home not in Path(item.source).resolve().parents:  # the bank may lie in the folder that is ingested
                tally.left_out.append(item.source)
            continue
        if not (isinstance(item.text, str) and isinstance(item.source, str) and item.source):
            raise InputError(f"A document's text and source must be strings; those of {item.source!r} are not.")
        if item.source in seen:
            raise InputError(f"Two documents are named {item.source!r}; give each its own source.")
        seen.add(item.source)
        try:
            digest = document_digest(item)
        except DocumentError as error:
            tally.failed.append(Failure(item.source, error))
            continue
        if engine.bank.document_digest(item.source) == digest:
            stored = tuple(engine.bank.document_pages(item.source))
            if _lost(engine, stored):
                yield _Planned(item, digest, stored, "repaired")
            else:
                tally.unchanged.append(item.source)
            continue
        try:
            pages = tuple(engine.renderer.pages(item.text, item.source))
            if not pages:
                raise DocumentError(f"{item.source} has no text; remove it or put text into it.")
        except DocumentError as error:
            tally.failed.append(Failure(item.source, error))
            continue
        known = engine.bank.document_digest(item.source) is not None
        yield _Planned(item, digest, pages, "replaced" if known else "added")


def _missing(engine: Engine, pages: Iterable[Page]) -> list[tuple[Page, int]]:
    """Pages, each once, and resolutions whose blocks are not in the bank; those that are will not be collected soon."""
    distinct = {page.digest: page for page in pages}.values()
    wanted = [(page, dpi) for page in distinct for dpi in engine.dpis]
    kept = engine.bank.keep_blocks([engine.key(page, dpi) for page, dpi in wanted])
    return [pair for pair, stored in zip(wanted, kept, strict=True) if not stored]


def _wants_evicted(engine: Engine) -> bool:
    """Whether to bring back what was evicted: not where the limit would only evict something else for it."""
    return engine.bank.blocks.has_room()


def _lost(engine: Engine, pages: Iterable[Page]) -> bool:
    """Whether blocks of stored pages are gone that should be there."""
    evicted = _wants_evicted(engine)
    keys = (engine.key(page, dpi) for page in pages for dpi in engine.dpis)
    return any(not engine.bank.blocks.settled(key, evicted) for key in keys)


def _windows(plan: list[_Planned]) -> Iterator[list[_Planned]]:
    window: list[_Planned] = []
    for item in plan:
        window.append(item)
        if sum(len(each.pages) for each in window) >= _WINDOW:
            yield window
            window = []
    if window:
        yield window


def _compile_window(engine: Engine, window: list[_Planned], tally: _Tally) -> Iterator[int]:
    """Compile and store what the bank lacks; yields the number of pages done so far."""
    pages = [page for item in window for page in item.pages]
    wanted = _missing(engine, pages)
    evicted = _wants_evicted(engine)

    def keep(block: KVBlock, seconds: float) -> None:
        engine.bank.put_block(block, cost_s=seconds)
        tally.compiled += 1

    blocks = compile_missing(engine, wanted, keep, patience_s=_PATIENCE_S, evicted=evicted)
    for done, _ in enumerate(blocks, start=1):
        yield done * len(pages) // (len(wanted) + 1)


def _commit(engine: Engine, window: list[_Planned], tally: _Tally) -> None:
    vectors = engine.embedder.encode([page.text for item in window for page in item.pages])
    # A long window may have outlived the grace period of its first blocks: what a collection took is compiled again.
    for _ in _compile_window(engine, window, tally):
        pass
    at = 0
    for item in window:
        part = vectors[at : at + len(item.pages)]
        at += len(item.pages)
        try:
            engine.bank.put_document(item.document.source, item.digest, item.pages, part, item.document.metadata)
        except DocumentError as error:
            tally.failed.append(Failure(item.document.source, error))
            continue
        getattr(tally, item.outcome).append(item.document.source)
