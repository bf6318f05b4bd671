"""Rows of blocks: what the database knows of each block file. Every function runs inside the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

from qvpic_rag.bank.index_db import Database
from qvpic_rag.records import BlockKey

__all__ = [
    "COLUMNS",
    "DAMAGED",
    "EVICTED",
    "STORED",
    "TABLES",
    "BlockRow",
    "all_rows",
    "count_unlinked",
    "count_waiting",
    "delete",
    "find",
    "insert",
    "mark_damaged",
    "mark_evicted",
    "mark_uploaded",
    "row_of",
    "touch",
    "unlinked",
    "waiting",
]

STORED, DAMAGED, EVICTED = 0, 1, 2
"""A row's state: served; set aside in its place and never served; without a file, to make room."""

_BATCH = 256
COLUMNS = """blocks.digest, namespaces.name, blocks.page, blocks.dpi, blocks.bytes, blocks.checksum, blocks.state,
    blocks.created"""
TABLES = "blocks JOIN namespaces ON namespaces.id = blocks.namespace_id"
_UNLINKED = """NOT EXISTS (SELECT 1 FROM pages JOIN links ON links.page_id = pages.id
    WHERE pages.namespace_id = blocks.namespace_id AND pages.digest = blocks.page)"""


@dataclass(frozen=True)
class BlockRow:
    """A block that was put: ``nbytes`` of its file (0 where it was evicted) and ``checksum``; ``created`` is when it
    was last put, Unix time."""

    digest: str
    namespace: str
    page: str
    dpi: int
    nbytes: int
    checksum: str
    state: int
    created: float


def row_of(columns: tuple[object, ...]) -> BlockRow:
    """A row as selected by :data:`COLUMNS`; ``sqlite3.DatabaseError`` when its values have other types."""
    row = BlockRow(*columns)  # type: ignore[arg-type] # that is what is checked now
    texts, numbers = (row.digest, row.namespace, row.page, row.checksum), (row.dpi, row.nbytes, row.state)
    sound = all(isinstance(text, str) for text in texts) and all(isinstance(number, int) for number in numbers)
    if not sound or not isinstance(row.created, float) or row.nbytes < 0:
        raise sqlite3.DatabaseError("malformed row of a block")
    return row


def find(connection: sqlite3.Connection, digest: str) -> BlockRow | None:
    """The row of a block, None when there is none."""
    row = connection.execute(f"SELECT {COLUMNS} FROM {TABLES} WHERE blocks.digest = ?", (digest,)).fetchone()
    return row_of(row) if row else None


def insert(
    connection: sqlite3.Connection, owner: int, key: BlockKey, nbytes: int, checksum: str, now: float, cost_s: float
) -> None:
    """Add or replace the row of a block of namespace row ``owner``."""
    connection.execute(
        """INSERT OR REPLACE INTO blocks (digest, namespace_id, page, dpi, bytes, checksum, created, used, cost)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (key.digest, owner, key.page, key.dpi, nbytes, checksum, now, now, cost_s),
    )


def touch(connection: sqlite3.Connection, digest: str, created: float) -> None:
    """A block was put again: its grace period starts anew."""
    connection.execute("UPDATE blocks SET created = ? WHERE digest = ?", (created, digest))


def mark_damaged(connection: sqlite3.Connection, digest: str, nbytes: int) -> None:
    """Set a block aside whose file, now of ``nbytes`` bytes, is not what was stored."""
    connection.execute(
        "UPDATE blocks SET state = ?, bytes = ?, uploaded = 0 WHERE digest = ?", (DAMAGED, nbytes, digest)
    )


def mark_evicted(connection: sqlite3.Connection, digest: str) -> None:
    """The block's file goes, to make room; that it was there stays known."""
    connection.execute("UPDATE blocks SET state = ?, bytes = 0 WHERE digest = ?", (EVICTED, digest))


def delete(connection: sqlite3.Connection, digest: str) -> None:
    """Remove the row of a block."""
    connection.execute("DELETE FROM blocks WHERE digest = ?", (digest,))


def all_rows(database: Database) -> Iterator[BlockRow]:
    """Every block that has a file, in the order of digests, a batch per transaction, so that a long walk holds up no
    writer."""
    last = ""
    where = f"WHERE blocks.digest > ? AND blocks.state != {EVICTED}"
    query = f"SELECT {COLUMNS} FROM {TABLES} {where} ORDER BY blocks.digest LIMIT {_BATCH}"
    while True:
        with database.read() as connection:
            rows = [row_of(row) for row in connection.execute(query, (last,))]
        yield from rows
        if len(rows) < _BATCH:
            return
        last = rows[-1].digest


def unlinked(connection: sqlite3.Connection, now: float, grace_s: float, limit: int, skip: int = 0) -> list[BlockRow]:
    """Blocks of pages that no document holds, neither put nor used within the grace period.

    A time that far in the future counts as well: the clock was set back since.
    """
    query = f"""SELECT {COLUMNS} FROM {TABLES} WHERE abs(? - blocks.created) >= ? AND abs(? - blocks.used) >= ?
        AND {_UNLINKED} ORDER BY blocks.digest LIMIT ? OFFSET ?"""
    return [row_of(row) for row in connection.execute(query, (now, grace_s, now, grace_s, limit, skip))]


def count_unlinked(connection: sqlite3.Connection, namespace: str) -> int:
    """Number of a namespace's stored blocks whose pages no document holds."""
    query = f"SELECT count(*) FROM {TABLES} WHERE namespaces.name = ? AND blocks.state = {STORED} AND {_UNLINKED}"
    return int(connection.execute(query, (namespace,)).fetchone()[0])


_WAITS = f"namespaces.name = ? AND blocks.state = {STORED} AND blocks.uploaded = 0"


def waiting(connection: sqlite3.Connection, namespace: str, limit: int) -> list[BlockRow]:
    """Stored blocks of a namespace that were not uploaded yet, by digest."""
    query = f"SELECT {COLUMNS} FROM {TABLES} WHERE {_WAITS} ORDER BY blocks.digest LIMIT ?"
    return [row_of(row) for row in connection.execute(query, (namespace, limit))]


def count_waiting(connection: sqlite3.Connection, namespace: str) -> int:
    """How many there are."""
    return int(connection.execute(f"SELECT count(*) FROM {TABLES} WHERE {_WAITS}", (namespace,)).fetchone()[0])


def mark_uploaded(connection: sqlite3.Connection, digest: str, checksum: str) -> None:
    """The remote tier has this file of a block."""
    connection.execute("UPDATE blocks SET uploaded = 1 WHERE digest = ? AND checksum = ?", (digest, checksum))
