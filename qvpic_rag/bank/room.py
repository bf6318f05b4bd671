"""Room for blocks: limits that hold at all times, and what goes when they are reached.

Bytes count before they are written: a writer first reserves what its file will have, evicting others where it must,
then writes. A file to be removed is reserved as well until it is gone, so what the database counts is never less than
what lies below ``blocks/``. What a dead writer reserved is cleaned up by the next one (:meth:`Room.recover`).
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from qvpic_rag.bank import blockrows, catalogue, failures
from qvpic_rag.bank.blockrows import BlockRow
from qvpic_rag.bank.files import BlockFiles
from qvpic_rag.bank.index_db import Database
from qvpic_rag.bank.usage import UseLog
from qvpic_rag.bank.writers import TEMPORARY, Writers, try_lock
from qvpic_rag.errors import BankFullError, ConfigError

__all__ = ["Room"]

_BATCH = 64

_Scope = tuple[str, tuple[str, ...]]  # which namespaces: a condition and its values
_SHARED: _Scope = ("namespaces.quota IS NULL", ())


def _own(namespace: str) -> _Scope:
    return "namespaces.name = ?", (namespace,)


@dataclass(frozen=True)
class _Taken:
    """A file that is about to be removed, locked so that no reader begins with it; -1 where there is none."""

    row: BlockRow
    descriptor: int


class Room:
    """See the module docstring; ``dpis`` are the bank's low and high resolution."""

    def __init__(
        self, database: Database, files: BlockFiles, writers: Writers, log: UseLog, dpis: tuple[int, int]
    ) -> None:
        self._database = database
        self._files = files
        self._writers = writers
        self._log = log
        self._low, self._high = dpis

    # ------------------------------------------------------------------ limits

    def limits(self, connection: sqlite3.Connection, namespace: str) -> tuple[int | None, int | None]:
        """The bank's ``max_bytes`` and the namespace's quota, bytes; None where there is none."""
        row = connection.execute("SELECT value FROM settings WHERE name = 'max_bytes'").fetchone()
        own = connection.execute("SELECT quota FROM namespaces WHERE name = ?", (namespace,)).fetchone()
        return (int(row[0]) if row else None), (int(own[0]) if own and own[0] is not None else None)

    def set_max_bytes(self, max_bytes: int | None) -> None:
        """Bound the block files of all namespaces together, evicting what is too much now."""

        def store(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM settings WHERE name = 'max_bytes'")
            if max_bytes is not None:
                connection.execute("INSERT INTO settings (name, value) VALUES ('max_bytes', ?)", (max_bytes,))

        self._set(max_bytes, store)

    def set_quota(self, namespace: str, quota: int | None) -> None:
        """Bound the block files of one namespace, and keep as much of the bank's limit for it alone."""

        def store(connection: sqlite3.Connection) -> None:
            owner = catalogue.namespace_id(connection, namespace)
            connection.execute("UPDATE namespaces SET quota = ? WHERE id = ?", (quota, owner))

        self._set(quota, store)

    def _set(self, value: int | None, store: Callable[[sqlite3.Connection], None]) -> None:
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ConfigError(f"A bank's limit must be a whole number of bytes from 1, not {value!r}.")
        while True:
            with self._database.write() as connection:
                connection.execute("SAVEPOINT setting")
                store(connection)
                excess = self._excess(connection)
                if excess is None:
                    return
                # The limit holds from the moment at which it is set: what is too much goes first.
                connection.execute("ROLLBACK TO setting")
                taken = self._evict(connection, *excess)
            if not self._progress(taken):
                raise BankFullError(
                    f"The bank at {str(self._database.folder)!r} holds {excess[1]:,} bytes more than this limit that "
                    f"are in use just now: set it again when its requests are done."
                )

    def _excess(self, connection: sqlite3.Connection) -> tuple[_Scope, int] | None:
        """Whose files exceed a limit, and by how many bytes; None when all limits hold."""
        total, reserved = self._totals(connection)
        if total is not None and reserved > total:
            raise ConfigError(
                f"The quotas of the namespaces come to {reserved:,} bytes, more than the bank's limit of {total:,}: "
                f"lower a quota, or raise the limit."
            )
        for name, quota in connection.execute("SELECT name, quota FROM namespaces WHERE quota IS NOT NULL").fetchall():
            short = self._used(connection, _own(name)) - int(quota)
            if short > 0:
                return _own(name), short
        short = self._used(connection, _SHARED) - (total - reserved) if total is not None else 0
        return (_SHARED, short) if short > 0 else None

    def _totals(self, connection: sqlite3.Connection) -> tuple[int | None, int]:
        """The bank's limit, and what quotas keep of it."""
        total, _ = self.limits(connection, "")
        return total, int(connection.execute("SELECT coalesce(sum(quota), 0) FROM namespaces").fetchone()[0])

    def _used(self, connection: sqlite3.Connection, scope: _Scope) -> int:
        """Bytes of files that are there, being written or being removed."""
        where, values = scope
        used = 0
        for table in ("blocks", "reservations"):
            query = f"""SELECT coalesce(sum(bytes), 0) FROM {table} JOIN namespaces
                ON namespaces.id = {table}.namespace_id WHERE {where}"""
            used += int(connection.execute(query, values).fetchone()[0])
        return used

    def _bound(self, connection: sqlite3.Connection, namespace: str) -> tuple[int | None, int]:
        """What a namespace may hold, None for no bound, and what counts against that.

        Without a quota of its own, a namespace shares what the quotas leave with the others that have none.
        """
        _, quota = self.limits(connection, namespace)
        if quota is not None:
            return quota, self._used(connection, _own(namespace))
        total, reserved = self._totals(connection)
        return (None, 0) if total is None else (total - reserved, self._used(connection, _SHARED))

    # ------------------------------------------------------------------ reserving

    @contextmanager
    def reserved(self, namespace: str, digest: str, nbytes: int) -> Iterator[Path]:
        """Room for a file of ``nbytes``, and the temporary name to write it under; both end with the block.

        Raises
        ------
        BankFullError
            The limit is reached and nothing more can be evicted, or the file is larger than the limit.
        """
        path = self._files.place(digest, f".{digest}-{self._writers.id}-{secrets.token_hex(4)}{TEMPORARY}")
        self._reserve(namespace, path.name, nbytes)
        try:
            yield path
        finally:
            with failures.guard(self._database.folder):
                path.unlink(missing_ok=True)
            with self._database.write(durable=False) as connection:
                self.release(connection, path)

    @staticmethod
    def release(connection: sqlite3.Connection, path: Path) -> None:
        """Give back a reservation, in the transaction in which its file becomes a stored block's."""
        connection.execute("DELETE FROM reservations WHERE file = ?", (path.name,))

    def _reserve(self, namespace: str, file: str, nbytes: int) -> None:
        while True:
            with self._database.write(durable=False) as connection:
                owner = catalogue.namespace_id(connection, namespace)
                bound, used = self._bound(connection, namespace)
                if bound is None or used + nbytes <= bound:
                    connection.execute(
                        "INSERT INTO reservations (file, namespace_id, writer, bytes) VALUES (?, ?, ?, ?)",
                        (file, owner, self._writers.id, nbytes),
                    )
                    return
                self._log.write_within(connection)
                # Others' blocks stay, whoever they are: a namespace makes room among its own.
                short = used + nbytes - bound
                taken = self._evict(connection, _own(namespace), short) if nbytes <= bound else []
            if not self._progress(taken):
                raise self._full(namespace, nbytes, bound)

    def _progress(self, taken: Sequence[_Taken]) -> bool:
        """Remove what was taken, or else what dead writers left; False when there was neither."""
        if not taken:
            return self.recover()
        self.finish(taken)
        return True

    def _full(self, namespace: str, nbytes: int, bound: int) -> BankFullError:
        where = (
            f"The bank at {str(self._database.folder)!r} may hold {max(bound, 0):,} bytes of namespace {namespace!r}"
        )
        if nbytes > bound:
            return BankFullError(
                f"{where}, and this page's block alone has {nbytes:,}: raise the limit with `qvpic bank limit`."
            )
        return BankFullError(
            f"{where}, and all of it is in use just now or belongs to others: raise the limit with `qvpic bank limit`, "
            f"or try again when other requests are done."
        )

    # ------------------------------------------------------------------ eviction

    def _evict(self, connection: sqlite3.Connection, scope: _Scope, short: int) -> list[_Taken]:
        """Take files worth ``short`` bytes from a scope, as far as that is possible, at most a batch of them.

        Damaged ones go first, then those that the remote tier has, then those that are cheapest to compile again per
        byte and second without use. The high resolution of a page goes before its low one, which can stand in for it.
        A file that a request has mapped stays.
        """
        where, values = scope
        # Costs are measured per block; one that came without (imported, or of an older bank) counts as the mean.
        query = f"""SELECT {blockrows.COLUMNS} FROM {blockrows.TABLES},
            (SELECT coalesce(avg(cost / bytes), 1) AS mean FROM blocks WHERE cost > 0 AND bytes > 0)
            WHERE {where} AND blocks.state != {blockrows.EVICTED} AND NOT (blocks.dpi = ? AND EXISTS (
                SELECT 1 FROM blocks AS high WHERE high.namespace_id = blocks.namespace_id
                AND high.page = blocks.page AND high.dpi = ? AND high.state = {blockrows.STORED}))
            ORDER BY blocks.state DESC, blocks.uploaded DESC, CASE WHEN blocks.cost > 0
            THEN blocks.cost / blocks.bytes ELSE mean END / (1 + abs(? - blocks.used)), blocks.digest
            LIMIT ?"""
        taken: list[_Taken] = []
        in_use: set[str] = set()
        while True:
            limit = _BATCH + len(in_use)
            found = connection.execute(query, (*values, self._low, self._high, time.time(), limit)).fetchall()
            rows = [row for row in (BlockRow(*columns) for columns in found) if row.digest not in in_use]
            for row in rows:
                if short <= 0 or len(taken) == _BATCH:
                    return taken
                one = self._take(connection, row)
                if one is None:
                    in_use.add(row.digest)
                    continue
                blockrows.mark_evicted(connection, row.digest)
                self._log.count("evictions")
                taken.append(one)
                short -= row.nbytes
            if not rows:
                return taken

    def _take(self, connection: sqlite3.Connection, row: BlockRow) -> _Taken | None:
        """Reserve and lock a file that is about to go; None where a request has it mapped."""
        try:
            descriptor = os.open(self._files.path(row.digest), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            descriptor = -1
        if descriptor >= 0 and not try_lock(descriptor):
            os.close(descriptor)
            return None
        connection.execute(
            "INSERT OR REPLACE INTO reservations (file, namespace_id, writer, bytes) "
            "SELECT ?, namespace_id, ?, ? FROM blocks WHERE digest = ?",
            (self._files.path(row.digest).name, self._writers.id, row.nbytes, row.digest),
        )
        return _Taken(row, descriptor)

    def remove(self, connection: sqlite3.Connection, rows: Sequence[BlockRow]) -> list[_Taken]:
        """Delete rows of blocks that nothing needs; their files go with :meth:`finish`."""
        taken = []
        for row in rows:
            one = self._take(connection, row)
            if one is not None:
                blockrows.delete(connection, row.digest)
                taken.append(one)
        return taken

    def finish(self, taken: Sequence[_Taken]) -> None:
        """Remove the files of blocks that were taken, unless they have been stored anew meanwhile.

        Within a writing transaction: a block that another process stores under the same name comes before (and is
        seen) or after (and stays).
        """
        try:
            if taken:
                with self._database.write(durable=False) as connection:
                    for one in taken:
                        path = self._files.path(one.row.digest)
                        self._unlink_unless_stored(connection, path, one.row.digest)
                        connection.execute("DELETE FROM reservations WHERE file = ?", (path.name,))
        finally:
            for one in taken:
                if one.descriptor >= 0:
                    os.close(one.descriptor)

    @staticmethod
    def _unlink_unless_stored(connection: sqlite3.Connection, path: Path, digest: str) -> None:
        row = blockrows.find(connection, digest)
        if row is None or row.state == blockrows.EVICTED:
            path.unlink(missing_ok=True)
        elif path.exists() and path.stat().st_size != row.nbytes:
            # A writer died after it had replaced the file and before its row was written.
            blockrows.mark_damaged(connection, digest, path.stat().st_size)

    # ------------------------------------------------------------------ dead writers

    def recover(self) -> bool:
        """Clean up what dead writers began: their files, reservations and claims. False when there was nothing."""
        dead = self._writers.dead()
        with self._database.write(durable=False) as connection:
            query = "SELECT writer FROM reservations UNION SELECT writer FROM claims"
            named = [str(row[0]) for row in connection.execute(query)]
            dead = [*dead, *(name for name in named if name not in dead and not self._writers.alive(name))]
            for writer in dead:
                files = connection.execute("SELECT file FROM reservations WHERE writer = ?", (writer,)).fetchall()
                for (name,) in files:
                    digest = str(name).removeprefix(".")[:64]
                    if str(name).endswith(TEMPORARY):
                        self._files.place(digest, str(name)).unlink(missing_ok=True)
                    self._unlink_unless_stored(connection, self._files.path(digest), digest)
                connection.execute("DELETE FROM reservations WHERE writer = ?", (writer,))
                connection.execute("DELETE FROM claims WHERE writer = ?", (writer,))
        for writer in dead:
            self._writers.forget(writer)
        return bool(dead)
