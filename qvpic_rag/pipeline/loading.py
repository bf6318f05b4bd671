"""The blocks of a request: loaded, or compiled where they are missing and the request allows it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from qvpic_rag.bank import BlockLoader
from qvpic_rag.errors import BankError, CorruptBlockError, MissingBlockError
from qvpic_rag.pipeline.compiling import compile_missing
from qvpic_rag.pipeline.engine import Engine
from qvpic_rag.records import KVBlock, Page
from qvpic_rag.route import RouteDecision

__all__ = ["LoadedPage", "Missing", "compiled", "stored"]

_log = logging.getLogger(__name__)
_PATIENCE_S = 10.0  # for another process that compiles a page of the request; after that it is compiled here, too


@dataclass(frozen=True, eq=False)
class LoadedPage:
    """One page of the request with its block."""

    page: Page
    score: float
    decision: RouteDecision
    dpi: int
    block: KVBlock


@dataclass(frozen=True)
class Missing:
    """A page whose block is not usable."""

    page: Page
    score: float
    decision: RouteDecision
    dpi: int


def stored(
    engine: Engine, loader: BlockLoader, routed: Sequence[tuple[Page, float, RouteDecision]], on_miss: str
) -> list[LoadedPage | Missing]:
    """Every page's block as far as it is stored, at the resolution that was chosen or, where ``on_miss`` is ``low`` and
    only that is stored, at the low one.

    Raises
    ------
    MissingBlockError
        One is not usable and ``on_miss`` is ``error``.
    """
    found: list[LoadedPage | Missing] = []
    for page, score, decision in routed:
        dpi = engine.high if decision.promoted else engine.low
        choices = (dpi, engine.low) if on_miss == "low" and dpi != engine.low else (dpi,)
        entry: LoadedPage | Missing = Missing(page, score, decision, dpi)
        for choice in choices:
            try:
                block = loader.get(engine.key(page, choice))
            except (MissingBlockError, CorruptBlockError) as error:
                if on_miss == "error":
                    raise MissingBlockError(
                        f"Page {page.number} of {page.source} at {dpi} DPI is not usable ({error}); ingest "
                        "the document again, or ask with on_miss='compile'."
                    ) from error
            else:
                entry = LoadedPage(page, score, decision, choice, block)
                break
        found.append(entry)
    return found


def compiled(
    engine: Engine, loader: BlockLoader, found: Sequence[LoadedPage | Missing]
) -> tuple[list[LoadedPage], list[str], str]:
    """All pages with their blocks, the digests of the pages that were compiled now, and what went wrong in storing."""
    missing = [(entry.page, entry.dpi) for entry in found if isinstance(entry, Missing)]
    blocks: dict[str, KVBlock] = {}
    notes: list[str] = []

    def keep(block: KVBlock, seconds: float) -> None:
        # The answer does not depend on storing it.
        try:
            engine.bank.put_block(block, cost_s=seconds)
        except BankError as error:
            notes.append(str(error))

    for block in compile_missing(engine, missing, keep, patience_s=_PATIENCE_S, evicted=True):
        blocks[block.key.digest] = block
    for page, dpi in missing:  # those that another process compiled
        key = engine.key(page, dpi)
        if key.digest not in blocks:
            try:
                blocks[key.digest] = loader.get(key)
            except BankError:  # and which is gone again
                blocks[key.digest] = next(iter(engine.compile([(page, dpi)])))
    loaded = [
        entry
        if isinstance(entry, LoadedPage)
        else LoadedPage(
            entry.page, entry.score, entry.decision, entry.dpi, blocks[engine.key(entry.page, entry.dpi).digest]
        )
        for entry in found
    ]
    note = ""
    if notes:
        note = f"{len(notes)} page(s) compiled during the request could not be stored: {notes[-1]}"
        _log.warning("%s", note)
    return loaded, [page.digest for page, _ in missing], note
