"""Figures as the words and cells of a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qvpic_rag.evaluation.claims import Claim
from qvpic_rag.evaluation.document import Table
from qvpic_rag.evaluation.tables import Estimate, MethodFigures, Percentiles

__all__ = [
    "claim_sentence",
    "count",
    "main_table",
    "offline_table",
    "ratio",
    "said",
    "served_table",
    "size",
    "with_interval",
]

_ROUGH = 10  # groups below which percentiles of resampled means are rough


def count(number: int, noun: str, more: str = "s") -> str:
    """Such as "1 example" and "2 examples"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{more}"


def said(value: Any) -> str:
    """A setting, as it is shown."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {said(each)}" for name, each in value.items())
    return ", ".join(map(said, value)) if isinstance(value, list) else "none" if value is None else str(value)


def size(nbytes: float | None) -> str:
    """Bytes, in the unit that keeps the number short."""
    if nbytes is None:
        return "-"
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes:.0f} B"


def with_interval(found: Estimate | None, sign: str = "", digits: int = 3) -> str:
    """Such as ``0.512 [0.480, 0.544]``."""
    if found is None:
        return "-"
    mean = f"{found.mean:{sign}.{digits}f}"
    if found.low is None or found.high is None:
        return mean
    return f"{mean} [{found.low:{sign}.{digits}f}, {found.high:{sign}.{digits}f}]"


def ratio(value: float | None) -> str:
    """Two digits; a dash where nothing was measured."""
    return "-" if value is None else f"{value:.2f}"


def milliseconds(value: float | None) -> str:
    """Three digits at least."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def main_table(rows: Sequence[MethodFigures], against: str | None) -> Table:
    """Quality, time and size of every method."""
    base = against or "full prefill"
    head = [
        "method", "n", "errors", "F1 [95%]", "EM [95%]", f"F1 - {base} [95%]", "TTFT mean, ms", "TTFT median, ms",
        f"TTFT / {base}", "active tokens", "active KV",
    ]  # fmt: skip
    body = [
        [
            row.method, str(row.n), str(row.errors), with_interval(row.f1), with_interval(row.em),
            with_interval(row.difference, "+"), milliseconds(None if row.ttft is None else row.ttft.mean),
            milliseconds(row.ttft_median), ratio(row.ratio),
            "-" if row.tokens is None else f"{row.tokens:.0f}", size(row.kv_bytes),
        ]
        for row in rows
    ]  # fmt: skip
    return Table(head, body)


def offline_table(rows: Sequence[MethodFigures]) -> Table:
    """What was done ahead of questions."""
    body = [
        [row.method, f"{row.offline_seconds:.3f}", size(row.offline_bytes)]
        for row in rows
        if row.offline_seconds is not None
    ]
    return Table(["method", "seconds per page", "kept per page"], body)


def served_table(rows: Sequence[Percentiles]) -> Table:
    """Several callers at once."""
    head = ["method", "callers", "requests"]
    head += [f"{what} {part}, ms" for what in ("TTFT", "total") for part in ("P50", "P95", "P99", "longest")]
    body = [
        [row.method, str(row.callers), str(row.n), *map(milliseconds, row.ttft), *map(milliseconds, row.total)]
        for row in rows
    ]
    return Table(head, body)


def claim_sentence(claim: Claim) -> str:
    """What was found, as one sentence that says no more than the interval does."""
    unit = " ms" if claim.unit == "ms" else ""
    digits = 1 if claim.unit == "ms" else 3
    difference = f"{'time saved' if unit else 'F1 difference'} {claim.gain.mean:+.{digits}f}{unit}"
    where = f"{claim.first} against {claim.second}, {count(claim.n, 'example')}"
    if claim.gain.low is None or claim.gain.high is None:
        return f"{claim.text}: not told ({where}: {difference}; one group of examples gives no interval)."
    interval = f"interval {claim.gain.low:+.{digits}f} to {claim.gain.high:+.{digits}f}{unit}"
    rough = f"; only {claim.groups} groups, so the interval is rough" if claim.groups < _ROUGH else ""
    return f"{claim.text}: {claim.verdict} ({where}: {difference}, {interval}{rough})."
