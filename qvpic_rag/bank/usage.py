"""What requests did with a bank, noted in memory and written down now and then: last uses and counters.

Answering must not wait for the disk, so nothing of this is durable: what a killed process had not written down is lost,
which at worst lets eviction take a page a little too early.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import Counter

from qvpic_rag import forking
from qvpic_rag.bank import catalogue
from qvpic_rag.bank.index_db import Database
from qvpic_rag.errors import BankError
from qvpic_rag.metrics import METRICS

__all__ = ["UseLog", "add", "counters"]

_log = logging.getLogger(__name__)

_EVERY_S = 60.0


class UseLog:
    """The notes of one bank object. Counts go to :data:`qvpic_rag.metrics.METRICS` as well."""

    def __init__(self, database: Database, namespace: str) -> None:
        self._database = database
        self._namespace = namespace
        self._lock = threading.Lock()
        self._used: dict[str, float] = {}
        self._counts: Counter[str] = Counter()
        self._written = time.monotonic()
        forking.renewed(self)

    def _after_fork(self) -> None:
        """In a forked process: what is noted here is the parent's, which writes it down."""
        self._lock = threading.Lock()
        self._used = {}
        self._counts = Counter()

    def used(self, digest: str) -> None:
        """A block was used now."""
        with self._lock:
            self._used[digest] = time.time()

    def count(self, name: str, value: int = 1, **labels: str) -> None:
        """Count an event, in the process's metrics and in the bank's own counters."""
        METRICS.count(f"bank_{name}", value, **labels)
        with self._lock:
            self._counts[" ".join([name, *labels.values()])] += value

    @property
    def due(self) -> bool:
        """Whether notes have waited long enough to be written down."""
        return bool(self._used or self._counts) and time.monotonic() - self._written >= _EVERY_S

    def write(self, *, patience_s: float = 0.0) -> None:
        """Write the notes down where the bank can be written just now: nothing waits for them or fails for them."""
        if not self._database.writable or not (self._used or self._counts):
            return
        self._written = time.monotonic()  # whatever comes of it: the next try is as far away
        try:
            with self._database.write(durable=False, patience_s=patience_s) as connection:
                self.write_within(connection)
        except BankError as error:
            _log.info("uses and counters of a bank were not written down: %s", error)

    def write_within(self, connection: sqlite3.Connection) -> None:
        """As :meth:`write`, in the caller's transaction; should that fail, these notes are lost."""
        with self._lock:
            used, self._used = self._used, {}
            counts, self._counts = self._counts, Counter()
            self._written = time.monotonic()
        connection.executemany(
            "UPDATE blocks SET used = ? WHERE digest = ?", [(moment, digest) for digest, moment in used.items()]
        )
        for name, value in counts.items():
            _add(connection, self._namespace, name, value)


def add(connection: sqlite3.Connection, namespace: str, name: str) -> None:
    """Count an event of a namespace at once, in the process's metrics as well."""
    METRICS.count(f"bank_{name}")
    _add(connection, namespace, name, 1)


def _add(connection: sqlite3.Connection, namespace: str, name: str, value: int) -> None:
    connection.execute(
        """INSERT INTO counters (namespace_id, name, value) VALUES (?, ?, ?)
        ON CONFLICT (namespace_id, name) DO UPDATE SET value = value + excluded.value""",
        (catalogue.namespace_id(connection, namespace), name, value),
    )


def counters(connection: sqlite3.Connection, namespace: str) -> dict[str, int]:
    """The counters of a namespace over all processes, as last written down."""
    query = f"SELECT name, value FROM counters WHERE {catalogue.IN_NAMESPACE} ORDER BY name"
    return {str(name): int(value) for name, value in connection.execute(query, (namespace,))}
