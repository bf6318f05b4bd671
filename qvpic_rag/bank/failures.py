"""Failures of the operating system and of SQLite, as one sentence that says what to do."""

from __future__ import annotations

import errno
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qvpic_rag.errors import BankError

__all__ = [
    "closed",
    "damaged",
    "guard",
    "has_room",
    "is_damage",
    "network",
    "newer",
    "no_room",
    "older",
    "os_failure",
    "read_only",
    "sqlite_failure",
]

_KEPT = "what was stored before stays readable"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_LEAST_ROOM = 2**16  # SQLite needs half of it to open a database in WAL mode


def has_room(path: Path) -> bool:
    """Whether the disk has the room that SQLite needs to open a database for writing, and so `gc` to free more."""
    try:
        return shutil.disk_usage(path).free >= _LEAST_ROOM
    except OSError:  # a disk that cannot even tell failed in another way
        return True


def no_room(path: Path) -> BankError:
    """The disk is so full that nothing can be removed from the bank either."""
    return BankError(
        f"The disk of the bank at {str(path)!r} is full, too full even for `qvpic bank gc`: free some space elsewhere "
        f"on that disk first, and run the same command again; {_KEPT}."
    )


def _full(path: Path) -> BankError:
    return BankError(
        f"The disk (or its quota) is full, so the bank at {str(path)!r} cannot grow: free some space, for example with "
        f"`qvpic bank gc --bank {path}`, and run the same command again; {_KEPT}."
    )


def read_only(path: Path) -> BankError:
    """The bank cannot be written."""
    return BankError(
        f"The bank at {str(path)!r} is read-only here: make its folder and all files in it writable for this user, or "
        f"use a copy of it; {_KEPT}."
    )


def newer(path: Path, found: int, known: int) -> BankError:
    """The bank has a later format than this version knows."""
    return BankError(
        f"The bank at {str(path)!r} has format {found}, and this version of qvpic-rag reads up to {known}: upgrade "
        f"qvpic-rag, or make another bank with `qvpic ingest PATH --bank DIR --model MODEL`."
    )


def older(path: Path, found: int, known: int) -> BankError:
    """The bank has an earlier format and cannot be brought to this one here."""
    return BankError(
        f"The bank at {str(path)!r} has format {found} and is read-only here: open it once where it can be written, "
        f"for example with `qvpic bank stats --bank {path}`, which brings it to format {known} and keeps everything."
    )


def closed(path: Path) -> BankError:
    """The bank object was closed."""
    return BankError(f"This bank object was closed; open the bank at {str(path)!r} again.")


def os_failure(error: OSError, path: Path) -> BankError:
    """What an ``OSError`` inside the bank at ``path`` means."""
    if error.errno in _FULL:
        return _full(path)
    where = str(error.filename or path)
    if error.errno in _DENIED:
        return BankError(
            f"There is no permission for {where!r}: give this user read and write access to the bank at "
            f"{str(path)!r}, or use a bank elsewhere; {_KEPT}."
        )
    if error.errno in _NO_LOCKS:
        return BankError(
            f"The file system at {str(path)!r} does not support file locks (some network file systems do not): put the "
            f"bank on a local disk, and share it with other machines through a remote tier or an archive."
        )
    reason = error.strerror or type(error).__name__
    return BankError(
        f"The bank at {str(path)!r} failed on {where!r} ({reason}): check that its disk is present and healthy, then "
        f"try again."
    )


def sqlite_failure(error: sqlite3.Error, path: Path) -> BankError:
    """What an SQLite error inside the bank at ``path`` means.

    Told apart by message: SQLite's error codes are in the exception only from Python 3.11 on.
    """
    text = str(error)
    if ("full" in text or "disk I/O error" in text) and not has_room(path):
        return no_room(path)
    if "full" in text:
        return _full(path)
    if "readonly" in text:
        return read_only(path)
    if "locked" in text or "busy" in text:
        return BankError(
            f"The bank at {str(path)!r} was locked by another process for too long: wait until that process is done, "
            f"or stop it, and try again."
        )
    if "locking protocol" in text or "shared memory" in text:
        return network(path)
    if is_damage(error):
        return damaged(path)
    return BankError(
        f"The database of the bank at {str(path)!r} failed ({text}): check that its disk is present, healthy and local."
    )


def damaged(path: Path) -> BankError:
    """The database holds what it cannot hold."""
    return BankError(
        f"The database of the bank at {str(path)!r} is damaged: restore it from a backup, or make the bank again with "
        f"`qvpic ingest PATH --bank DIR --model MODEL`."
    )


def is_damage(error: BaseException | None) -> bool:
    """Whether an SQLite error says that the file is damaged or no database."""
    return isinstance(error, sqlite3.Error) and any(word in str(error) for word in ("malformed", "not a database"))


def network(path: Path) -> BankError:
    """The file system cannot do what WAL mode needs."""
    return BankError(
        f"The file system at {str(path)!r} does not support SQLite's WAL mode (network file systems do not): put the "
        f"bank on a local disk."
    )


@contextmanager
def guard(path: Path) -> Iterator[None]:
    """Turn ``OSError``, SQLite errors and undecodable text inside the block into ``BankError``."""
    try:
        yield
    except OSError as error:
        raise os_failure(error, path) from error
    except sqlite3.Error as error:
        raise sqlite_failure(error, path) from error
    except UnicodeDecodeError as error:
        raise damaged(path) from error
