"""Who compiles what: a page that one process compiles is waited for by the others, not compiled twice.

Whoever compiles claims only what it is about to compile and waits only when it holds nothing, so nobody waits in a
circle. A claim ends with its writer (:mod:`qvpic_rag.bank.writers`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from qvpic_rag.bank.index_db import Database
from qvpic_rag.bank.writers import Writers
from qvpic_rag.errors import BankError

__all__ = ["Claims"]

_log = logging.getLogger(__name__)

_PATIENCE_S = 5.0  # for the database: compiling twice is better than not answering
_LONGEST_S = 600.0
"""A claim as old as this belongs to somebody who is stuck; compiling twice is better than waiting for ever."""


class Claims:
    """The claims on one bank's blocks, by digest."""

    def __init__(self, database: Database, writers: Writers) -> None:
        self._database = database
        self._writers = writers

    @contextmanager
    def made(self, digests: Collection[str]) -> Iterator[frozenset[str]]:
        """Claim blocks; yields those that nobody else has claimed, and releases them with the block.

        In a bank that cannot be written (now) nobody sees a claim: all are the caller's.
        """
        mine: frozenset[str] | None = None
        try:
            if digests and self._database.writable:
                mine = self._claim(digests)
        except BankError as error:
            _log.warning("pages are compiled without a claim, and maybe elsewhere as well: %s", error)
        try:
            yield frozenset(digests) if mine is None else mine
        finally:
            if mine:
                self._release(mine)

    def _release(self, mine: frozenset[str]) -> None:
        try:
            with self._database.write(durable=False, patience_s=_PATIENCE_S) as connection:
                connection.executemany(
                    "DELETE FROM claims WHERE digest = ? AND writer = ?",
                    [(digest, self._writers.id) for digest in sorted(mine)],
                )
        except BankError as error:  # what was compiled must not be lost for it; others wait no longer than they would
            _log.warning("a claim was not released: %s", error)

    def _claim(self, digests: Collection[str]) -> frozenset[str]:
        mine = []
        with self._database.write(durable=False, patience_s=_PATIENCE_S) as connection:
            writer, now = self._writers.id, time.time()
            for digest in digests:
                row = connection.execute("SELECT writer, since FROM claims WHERE digest = ?", (digest,)).fetchone()
                if row is None or not self._holds(row[0], row[1], now):
                    connection.execute("INSERT OR REPLACE INTO claims VALUES (?, ?, ?)", (digest, writer, now))
                    mine.append(digest)
        return frozenset(mine)

    def held(self, digests: Collection[str]) -> bool:
        """Whether somebody is about to compile one of these."""
        now = time.time()
        with self._database.read() as connection:
            for digest in digests:
                row = connection.execute("SELECT writer, since FROM claims WHERE digest = ?", (digest,)).fetchone()
                if row is not None and self._holds(row[0], row[1], now):
                    return True
        return False

    def _holds(self, writer: str, since: float, now: float) -> bool:
        return abs(now - since) < _LONGEST_S and self._writers.alive(writer)
