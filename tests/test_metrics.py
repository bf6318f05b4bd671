"""Counters and histograms, and how Prometheus sees them."""

from __future__ import annotations

import sys
import threading

import pytest

from qvpic_rag.errors import MissingDependencyError
from qvpic_rag.metrics import BUCKETS_S, METRICS, Metrics
from qvpic_rag.prometheus import Collector, register


def test_counters_are_apart_by_labels() -> None:
    metrics = Metrics()
    metrics.count("bank_hits", tier="ram")
    metrics.count("bank_hits", 2, tier="disk")
    metrics.count("bank_hits", tier="ram")
    assert metrics.value("bank_hits", tier="ram") == 2
    assert metrics.value("bank_hits", tier="disk") == 2
    assert metrics.value("bank_hits", tier="remote") == 0
    counters, _ = metrics.snapshot()
    assert set(counters) == {("bank_hits", (("tier", "ram"),)), ("bank_hits", (("tier", "disk"),))}
    metrics.reset()
    assert metrics.snapshot() == ({}, {})


def test_a_histogram_counts_every_observation_once() -> None:
    metrics = Metrics()
    seconds = [0.0, *BUCKETS_S, 99.0]
    for value in seconds:
        metrics.observe("bank_load_seconds", value)
    histogram = metrics.snapshot()[1]["bank_load_seconds", ()]
    assert histogram.counts == [2, *[1] * (len(BUCKETS_S) - 1), 1]
    assert histogram.total == pytest.approx(sum(seconds))
    metrics.observe("bank_load_seconds", 1.0)
    assert sum(histogram.counts) == len(seconds), "a snapshot does not change any more"


def test_threads_lose_no_count() -> None:
    metrics = Metrics()

    def work() -> None:
        for _ in range(2000):
            metrics.count("bank_misses")
            metrics.observe("bank_load_seconds", 0.1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metrics.value("bank_misses") == 8000
    assert sum(metrics.snapshot()[1]["bank_load_seconds", ()].counts) == 8000


def test_prometheus_sees_them() -> None:
    prometheus = pytest.importorskip("prometheus_client")
    metrics = Metrics()
    metrics.count("bank_hits", 3, tier="ram")
    metrics.count("bank_evictions")
    for value in (0.002, 0.02, 50.0):
        metrics.observe("bank_load_seconds", value, tier="disk")
    registry = prometheus.CollectorRegistry()
    registry.register(Collector(metrics))
    text = prometheus.generate_latest(registry).decode()
    for line in (
        'qvpic_bank_hits_total{tier="ram"} 3.0',
        "qvpic_bank_evictions_total 1.0",
        'qvpic_bank_load_seconds_bucket{le="0.001",tier="disk"} 0.0',
        'qvpic_bank_load_seconds_bucket{le="0.0025",tier="disk"} 1.0',
        'qvpic_bank_load_seconds_bucket{le="0.025",tier="disk"} 2.0',
        'qvpic_bank_load_seconds_bucket{le="+Inf",tier="disk"} 3.0',
        'qvpic_bank_load_seconds_count{tier="disk"} 3.0',
    ):
        assert line in text, text
    assert "# HELP qvpic_bank_hits_total Blocks found, by tier (ram, disk, remote)." in text


def test_registering_shows_the_process_figures() -> None:
    prometheus = pytest.importorskip("prometheus_client")
    METRICS.count("bank_hits", tier="ram")
    register()
    register()  # harmless
    samples = [
        s for family in prometheus.REGISTRY.collect() for s in family.samples if s.name == "qvpic_bank_hits_total"
    ]
    assert len(samples) == len({tuple(sample.labels.items()) for sample in samples})
    assert prometheus.REGISTRY.get_sample_value("qvpic_bank_hits_total", {"tier": "ram"}) >= 1


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'qvpic-rag\[prometheus\]'"):
        Collector()
