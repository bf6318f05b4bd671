"""What a bank and its namespaces may hold, and what counts against that. Every function runs inside a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from qvpic_rag.bank import catalogue
from qvpic_rag.errors import ConfigError

__all__ = ["Names", "bound", "check_limit", "excess", "holdings", "limits", "set_max_bytes", "set_quota", "used"]

Names = Sequence[str]
"""Some namespaces of the bank, by name."""

_MOST = 2**60


def check_limit(value: object) -> None:
    """Raise ``ConfigError`` unless this is None or a number of bytes that can be a limit."""
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST:
        raise ConfigError(f"A bank's limit must be a whole number of bytes from 1 to 2**60, not {value!r}.")


def limits(connection: sqlite3.Connection, namespace: str) -> tuple[int | None, int | None]:
    """The bank's ``max_bytes`` and the namespace's quota, bytes; None where there is none."""
    row = connection.execute("SELECT value FROM settings WHERE name = 'max_bytes'").fetchone()
    own = connection.execute("SELECT quota FROM namespaces WHERE name = ?", (namespace,)).fetchone()
    return (int(row[0]) if row else None), (int(own[0]) if own and own[0] is not None else None)


def set_max_bytes(connection: sqlite3.Connection, value: int | None) -> None:
    """Set or lift the limit of the whole bank."""
    connection.execute("DELETE FROM settings WHERE name = 'max_bytes'")
    if value is not None:
        connection.execute("INSERT INTO settings (name, value) VALUES ('max_bytes', ?)", (value,))


def set_quota(connection: sqlite3.Connection, namespace: str, value: int | None) -> None:
    """Set or lift the quota of a namespace."""
    owner = catalogue.namespace_id(connection, namespace)
    connection.execute("UPDATE namespaces SET quota = ? WHERE id = ?", (value, owner))


def excess(connection: sqlite3.Connection) -> tuple[Names, int] | None:
    """Whose files exceed a limit, and by how many bytes; None when all limits hold.

    Raises ``ConfigError`` when the quotas come to more than the bank's limit.
    """
    total, kept = _totals(connection)
    if total is not None and kept > total:
        raise ConfigError(
            f"The quotas of the namespaces come to {kept:,} bytes, more than the bank's limit of {total:,}: lower a "
            f"quota, or raise the limit."
        )
    for name, quota in connection.execute("SELECT name, quota FROM namespaces WHERE quota IS NOT NULL").fetchall():
        short = used(connection, [name]) - int(quota)
        if short > 0:
            return [name], short
    if total is None:
        return None
    shared = _without_quota(connection)
    short = used(connection, shared) - (total - kept)
    return (shared, short) if short > 0 else None


def bound(connection: sqlite3.Connection, namespace: str) -> tuple[int | None, Names]:
    """What a namespace may hold, None for no bound, and the namespaces whose files count against that.

    Without a quota of its own, a namespace shares what the quotas leave with the others that have none.
    """
    _, quota = limits(connection, namespace)
    if quota is not None:
        return quota, [namespace]
    total, kept = _totals(connection)
    return (None, []) if total is None else (total - kept, _without_quota(connection))


def holdings(connection: sqlite3.Connection) -> list[tuple[str, int, int | None]]:
    """Every namespace: its name, the bytes of its files, and its quota."""
    rows = connection.execute("SELECT name, quota FROM namespaces ORDER BY name").fetchall()
    return [(str(name), used(connection, [name]), None if quota is None else int(quota)) for name, quota in rows]


def used(connection: sqlite3.Connection, names: Names) -> int:
    """Bytes of files that are there, being written or being removed."""
    found = 0
    for table in ("blocks", "reservations"):
        query = f"""SELECT coalesce(sum(bytes), 0) FROM {table} JOIN namespaces
            ON namespaces.id = {table}.namespace_id WHERE namespaces.name = ?"""
        found += sum(int(connection.execute(query, (name,)).fetchone()[0]) for name in names)
    return found


def _totals(connection: sqlite3.Connection) -> tuple[int | None, int]:
    """The bank's limit, and what quotas keep of it."""
    total, _ = limits(connection, "")
    return total, int(connection.execute("SELECT coalesce(sum(quota), 0) FROM namespaces").fetchone()[0])


def _without_quota(connection: sqlite3.Connection) -> list[str]:
    return [str(row[0]) for row in connection.execute("SELECT name FROM namespaces WHERE quota IS NULL")]
