"""The bank's SQLite database: schema, opening, and transactions that several threads and processes may use at once."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qvpic_rag.bank import failures
from qvpic_rag.bank.blockfile import sync_folder
from qvpic_rag.bank.schema import FORMAT, MIGRATIONS
from qvpic_rag.errors import BankError, BankNotFoundError

__all__ = ["FILE_NAME", "Database", "EmptyBankError"]

FILE_NAME = "bank.sqlite"
_APPLICATION = 0x51565043  # "QVPC": tells a bank from any other SQLite file
_BUSY_S = 60.0
_ADVICE = "give the folder of a bank, or make one with `qvpic ingest PATH --bank DIR --model MODEL`"


class EmptyBankError(BankNotFoundError):
    """The database has no tables: its creation was cut short, or goes on. Nothing was ever stored."""


def _connect(file: Path, options: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{file.absolute().as_uri()}?{options}",
        uri=True,
        timeout=_BUSY_S,
        isolation_level=None,  # transactions are begun and ended here, not by the module
        check_same_thread=False,  # one lock guards every use
    )
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
        if options.startswith("mode=rw"):
            connection.execute("PRAGMA synchronous = FULL")  # an acknowledged commit survives a power cut
    except sqlite3.Error:  # not a database
        connection.close()
        raise
    return connection


def _busy(seconds: float) -> str:
    return f"PRAGMA busy_timeout = {int(1000 * seconds)}"


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])


def _state(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Application id, format, number of tables."""
    tables = int(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    return _number(connection, "application_id"), _number(connection, "user_version"), tables


def _migrate(connection: sqlite3.Connection, found: int) -> None:
    """Bring the tables from format ``found`` to this one, inside the caller's transaction."""
    for step in MIGRATIONS[found:]:
        for statement in step:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {FORMAT}")


def _use_wal(connection: sqlite3.Connection, folder: Path) -> None:
    """Switch to WAL mode. Two processes that create one bank at once may refuse each other: try for a while."""
    deadline = time.monotonic() + _BUSY_S
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            break
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise failures.network(folder)


@contextmanager
def _opening(file: Path) -> Iterator[None]:
    """While a file is being opened, damage means that it is no bank."""
    try:
        yield
    except BankError as error:
        if failures.is_damage(error.__cause__):
            raise BankNotFoundError(f"{str(file)!r} is damaged or is no database of a bank: {_ADVICE}.") from error
        raise


class Database:
    """The database of the bank in one folder.

    One connection, guarded by a lock; a process forked from this one opens its own. In a folder that cannot be written
    each reading transaction opens its own connection, because SQLite then cannot tell readers of later changes; so it
    does on a disk so full that SQLite cannot open the database for writing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / FILE_NAME
        self._closed = False
        self._inherited: list[object] = []
        self._start()
        effective = os.access in os.supports_effective_ids
        self.writable = all(os.access(path, os.W_OK, effective_ids=effective) for path in (folder, self.file))

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._current: sqlite3.Connection | None = None  # what this lock's owner has a transaction on

    @classmethod
    def create(cls, folder: Path, recipe: str) -> None:
        """Make the database unless it is there; the recipe of an existing one stays."""
        file = folder / FILE_NAME
        with (
            _opening(file),
            failures.guard(folder),
            contextlib.closing(_connect(file, "mode=rwc")) as connection,
        ):
            if _state(connection) != (0, 0, 0):
                return  # an existing bank, or another program's file: opening it tells
            _use_wal(connection, folder)
            connection.execute("BEGIN IMMEDIATE")
            if _state(connection) == (0, 0, 0):
                _migrate(connection, 0)
                connection.execute("INSERT INTO recipe (id, json) VALUES (1, ?)", (recipe,))
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute("COMMIT")
            sync_folder(folder)

    def check_format(self) -> None:
        """Raise unless this is a database of a format that is known here; an older one is brought to the present."""
        with _opening(self.file), self.read() as connection:
            application, version, tables = _state(connection)
            mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
            shared = connection is self._connection
        if (application, version, tables) == (0, 0, 0):
            raise EmptyBankError(f"The bank at {str(self.folder)!r} is empty, nothing was ever stored: {_ADVICE}.")
        if application != _APPLICATION or version < 1:
            raise BankNotFoundError(f"{str(self.file)!r} belongs to another program: {_ADVICE}.")
        if version > FORMAT:
            raise failures.newer(self.folder, version, FORMAT)
        # Any other connection may have opened the database as immutable, where SQLite reports no WAL.
        if shared and mode != "wal":
            raise failures.network(self.folder)
        if version < FORMAT:
            if not self.writable:
                raise failures.older(self.folder, version, FORMAT)
            with self.write() as connection:
                _migrate(connection, _state(connection)[1])  # looked up again: another process may have been quicker

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """One consistent view for reading."""
        with self._acquire():
            if self._current is not None:  # inside this thread's own transaction
                yield self._current
                return
            with self._reader() as connection, self._transaction(connection, "BEGIN"):
                yield connection

    @contextmanager
    def write(self, *, durable: bool = True, patience_s: float | None = None) -> Iterator[sqlite3.Connection]:
        """One writing transaction: one at a time over all processes; all of it happens, or nothing does.

        ``OSError`` and SQLite errors inside become ``BankError``. What is not ``durable`` survives the death of the
        process, and a power cut only together with a later durable transaction: for notes that cost no flush.
        ``patience_s`` is how long another process's transaction is waited for, a minute by default.
        """
        if not self.writable:
            raise failures.read_only(self.folder)
        with self._acquire():
            connection = self._shared()
            level = "PRAGMA synchronous = " + ("FULL" if durable else "NORMAL")
            patience = _BUSY_S if patience_s is None else patience_s
            try:
                with self._transaction(connection, level, _busy(patience), "BEGIN IMMEDIATE"):
                    yield connection
                    connection.execute("COMMIT")
            finally:
                if patience != _BUSY_S:
                    connection.execute(_busy(_BUSY_S))

    @contextmanager
    def _transaction(self, connection: sqlite3.Connection, *begin: str) -> Iterator[None]:
        """A transaction that ends with the block; what was not committed in it is rolled back.

        An interrupt (Ctrl-C) may come at any step, also right after SQLite began the transaction. Should one come
        within the clean-up, the next transaction first ends the one that was left open.
        """
        if self._current is None:
            connection.rollback()
        try:
            self._current = connection
            for statement in begin:
                connection.execute(statement)
            yield
        finally:
            self._current = None
            # Some failures have rolled back already; the first error is the one to report.
            try:  # noqa: SIM105 - an interrupt could come before any other call than this one
                connection.rollback()
            except sqlite3.Error:
                pass

    def close(self) -> None:
        """Close the connection; harmless when closed."""
        if self._pid != os.getpid():
            self._inherit()
        with self._lock, failures.guard(self.folder):
            self._closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def _acquire(self) -> Iterator[None]:
        if self._pid != os.getpid():
            self._inherit()
        with self._lock, failures.guard(self.folder):
            if self._closed:
                raise failures.closed(self.folder)
            yield

    def _shared(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = _connect(self.file, "mode=rw")
            try:
                _state(connection)  # the first read makes the two files that WAL mode has beside the database
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        connection = None
        if self.writable:
            try:
                connection = self._shared()
            except sqlite3.OperationalError:
                if failures.has_room(self.folder):
                    raise
        if connection is not None:
            yield connection
            return
        with contextlib.closing(self._connect_read_only()) as connection:
            yield connection

    def _inherit(self) -> None:
        """After a fork: neither use nor close what belongs to the parent, as SQLite demands."""
        self._inherited.append(self._connection)
        self._start()

    def _connect_read_only(self) -> sqlite3.Connection:
        connection = _connect(self.file, "mode=ro")
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return connection
        except sqlite3.OperationalError as error:
            # WAL mode wants to make two files beside the database. Without a writer there is nothing in them to miss.
            connection.close()
            log = self.folder / f"{FILE_NAME}-wal"
            if log.exists() and log.stat().st_size:
                if self.writable:
                    raise failures.no_room(self.folder) from error
                raise BankError(
                    f"The bank at {str(self.folder)!r} is read-only here and was not closed properly by its last "
                    f"writer: open it once where it can be written, for example with `qvpic bank stats`."
                ) from error
            return _connect(self.file, "mode=ro&immutable=1")
