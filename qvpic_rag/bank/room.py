"""Room for blocks: limits that hold at all times, and what goes when they are reached.

Bytes count before they are written: a writer first reserves what its file will have, evicting others where it must,
then writes. A file to be removed is reserved as well until it is gone, so what the database counts is never less than
what lies below ``blocks/``. What a dead writer reserved is cleaned up by the next one (:meth:`Room.recover`).
"""

from __future__ import annotations

import logging
import os
import secrets
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from qvpic_rag.bank import blockrows, catalogue, failures, limits, usage
from qvpic_rag.bank.blockrows import BlockRow
from qvpic_rag.bank.files import BlockFiles
from qvpic_rag.bank.index_db import Database
from qvpic_rag.bank.writers import TEMPORARY, Writers, try_lock
from qvpic_rag.errors import BankFullError

__all__ = ["Room", "Taken"]

_log = logging.getLogger(__name__)

_BATCH = 64
_PATIENCE_S = 10.0  # for room that other writers have reserved and will give back or fill


@dataclass(frozen=True)
class _File:
    """A file that is about to be removed, locked so that no reader begins with it; -1 where there is none."""

    row: BlockRow
    descriptor: int


class Taken:
    """Files that are about to be removed. They are let go at the end of the context, whatever happens in it: readers
    take a locked file for one that is gone."""

    def __init__(self) -> None:
        self.files: list[_File] = []

    @property
    def rows(self) -> list[BlockRow]:
        """The rows that they had."""
        return [file.row for file in self.files]

    def __enter__(self) -> Taken:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self.files:
            descriptor = self.files.pop().descriptor
            if descriptor >= 0:
                os.close(descriptor)


