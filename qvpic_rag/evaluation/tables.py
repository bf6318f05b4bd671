"""Figures from a run's records. Pure: rows in, numbers out; nothing is read, drawn or worded.

Every interval is a 95% bootstrap interval that resamples groups of examples. Where all examples are of one group there
is none. A method's time to first token on an example is the mean of its repetitions, as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median
from typing import Any

from qvpic_rag.errors import InputError
from qvpic_rag.evaluation.naming import MethodName, reference
from qvpic_rag.evaluation.records import Answered, Example, OfflineCost, Served, Timed
from qvpic_rag.evaluation.rundir import RunFolder
from qvpic_rag.intervals import bootstrap, paired

__all__ = ["Estimate", "MethodFigures", "Percentiles", "Run", "method_figures", "percentile", "served_figures"]


@dataclass(frozen=True)
class Estimate:
    """A mean and its interval; ``low`` and ``high`` are None where there is only one group to resample."""

    mean: float
    low: float | None
    high: float | None

    @property
    def spread(self) -> tuple[float, float]:
        """How far the interval reaches below and above the mean; 0 where there is none."""
        if self.low is None or self.high is None:
            return 0.0, 0.0
        return max(self.mean - self.low, 0.0), max(self.high - self.mean, 0.0)


@dataclass(frozen=True)
class MethodFigures:
    """One row of the main table; None where nothing was measured.

    ``f1`` and ``em`` count an answer that failed as 0. ``difference`` is of F1 against the reference method, on the
    examples that both answered. ``ttft`` (mean) and ``ttft_median`` are milliseconds; ``ratio`` is the median over
    examples of the time to first token over the reference's. ``tokens`` and ``kv_bytes`` are means of the active
    context. ``offline_seconds`` and ``offline_bytes`` are per page.
    """

    method: str
    n: int
    errors: int
    f1: Estimate | None
    em: Estimate | None
    difference: Estimate | None
    ttft: Estimate | None
    ttft_median: float | None
    ratio: float | None
    tokens: float | None
    kv_bytes: float | None
    offline_seconds: float | None
    offline_bytes: float | None


@dataclass(frozen=True)
class Percentiles:
    """Milliseconds within which half, 95%, 99% and all of ``n`` requests of ``callers`` at once had answered.

    95% is None below 20 requests and 99% below 100: there would be no request above them but the slowest.
    """

    method: str
    callers: int
    n: int
    ttft: tuple[float | None, ...]
    total: tuple[float | None, ...]

    @property
    def at_once(self) -> bool:
        """Whether there were requests enough for so many callers."""
        return self.n >= self.callers


@dataclass(frozen=True)
class Run:
    """The records of one run.

    Attributes
    ----------
    settings : Mapping[str, Any]
        ``run.json``.
    examples : Mapping[str, Example]
        By id, in the order of the suite.
    answers : Mapping[str, Mapping[str, Answered]]
        By method and example; methods in the order of the run.
    timing, offline, served : Sequence
        As they were written.
    """

    settings: Mapping[str, Any]
    examples: Mapping[str, Example]
    answers: Mapping[str, Mapping[str, Answered]]
    timing: Sequence[Timed]
    offline: Sequence[OfflineCost]
    served: Sequence[Served]

    @classmethod
    def of(cls, settings: Mapping[str, Any], rows: Callable[[str], Iterable[Any]]) -> Run:
        """From ``rows(kind)``.

        Raises
        ------
        InputError
            There is an answer to an example, or a page of a route, that the run does not have.
        """
        examples = {row.id: row for row in rows("examples")}
        answers: dict[str, dict[str, Answered]] = {name: {} for name in settings["methods"]}
        timing = list(rows("timing"))
        for row in (*rows("answers"), *timing):
            if row.example not in examples:
                raise InputError(f"The run has an answer to the example {row.example!r} but not the example.")
            if isinstance(row, Answered):
                answers.setdefault(row.method, {})[row.example] = row
                pages = len(examples[row.example].pages)
                if not all(0 <= routed["place"] < pages for routed in row.route):
                    raise InputError(f"The run has a route of {row.method!r} for {row.example!r} with a page too many.")
        held = {name: found for name, found in answers.items() if found}
        return cls(settings, examples, held, timing, list(rows("offline")), list(rows("served")))

    @classmethod
    def load(cls, folder: RunFolder) -> Run:
        """From its folder."""
        return cls.of(folder.settings, folder.rows)

    @cached_property
    def methods(self) -> list[MethodName]:
        """Those with an answer or a time, in the order of the run."""
        timed = {row.method: None for row in self.timing}
        listed = [name for name in self.settings["methods"] if name in self.answers or name in timed]
        return [MethodName.read(name) for name in dict.fromkeys([*listed, *self.answers, *timed])]

    @cached_property
    def reference(self) -> str | None:
        """What differences and ratios are against."""
        return reference(each.name for each in self.methods)

    @cached_property
    def times(self) -> dict[str, dict[str, float]]:
        """Time to first token by method and example, ms."""
        found: dict[str, dict[str, list[float]]] = {}
        for row in self.timing:
            found.setdefault(row.method, {}).setdefault(row.example, []).append(row.ttft)
        return {method: {name: fmean(each) for name, each in held.items()} for method, held in found.items()}

    def scores(self, method: str, field: str = "f1") -> dict[str, float]:
        """A method's ``f1`` or ``em`` by example."""
        return {name: getattr(row, field) for name, row in self.answers.get(method, {}).items()}

    def split(self, method: str, of: Callable[[Example], Any]) -> dict[Any, Estimate]:
        """A method's F1 by a property of examples, such as their number of pages."""
        parts: dict[Any, dict[str, float]] = {}
        for name, score in self.scores(method).items():
            parts.setdefault(of(self.examples[name]), {})[name] = score
        return {value: found for value, held in parts.items() if (found := self.estimate(held)) is not None}

    def estimate(self, values: Mapping[str, float]) -> Estimate | None:
        """The mean of what was measured by example."""
        if not values:
            return None
        groups = [self.examples[name].group for name in values]
        if len(set(groups)) < 2:
            return Estimate(fmean(values.values()), None, None)
        return Estimate(*bootstrap(list(values.values()), groups))

    def difference(self, values: Mapping[str, float], other: Mapping[str, float]) -> Estimate | None:
        """By how much ``values`` is above ``other``, on the examples of both."""
        names = [name for name in values if name in other]
        if not names:
            return None
        first, second = [values[name] for name in names], [other[name] for name in names]
        groups = [self.examples[name].group for name in names]
        if len(set(groups)) < 2:
            return Estimate(fmean(first) - fmean(second), None, None)
        return Estimate(*paired(first, second, groups))

    def groups(self, names: Iterable[str]) -> int:
        """How many groups these examples are of."""
        return len({self.examples[name].group for name in names})


