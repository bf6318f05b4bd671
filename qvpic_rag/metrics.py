"""What happened in this process: counters and histograms, for an exporter to read.

One registry, :data:`METRICS`, because a process has one set of figures. Counting is a dictionary update under a lock;
nothing is sent anywhere. :mod:`qvpic_rag.prometheus` shows it to Prometheus.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from qvpic_rag import forking

__all__ = ["BUCKETS_S", "METRICS", "Histogram", "Metrics"]

BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the histograms' buckets, seconds; a last one is unbounded."""

Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass
class Histogram:
    """Observed seconds: how many fell into each bucket of :data:`BUCKETS_S` (one more is unbounded), and their sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    total: float = 0.0

    def copy(self) -> Histogram:
        """A copy that does not change any more."""
        return Histogram(list(self.counts), self.total)


def _key(name: str, labels: Mapping[str, str]) -> Key:
    return name, tuple(sorted(labels.items()))


class Metrics:
    """Counters and histograms by name and labels; safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[Key, float] = {}
        self._histograms: dict[Key, Histogram] = {}
        forking.renewed(self)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        """Add to a counter."""
        key = _key(name, labels)
        with self._lock:
            self._counters[key] = self._counters.get(key, 0) + value

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """Add a duration to a histogram."""
        key = _key(name, labels)
        with self._lock:
            histogram = self._histograms.setdefault(key, Histogram())
            histogram.counts[bisect.bisect_left(BUCKETS_S, seconds)] += 1
            histogram.total += seconds

    def value(self, name: str, **labels: str) -> float:
        """What a counter has reached; 0 for one that never counted."""
        with self._lock:
            return self._counters.get(_key(name, labels), 0)

    def snapshot(self) -> tuple[dict[Key, float], dict[Key, Histogram]]:
        """Counters and histograms as they are now, by name and sorted labels."""
        with self._lock:
            return dict(self._counters), {key: value.copy() for key, value in self._histograms.items()}

    def reset(self) -> None:
        """Forget everything, for tests."""
        with self._lock:
            self._counters.clear()
            self._histograms.clear()


METRICS = Metrics()
