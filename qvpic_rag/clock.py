"""Milliseconds per stage of a request."""

from __future__ import annotations

import time

__all__ = ["Clock"]


class Clock:
    """Counts from its making.

    Attributes
    ----------
    start : float
        ``time.perf_counter`` seconds.
    stages : dict[str, float]
        Milliseconds by stage, see :meth:`lap`.
    """

    def __init__(self) -> None:
        self.start = self._last = time.perf_counter()
        self.stages: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        """Count the time since the last lap to ``stage``."""
        now = time.perf_counter()
        self.stages[stage] = self.stages.get(stage, 0.0) + (now - self._last) * 1000
        self._last = now