def method_figures(run: Run, against: str | None = None) -> list[MethodFigures]:
    """The main table.

    Parameters
    ----------
    against : str, optional
        The method that differences and ratios are against; by default full prefill at the highest resolution.
    """
    base = against or run.reference
    return [_figures(run, each.name, base) for each in run.methods]


def _figures(run: Run, method: str, base: str | None) -> MethodFigures:
    rows = list(run.answers.get(method, {}).values())
    good = [row for row in rows if not row.error]
    times = run.times.get(method, {})
    offline = [row for row in run.offline if row.method == method]
    pages = sum(row.pages for row in offline)
    other, other_times = ({}, {}) if base in (None, method) else (run.scores(str(base)), run.times.get(str(base), {}))
    ratios = [time / other_times[name] for name, time in times.items() if other_times.get(name)]
    return MethodFigures(
        method=method,
        n=len(rows),
        errors=len(rows) - len(good),
        f1=run.estimate(run.scores(method)),
        em=run.estimate(run.scores(method, "em")),
        difference=run.difference(run.scores(method), other),
        ttft=run.estimate(times),
        ttft_median=median(times.values()) if times else None,
        ratio=median(ratios) if ratios else None,
        tokens=fmean(row.context_tokens for row in good) if good else None,
        kv_bytes=fmean(row.kv_bytes for row in good) if good else None,
        offline_seconds=sum(row.seconds for row in offline) / pages if pages else None,
        offline_bytes=sum(row.nbytes for row in offline) / pages if pages else None,
    )


def served_figures(run: Run) -> list[Percentiles]:
    """For each method, in the order of the run, and number of callers, from few to many."""
    cells: dict[tuple[str, int], list[Served]] = {}
    for row in run.served:
        cells.setdefault((row.method, row.callers), []).append(row)
    order = {name: place for place, name in enumerate(run.settings["methods"])}
    found = []
    for method, callers in sorted(cells, key=lambda cell: (order.get(cell[0], len(order)), cell)):
        rows = cells[method, callers]
        ttft, total = ([getattr(row, name) for row in rows] for name in ("ttft", "total"))
        found.append(Percentiles(method, callers, len(rows), _parts(ttft), _parts(total)))
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a share of the values lies, between two of them where it falls there."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _parts(values: Sequence[float]) -> tuple[float | None, ...]:
    parts = ((0.5, 1), (0.95, 20), (0.99, 100), (1.0, 1))
    return tuple(percentile(values, share) if len(values) >= least else None for share, least in parts)
