"""What requests did with a bank, noted in memory and written down now and then: last uses and counters.

Answering must not wait for the disk, so nothing of this is durable: what a killed process had not written down is lost,
which at worst lets eviction take a page a little too early.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter

from qvpic_rag.bank import catalogue
from qvpic_rag.bank.index_db import Database
from qvpic_rag.metrics import METRICS

__all__ = ["UseLog", "counters"]

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

    def write(self) -> None:
        """Write the notes down, where the bank can be written."""
        if not self._database.writable or not (self._used or self._counts):
            return
        with self._database.write(durable=False) as connection:
            self.write_within(connection)

    def write_within(self, connection: sqlite3.Connection) -> None:
        """As :meth:`write`, in the caller's transaction; should that fail, these notes are lost."""
        with self._lock:
            used, self._used = self._used, {}
            counts, self._counts = self._counts, Counter()
            self._written = time.monotonic()
        connection.executemany(
            "UPDATE blocks SET used = ? WHERE digest = ?", [(moment, digest) for digest, moment in used.items()]
        )
        if counts:
            owner = catalogue.namespace_id(connection, self._namespace)
            connection.executemany(
                """INSERT INTO counters (namespace_id, name, value) VALUES (?, ?, ?)
                ON CONFLICT (namespace_id, name) DO UPDATE SET value = value + excluded.value""",
                [(owner, name, value) for name, value in counts.items()],
            )


def counters(connection: sqlite3.Connection, namespace: str) -> dict[str, int]:
    """The counters of a namespace over all processes, as last written down."""
    query = f"SELECT name, value FROM counters WHERE {catalogue.IN_NAMESPACE} ORDER BY name"
    return {str(name): int(value) for name, value in connection.execute(query, (namespace,))}
