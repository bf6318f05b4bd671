"""Compiling what a bank lacks, once: what another process is compiling is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from qvpic_rag.pipeline.engine import Engine
from qvpic_rag.records import KVBlock, Page

__all__ = ["compile_missing"]

_POLL_S = 0.02


def compile_missing(
    engine: Engine, wanted: Sequence[tuple[Page, int]], keep: Callable[[KVBlock, float], None]
) -> Iterator[KVBlock]:
    """Compile pages ``(page, dpi)`` that are not stored; yields the blocks compiled here.

    ``keep`` stores a block, given also the seconds that it took. When the iterator is exhausted, what others compiled
    meanwhile is stored as well, unless they failed to, or it was evicted again.
    """
    left = list(wanted)
    step = 2 * engine.batch_size
    while left:
        others: list[tuple[Page, int]] = []
        for at in range(0, len(left), step):
            part = left[at : at + step]
            with engine.bank.blocks.claims.made([engine.key(*pair).digest for pair in part]) as mine:
                ours = [pair for pair in part if engine.key(*pair).digest in mine]
                # Whoever had the claim before may have stored it just now, and another machine may have uploaded it.
                keys = {pair: engine.key(*pair) for pair in ours}
                todo = [
                    pair
                    for pair, key in keys.items()
                    if not (engine.bank.has_block(key) or engine.bank.blocks.fetch(key))
                ]
                for block, seconds in _timed(engine, todo):
                    keep(block, seconds)
                    yield block
            others += [pair for pair in part if engine.key(*pair).digest not in mine]
        while engine.bank.blocks.claims.held([engine.key(*pair).digest for pair in others]):
            time.sleep(_POLL_S)
        left = [pair for pair in others if not engine.bank.has_block(engine.key(*pair))]


def _timed(engine: Engine, todo: Sequence[tuple[Page, int]]) -> Iterator[tuple[KVBlock, float]]:
    """Blocks and the seconds that each took, as its share of the tokens that were compiled together."""
    start = time.perf_counter()
    blocks = list(engine.compile(todo))
    each = (time.perf_counter() - start) / max(1, sum(block.tokens for block in blocks))
    yield from ((block, each * block.tokens) for block in blocks)
