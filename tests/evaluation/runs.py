"""Runs written by hand: every number in them is chosen by the test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qvpic_rag.config import RenderProfile
from qvpic_rag.evaluation.records import Answered, Example, OfflineCost, Served, Timed
from qvpic_rag.evaluation.rundir import RunFolder
from qvpic_rag.records import Page


def settings(methods: Iterable[str], **differing: Any) -> dict[str, Any]:
    """What ``run.json`` gets; names with dots, such as ``model__dtype``, are written with two underscores."""
    values: dict[str, Any] = {
        "suite": {"name": "facts", "worlds": 3, "prompts": "bare"},
        "model": {
            "name": "demo", "fingerprint": "f00d", "dtype": "float32", "device": "cpu", "max_context": 4096,
            "profile": RenderProfile.load("demo").to_dict(),
        },
        "methods": list(methods),
        "embedder": "demo",
        "preset": None,
        "seed": 0,
        "environment": {"python": "3.11", "torch": "2.13", "cores": 2, "accelerator": None},
    }  # fmt: skip
    for name, value in differing.items():
        first, _, second = name.partition("__")
        if second:
            values[first] = {**values[first], second: value}
        else:
            values[first] = value
    return values


def page(number: int = 0, text: str = "The room of Omar Reyes is B214.", source: str = "note.txt") -> Page:
    return Page((text,), text, source, number)


def example(name: str = "a", group: str = "g", pages: int = 1, **differing: Any) -> Example:
    values: dict[str, Any] = {
        "id": name, "group": group, "kind": "fact", "pages": tuple(page(number) for number in range(pages)),
        "before": "Read.", "after": "Which room?", "query": "Which room?", "answers": ("B214",), "evidence": (0,),
        "scoring": "exact", "max_new_tokens": 8,
    }  # fmt: skip
    return Example(**{**values, **differing})


def answered(name: str, method: str, f1: float = 1.0, **differing: Any) -> Answered:
    values: dict[str, Any] = {
        "example": name, "method": method, "text": "B214", "f1": f1, "em": float(f1 == 1), "finish_reason": "stop",
        "context_tokens": 100, "query_tokens": 10, "output_tokens": 3, "kv_bytes": 2000, "ttft": 5.0, "total": 9.0,
    }  # fmt: skip
    return Answered(**{**values, **differing})


def timed(name: str, method: str, times: Sequence[float]) -> list[Timed]:
    return [Timed(name, method, repeat, time, {"prefill": time}, 100, 2000) for repeat, time in enumerate(times)]


def routed(place: int, *, promoted: bool, rank: int, dpi: int | None = 72) -> dict[str, Any]:
    return {"dpi": dpi, "score": 0.5, "rank": rank, "promoted": promoted, "tokens": 40, "place": place}


_KINDS = {Example: "examples", Answered: "answers", Timed: "timing", OfflineCost: "offline", Served: "served"}


def write(path: Path, methods: Iterable[str], rows: Iterable[Any], **differing: Any) -> Path:
    """A run's folder with these records."""
    with RunFolder.create(path, settings(methods, **differing)) as folder:
        for row in rows:
            folder.append(_KINDS[type(row)], row)
    return path


def scored(path: Path, scores: Mapping[str, Sequence[float]], times: Mapping[str, float] | None = None) -> Path:
    """A run whose examples are each a group of their own: F1 by method, and a time for every example of a method."""
    count = len(next(iter(scores.values())))
    rows: list[Any] = [example(f"e{place}", f"g{place}", pages=1 + place % 2) for place in range(count)]
    for method, values in scores.items():
        rows += [answered(f"e{place}", method, value) for place, value in enumerate(values)]
        if times is not None and method in times:
            for place in range(count):
                rows += timed(f"e{place}", method, [times[method]] * 2)
    return write(path, scores, rows)
