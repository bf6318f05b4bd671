"""Compiling what a bank lacks, once: what another process is compiling is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from qvpic_rag.pipeline.engine import Engine
from qvpic_rag.records import KVBlock, Page

__all__ = ["compile_missing"]

_POLL_S = 0.02


def compile_missing(
    engine: Engine,
    wanted: Sequence[tuple[Page, int]],
    keep: Callable[[KVBlock, float], None],
    *,
    patience_s: float,
    evicted: bool,
) -> Iterator[KVBlock]:
    """Compile pages ``(page, dpi)`` that are not stored; yields the blocks compiled here.

    ``keep`` stores a block, given also the seconds that it took. When the iterator is exhausted, others have compiled
    the rest, unless they failed to; what they are not done with after ``patience_s`` seconds is compiled here as well.
    ``evicted``: whether what was evicted to make room is wanted, too.
    """
    blocks = engine.bank.blocks
    left = list(wanted)
    step = 2 * engine.batch_size
    deadline = time.monotonic() + patience_s
    while left:
        late = time.monotonic() > deadline
        others: list[tuple[Page, int]] = []
        for at in range(0, len(left), step):
            part = left[at : at + step]
            # Nothing is yielded while claims are held: whoever takes a block might wait for one of them.
            compiled: list[KVBlock] = []
            with blocks.claims.made([engine.key(*pair).digest for pair in part]) as mine:
                ours = [pair for pair in part if late or engine.key(*pair).digest in mine]
                # Whoever had the claim before may have stored it just now, and another machine may have uploaded it.
                todo = [
                    pair
                    for pair in ours
                    if not (blocks.settled(engine.key(*pair), evicted) or blocks.fetch(engine.key(*pair)))
                ]
                for block, seconds in _timed(engine, todo):
                    keep(block, seconds)
                    compiled.append(block)
            yield from compiled
            others += [pair for pair in part if pair not in ours]
        digests = [engine.key(*pair).digest for pair in others]
        while time.monotonic() < deadline and blocks.claims.held(digests):
            time.sleep(_POLL_S)
        # What others stored and what was evicted since is not brought back: under a tight limit that would never end.
        left = [pair for pair in others if not blocks.settled(engine.key(*pair), False)]


def _timed(engine: Engine, todo: Sequence[tuple[Page, int]]) -> Iterator[tuple[KVBlock, float]]:
    """Blocks and the seconds that each took, as its share of the tokens that were compiled together."""
    start = time.perf_counter()
    blocks = list(engine.compile(todo))
    each = (time.perf_counter() - start) / max(1, sum(block.tokens for block in blocks))
    yield from ((block, each * block.tokens) for block in blocks)
