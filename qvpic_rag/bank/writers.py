"""Who writes: every bank object that writes holds a locked file, so that others see when its process has died.

The lock is the kernel's (``flock``) and ends with the process, however that ends: no time limit, no heartbeat, and no
clock is involved. What a writer began (claims, reservations, temporary files) carries its id.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qvpic_rag import forking

__all__ = ["TEMPORARY", "Writers", "remove_abandoned", "try_lock"]

TEMPORARY = ".tmp"

_NAME = re.compile(r"([0-9a-f]{16})\.lock")


def try_lock(descriptor: int, operation: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file without waiting; False when another descriptor holds it."""
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def remove_abandoned(folder: Path) -> None:
    """Remove temporary files in a folder that nobody holds locked any more."""
    for path in folder.glob(f".*{TEMPORARY}"):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            if try_lock(descriptor):
                path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)


class Writers:
    """The writers of one bank, and this object as one of them from its first :attr:`id` on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._own: tuple[str, int] | None = None  # id, descriptor
        forking.renewed(self)

    def _after_fork(self) -> None:
        """The lock is the parent's, and must end with it."""
        self._lock = threading.Lock()
        own, self._own = self._own, None
        if own is not None:
            os.close(own[1])

    @property
    def id(self) -> str:
        """This writer's id, 16 hexadecimal digits; a process forked from this one gets its own."""
        with self._lock:
            if self._own is None:
                self._own = self._register()
            return self._own[0]

    @property
    def registered(self) -> bool:
        """Whether this process has an id already."""
        return self._own is not None

    def _register(self) -> tuple[str, int]:
        self.folder.mkdir(exist_ok=True)
        name = secrets.token_hex(8)
        with self._folder_locked():  # nobody looks between the next two steps and takes this for a dead writer
            descriptor = os.open(self._path(name), os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        return name, descriptor

    @contextmanager
    def _folder_locked(self) -> Iterator[None]:
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _path(self, writer: str) -> Path:
        return self.folder / f"{writer}.lock"

    def alive(self, writer: str) -> bool:
        """Whether the writer of this id still runs."""
        own = self._own
        if own is not None and writer == own[0]:
            return True
        if not _NAME.fullmatch(f"{writer}.lock"):
            return False
        try:
            descriptor = os.open(self._path(writer), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not try_lock(descriptor)
        finally:
            os.close(descriptor)

    def dead(self) -> list[str]:
        """Ids of writers whose files are left, but which do not run any more."""
        if not self.folder.is_dir():
            return []
        with self._folder_locked():
            names = [match[1] for path in self.folder.iterdir() if (match := _NAME.fullmatch(path.name))]
            return [name for name in names if not self.alive(name)]

    def forget(self, writer: str) -> None:
        """Remove the file of a writer that has ended; one that cannot be removed is taken for dead all the same."""
        with contextlib.suppress(OSError):
            self._path(writer).unlink(missing_ok=True)

    def close(self) -> None:
        """End being a writer; harmless when it never was one."""
        with self._lock:
            own, self._own = self._own, None
        if own is not None:
            self.forget(own[0])
            os.close(own[1])
