"""The process's metrics for Prometheus; needs the extra ``prometheus``.

::

    from prometheus_client import start_http_server
    from qvpic_rag.prometheus import register

    register()
    start_http_server(9090)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qvpic_rag.errors import MissingDependencyError
from qvpic_rag.metrics import BUCKETS_S, METRICS, Metrics

__all__ = ["Collector", "register"]

_registered = False
_HELP = {
    "bank_hits": "Blocks found, by tier (ram, disk, remote).",
    "bank_misses": "Blocks that no tier had.",
    "bank_evictions": "Blocks removed to keep within a limit.",
    "bank_quarantines": "Stored blocks found damaged and set aside.",
    "bank_read_bytes": "Bytes of blocks read, by tier.",
    "bank_written_blocks": "Blocks stored.",
    "bank_written_bytes": "Bytes of block files written.",
    "bank_load_seconds": "Time to get one block, by tier.",
    "remote_failures": "Failed operations of the remote tier.",
}


class Collector:
    """Reads :data:`qvpic_rag.metrics.METRICS` whenever Prometheus asks; register it once per process."""

    def __init__(self, metrics: Metrics = METRICS) -> None:
        try:
            from prometheus_client import core
        except ImportError as error:
            raise MissingDependencyError(
                "Prometheus metrics need the package prometheus-client: pip install 'qvpic-rag[prometheus]'."
            ) from error
        self._core = core
        self._metrics = metrics

    def collect(self) -> Iterator[Any]:
        """The metric families, named ``qvpic_...``."""
        counters, histograms = self._metrics.snapshot()
        families: dict[str, Any] = {}

        def family(kind: Any, name: str, labels: tuple[tuple[str, str], ...]) -> Any:
            if name not in families:
                names = [label for label, _ in labels]
                families[name] = kind(f"qvpic_{name}", _HELP.get(name, name), labels=names)
            return families[name]

        for (name, labels), value in sorted(counters.items()):
            counter = family(self._core.CounterMetricFamily, name, labels)
            counter.add_metric([text for _, text in labels], value)
        for (name, labels), observed in sorted(histograms.items(), key=lambda item: item[0]):
            histogram = family(self._core.HistogramMetricFamily, name, labels)
            reached, buckets = 0, []
            for bound, count in zip([*map(str, BUCKETS_S), "+Inf"], observed.counts, strict=True):
                reached += count
                buckets.append((bound, reached))
            histogram.add_metric([text for _, text in labels], buckets, observed.total)
        yield from families.values()


def register() -> None:
    """Add the collector to Prometheus's default registry; harmless when it is there already.

    Raises
    ------
    MissingDependencyError
        ``prometheus-client`` is not installed.
    """
    global _registered
    collector = Collector()
    from prometheus_client import REGISTRY

    if not _registered:
        _registered = True
        REGISTRY.register(collector)
