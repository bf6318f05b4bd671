"""Rows of blocks: what the database knows of each block file. Every function runs inside the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

from qvpic_rag.bank.index_db import Database
from qvpic_rag.records import BlockKey

__all__ = ["BlockRow", "all_rows", "delete", "find", "insert", "touch", "unlinked"]

_BATCH = 256
_COLUMNS = "blocks.digest, namespaces.name, blocks.page, blocks.dpi, blocks.bytes, blocks.checksum, blocks.created"
_TABLES = "blocks JOIN namespaces ON namespaces.id = blocks.namespace_id"
_UNLINKED = """NOT EXISTS (SELECT 1 FROM pages JOIN links ON links.page_id = pages.id
    WHERE pages.namespace_id = blocks.namespace_id AND pages.digest = blocks.page)"""


@dataclass(frozen=True)
class BlockRow:
    """A stored block: ``nbytes`` and ``checksum`` of its file; ``created`` is when it was last put, Unix time."""

    digest: str
    namespace: str
    page: str
    dpi: int
    nbytes: int
    checksum: str
    created: float


def find(connection: sqlite3.Connection, digest: str) -> BlockRow | None:
    """The row of a block, None when there is none."""
    row = connection.execute(f"SELECT {_COLUMNS} FROM {_TABLES} WHERE blocks.digest = ?", (digest,)).fetchone()
    return BlockRow(*row) if row else None


def insert(
    connection: sqlite3.Connection, owner: int, key: BlockKey, nbytes: int, checksum: str, created: float
) -> None:
    """Add or replace the row of a block of namespace row ``owner``."""
    connection.execute(
        """INSERT OR REPLACE INTO blocks (digest, namespace_id, page, dpi, bytes, checksum, created)
        VALUES (?, ?, ?, ?, ?, ?, ?)""",
        (key.digest, owner, key.page, key.dpi, nbytes, checksum, created),
    )


def touch(connection: sqlite3.Connection, digest: str, created: float) -> None:
    """A block was put again: its grace period starts anew."""
    connection.execute("UPDATE blocks SET created = ? WHERE digest = ?", (created, digest))


def delete(connection: sqlite3.Connection, digest: str) -> None:
    """Remove the row of a block."""
    connection.execute("DELETE FROM blocks WHERE digest = ?", (digest,))


def all_rows(database: Database) -> Iterator[BlockRow]:
    """Every row in the order of digests, a batch per transaction, so that a long walk holds up no writer."""
    last = ""
    query = f"SELECT {_COLUMNS} FROM {_TABLES} WHERE blocks.digest > ? ORDER BY blocks.digest LIMIT {_BATCH}"
    while True:
        with database.read() as connection:
            rows = [BlockRow(*row) for row in connection.execute(query, (last,))]
        yield from rows
        if len(rows) < _BATCH:
            return
        last = rows[-1].digest


def unlinked(connection: sqlite3.Connection, now: float, grace_s: float, limit: int = -1) -> list[BlockRow]:
    """Blocks of pages that no document holds, put longer than the grace period ago.

    A time that far in the future counts as well: the clock was set back since.
    """
    query = f"""SELECT {_COLUMNS} FROM {_TABLES} WHERE abs(? - blocks.created) >= ? AND {_UNLINKED}
        ORDER BY blocks.digest LIMIT ?"""
    return [BlockRow(*row) for row in connection.execute(query, (now, grace_s, limit))]
