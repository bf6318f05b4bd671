"""A circuit breaker: once something failed, it is left alone for a while, so that not every caller waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Breaker"]


class Breaker:
    """Says who may ask something that may be down; safe to use from several threads.

    After a failure nobody may for ``first_s`` seconds, twice as long after each further one, at most ``longest_s``.
    Then a single caller may try; the others wait for what it finds.
    """

    def __init__(self, first_s: float, longest_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0  # in a row; also the number of the state that a ticket belongs to
        self._wait_s = 0.0
        self._until = 0.0
        self._skipped = 0

    @property
    def skipped(self) -> int:
        """How many callers were told not to ask."""
        return self._skipped

    @property
    def retry_in_s(self) -> float:
        """Seconds until somebody may ask again; 0 when anybody may now."""
        with self._lock:
            return max(0.0, self._until - self._clock()) if self._failures else 0.0

    def enter(self) -> int | None:
        """A ticket for one attempt, to be given to :meth:`failed` or :meth:`succeeded`; None: do not ask."""
        with self._lock:
            if self._failures:
                now = self._clock()
                if now < self._until:
                    self._skipped += 1
                    return None
                self._until = now + self._wait_s  # this caller tries
            return self._failures

    def failed(self, ticket: int) -> bool:
        """Count a failure; whether it is the first. Attempts that began in an earlier state say nothing new."""
        with self._lock:
            if ticket != self._failures:
                return False
            self._wait_s = min(self._first_s * 2.0 ** min(self._failures, 64), self._longest_s)
            self._until = self._clock() + self._wait_s
            self._failures += 1
            return self._failures == 1

    def succeeded(self, ticket: int) -> bool:
        """Whether this is the end of a failure."""
        with self._lock:
            if not ticket or ticket != self._failures:
                return False
            self._failures = 0
            return True
