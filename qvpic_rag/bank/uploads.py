"""Write-behind to the remote tier: blocks are uploaded in the background, after they were stored locally.

There is no queue that could be lost: what waits is what the bank's own rows say was not uploaded yet.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from qvpic_rag.bank.remote import RemoteTier
from qvpic_rag.errors import CorruptBlockError, RemoteError

__all__ = ["Uploads", "Waiting"]

_log = logging.getLogger(__name__)

Waiting = tuple[str, Path, int, str]
"""Digest of a block, its file, the file's bytes, and its checksum."""

_BATCH = 32
_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 600.0


class Uploads:
    """Uploads what waits, by one daemon thread that exists while something waits.

    Failures are logged and tried again, at growing intervals. A local file that is damaged or gone is reported and
    passed over until the thread is started again. Several threads may use one object; a forked process has no thread
    until it wakes one. Several processes may upload the blocks of one bank: what one has uploaded, the others skip.

    Parameters
    ----------
    tier : RemoteTier
        Where to.
    pending : callable
        ``pending(limit)``: up to ``limit`` blocks that wait, always in the same order.
    done : callable
        ``done(digest, checksum)``: this file of this block was uploaded and waits no more; another file of it may.
    count : callable
        ``count()``: how many wait.
    """

    def __init__(
        self,
        tier: RemoteTier,
        pending: Callable[[int], Sequence[Waiting]],
        done: Callable[[str, str], None],
        count: Callable[[], int],
    ) -> None:
        self._tier = tier
        self._pending = pending
        self._done = done
        self._count = count
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._woken = False

    def wake(self) -> None:
        """Something waits now; returns at once. Does nothing after :meth:`close`."""
        self._after_fork()
        with self._changed:
            if self._closing.is_set():
                return
            self._woken = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="qvpic-uploads", daemon=True)
                self._thread.start()

    def flush(self, timeout_s: float) -> int:
        """Wait until nothing can be uploaded any more, at most ``timeout_s`` seconds; how many blocks still wait.

        Damaged files are among those. After :meth:`close` this does not wait.
        """
        self.wake()
        with self._changed:
            self._changed.wait_for(lambda: self._thread is None or self._closing.is_set(), timeout_s)
        return self._count()

    def close(self, timeout_s: float = 1.0) -> None:
        """Stop after the upload at work, waiting up to ``timeout_s`` seconds. The rest stays for another time."""
        self._after_fork()
        with self._changed:
            self._closing.set()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _after_fork(self) -> None:
        """The parent's thread is not here, and its lock may be held for ever."""
        if self._pid != os.getpid():
            closed = self._closing.is_set()
            self._begin()
            if closed:
                self._closing.set()

    def _work(self) -> None:
        passed: set[tuple[str, str]] = set()
        delay_s = 0.0
        while True:
            with self._changed:
                self._woken = False
            try:
                more = self._round(passed)
                delay_s = 0.0
            except Exception as error:  # whatever it is, what waits must not wait for ever
                more = True
                self._report(error, first=not delay_s)
                delay_s = min(max(2 * delay_s, _FIRST_DELAY_S), _LONGEST_DELAY_S)
                self._closing.wait(max(delay_s, self._tier.retry_in_s))
            with self._changed:
                if self._closing.is_set() or not (more or self._woken):
                    self._thread = None
                    self._changed.notify_all()
                    return

    def _round(self, passed: set[tuple[str, str]]) -> bool:
        """Upload some of what waits; whether there was anything."""
        found = False
        for digest, path, nbytes, checksum in self._pending(_BATCH + len(passed)):
            if (digest, checksum) in passed:
                continue
            if self._closing.is_set():
                break
            found = True
            try:
                self._tier.upload(digest, path, nbytes, checksum)
            except FileNotFoundError:  # evicted or removed since it was listed; lost files are `verify`'s business
                passed.add((digest, checksum))
                continue
            except (CorruptBlockError, OSError) as error:  # of the local file
                passed.add((digest, checksum))
                _log.error("The block file %s cannot be uploaded: %s.", path, error)
                continue
            self._done(digest, checksum)
        return found

    def _report(self, error: Exception, first: bool) -> None:
        if self._closing.is_set():
            _log.debug("Uploading stopped while it was at work: %s", error)
        elif not isinstance(error, RemoteError):
            _log.error("Uploading blocks failed and is tried again.", exc_info=error)
        elif first and self._tier.available:  # otherwise the tier has told when it went down
            _log.warning("%s", error)