class Room:
    """See the module docstring; ``dpis`` are the bank's low and high resolution."""

    def __init__(
        self, database: Database, files: BlockFiles, writers: Writers, log: usage.UseLog, dpis: tuple[int, int]
    ) -> None:
        self._database = database
        self._files = files
        self._writers = writers
        self._log = log
        self._low, self._high = dpis

    # ------------------------------------------------------------------ limits

    def set_max_bytes(self, value: int | None) -> None:
        """Bound the block files of all namespaces together, evicting what is too much now."""
        limits.check_limit(value)
        self._set(lambda connection: limits.set_max_bytes(connection, value))

    def set_quota(self, namespace: str, value: int | None) -> None:
        """Bound the block files of one namespace, and keep as much of the bank's limit for it alone."""
        limits.check_limit(value)
        self._set(lambda connection: limits.set_quota(connection, namespace, value))

    def _set(self, store: Callable[[sqlite3.Connection], None]) -> None:
        while True:
            with Taken() as taken:
                with self._database.write() as connection:
                    connection.execute("SAVEPOINT setting")
                    store(connection)
                    excess = limits.excess(connection)
                    if excess is None:
                        return
                    # The limit holds from the moment at which it is set: what is too much goes first.
                    connection.execute("ROLLBACK TO setting")
                    self._evict(connection, *excess, taken)
                if not self._progress(taken):
                    raise BankFullError(
                        f"The bank at {str(self._database.folder)!r} holds {excess[1]:,} bytes more than this limit "
                        f"that are in use just now: set it again when its requests are done."
                    )

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
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            with Taken() as taken:
                with self._database.write(durable=False) as connection:
                    owner = catalogue.namespace_id(connection, namespace)
                    bound, names = limits.bound(connection, namespace)
                    short = 0 if bound is None else limits.used(connection, names) + nbytes - bound
                    if bound is None or short <= 0:
                        connection.execute(
                            "INSERT INTO reservations (file, namespace_id, writer, bytes) VALUES (?, ?, ?, ?)",
                            (file, owner, self._writers.id, nbytes),
                        )
                        return
                    if nbytes <= bound:
                        self._log.write_within(connection)
                        # Others' blocks stay, whoever they are: a namespace makes room among its own.
                        self._evict(connection, [namespace], short, taken)
                    others = self._others(connection)
                if not self._progress(taken):
                    if nbytes > bound or not others or time.monotonic() > deadline:
                        raise self._full(namespace, nbytes, bound)
                    time.sleep(0.02)

    def _others(self, connection: sqlite3.Connection) -> bool:
        """Whether other writers are writing or removing files just now."""
        query = "SELECT count(*) FROM reservations WHERE writer != ?"
        return bool(connection.execute(query, (self._writers.id,)).fetchone()[0])

    def _full(self, namespace: str, nbytes: int, bound: int) -> BankFullError:
        most = f"{max(bound, 0):,} bytes of namespace {namespace!r}"
        where = f"The bank at {str(self._database.folder)!r} may hold {most}"
        if nbytes > bound:
            return BankFullError(
                f"{where}, and this page's block alone has {nbytes:,}: raise the limit with `qvpic bank limit`."
            )
        return BankFullError(
            f"{where}, and all of it is in use by requests, or taken by other namespaces without a quota: raise the "
            f"limit or give this namespace a quota with `qvpic bank limit`, or try again when requests are done."
        )

    def _progress(self, taken: Taken) -> bool:
        """Remove what was taken, or else what dead writers left; False when there was neither."""
        if not taken.files:
            return self.recover()
        self.finish(taken)
        return True

    # ------------------------------------------------------------------ eviction

    def _evict(self, connection: sqlite3.Connection, names: limits.Names, short: int, taken: Taken) -> None:
        """Take files worth ``short`` bytes from namespaces, as far as that is possible, at most a batch of them.

        Damaged ones go first, then those that the remote tier has, then those that are cheapest to compile again per
        byte and second without use. The high resolution of a page goes before its low one, which can stand in for it,
        unless a request has the high one mapped: what is mapped stays.
        """
        for rule in (
            """AND NOT (blocks.dpi = ? AND EXISTS (SELECT 1 FROM blocks AS high
                WHERE high.namespace_id = blocks.namespace_id AND high.page = blocks.page AND high.dpi = ?
                AND high.state = 0))""",
            "AND ? != ?",
        ):
            if not taken.files:
                self._evict_by(connection, names, short, taken, rule)

    def _evict_by(
        self, connection: sqlite3.Connection, names: limits.Names, short: int, taken: Taken, rule: str
    ) -> None:
        # Costs are measured per block; one that came without (imported, or of an older bank) counts as the mean.
        query = f"""SELECT {blockrows.COLUMNS} FROM {blockrows.TABLES},
            (SELECT coalesce(avg(cost / bytes), 1) AS mean FROM blocks WHERE cost > 0 AND bytes > 0)
            WHERE namespaces.name IN ({",".join("?" * len(names))}) AND blocks.state != {blockrows.EVICTED} {rule}
            ORDER BY blocks.state DESC, blocks.uploaded DESC, CASE WHEN blocks.cost > 0
            THEN blocks.cost / blocks.bytes ELSE mean END / (1 + abs(? - blocks.used)), blocks.digest
            LIMIT ?"""
        in_use: set[str] = set()
        while True:
            values = (*names, self._low, self._high, time.time(), _BATCH + len(in_use))
            found = [blockrows.row_of(columns) for columns in connection.execute(query, values).fetchall()]
            rows = [row for row in found if row.digest not in in_use]
            for row in rows:
                if short <= 0 or len(taken.files) == _BATCH:
                    return
                if not self._take(connection, row, taken):
                    in_use.add(row.digest)
                    continue
                blockrows.mark_evicted(connection, row.digest)
                usage.add(connection, row.namespace, "evictions")
                short -= row.nbytes
            if not rows:
                return

    def _take(self, connection: sqlite3.Connection, row: BlockRow, taken: Taken) -> bool:
        """Reserve and lock a file that is about to go; False where a request has it mapped, or it cannot go."""
        path = self._files.path(row.digest)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            descriptor = -1
        except OSError:  # nobody can read it either; `verify` tells
            return False
        taken.files.append(_File(row, descriptor))
        if descriptor >= 0 and (stat.S_ISDIR(os.fstat(descriptor).st_mode) or not try_lock(descriptor)):
            taken.files.pop()
            os.close(descriptor)
            return False
        connection.execute(
            "INSERT OR REPLACE INTO reservations (file, namespace_id, writer, bytes) "
            "SELECT ?, namespace_id, ?, ? FROM blocks WHERE digest = ?",
            (path.name, self._writers.id, row.nbytes, row.digest),
        )
        return True

    def remove(self, connection: sqlite3.Connection, rows: Sequence[BlockRow], taken: Taken) -> None:
        """Delete rows of blocks that nothing needs; their files go with :meth:`finish`."""
        for row in rows:
            if self._take(connection, row, taken):
                blockrows.delete(connection, row.digest)

    def finish(self, taken: Taken) -> None:
        """Remove the files of blocks that were taken, unless they have been stored anew meanwhile.

        Within a writing transaction: a block that another process stores under the same name comes before (and is
        seen) or after (and stays). Should it fail, the files count until :meth:`recover` removes them.
        """
        with self._database.write(durable=False) as connection:
            for row in taken.rows:
                self._remove_file(connection, row.digest, self._files.path(row.digest).name)

    def _remove_file(self, connection: sqlite3.Connection, digest: str, name: str) -> None:
        """Remove the file of a reservation, and the reservation."""
        if name.endswith(TEMPORARY):
            self._files.place(digest, name).unlink(missing_ok=True)
        path = self._files.path(digest)
        row = blockrows.find(connection, digest)
        if row is None or row.state == blockrows.EVICTED:
            path.unlink(missing_ok=True)
        elif path.is_file() and path.stat().st_size != row.nbytes:
            # A writer died after it had replaced the file and before its row was written.
            blockrows.mark_damaged(connection, digest, path.stat().st_size)
        connection.execute("DELETE FROM reservations WHERE file = ?", (name,))

    # ------------------------------------------------------------------ dead writers

    def abandoned(self) -> bool:
        """Whether dead writers left something."""
        if self._writers.dead():
            return True
        with self._database.read() as connection:
            return any(not self._writers.alive(writer) for writer in self._named(connection))

    @staticmethod
    def _named(connection: sqlite3.Connection) -> list[str]:
        query = "SELECT writer FROM reservations UNION SELECT writer FROM claims"
        return [str(row[0]) for row in connection.execute(query)]

    def recover(self) -> bool:
        """Clean up what dead writers began, and removals of this one that failed; False when nothing could be."""
        progress = False
        with self._database.write(durable=False) as connection:
            dead = list(dict.fromkeys([*self._writers.dead(), *self._named(connection)]))
            dead = [writer for writer in dead if not self._writers.alive(writer)]
            files = [name for writer in dead for name in self._reserved_by(connection, writer)]
            if self._writers.registered:  # removing is harmless twice, should another thread be at it
                own = self._reserved_by(connection, self._writers.id)
                files += [name for name in own if not name.endswith(TEMPORARY)]
            for name in files:
                try:
                    self._remove_file(connection, name.removeprefix(".")[:64], name)
                    progress = True
                except OSError as error:  # it counts until it goes
                    _log.warning("%s cannot be removed from %s: %s", name, self._files.root, error)
            for writer in dead:
                progress |= connection.execute("DELETE FROM claims WHERE writer = ?", (writer,)).rowcount > 0
        for writer in dead:
            self._writers.forget(writer)
        return progress

    @staticmethod
    def _reserved_by(connection: sqlite3.Connection, writer: str) -> list[str]:
        rows = connection.execute("SELECT file FROM reservations WHERE writer = ?", (writer,))
        return [str(name) for (name,) in rows]
