"""What a run writes: examples, answers and measurements, each one JSON object a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from qvpic_rag.records import Page

__all__ = ["Answered", "Example", "OfflineCost", "Served", "Timed"]


@dataclass(frozen=True)
class Example:
    """A question, the pages it is asked about, and what is right.

    Attributes
    ----------
    id : str
        Unique in its suite and the same in every run with the same settings.
    group : str
        Examples of one group share pages, so intervals resample groups.
    kind : str
        What tables are split by: a LongBench task, a kind of fact, or "".
    pages : tuple[Page, ...]
        In request order.
    before, after : str
        What the user turn says before and after the pages.
    query : str
        The question alone; pages are scored against it.
    answers : tuple[str, ...]
        Each of them is right.
    evidence : tuple[int, ...] | None
        Places in ``pages`` that the answer follows from; None where that is not known, empty where none states it.
    scoring : str
        One of :data:`~qvpic_rag.evaluation.scoring.SCORINGS`: how an answer is cleaned before it is scored.
    max_new_tokens : int
        Longest answer, tokens.
    tags : tuple[str, ...]
        What an audit splits by: ``number``, ``name``, ``negation``, ``two-hop`` ...
    cut : bool
        Whether the context was shortened in the middle to fit.
    missed : bool
        Whether there is evidence that is not among ``pages``, because retrieval missed it.
    evidence_all : bool
        Whether the answer needs every place of ``evidence``; else any one will do, where documents are known and not
        which of their pages.
    """

    id: str
    group: str
    kind: str
    pages: tuple[Page, ...]
    before: str
    after: str
    query: str
    answers: tuple[str, ...]
    evidence: tuple[int, ...] | None
    scoring: str
    max_new_tokens: int
    tags: tuple[str, ...] = ()
    cut: bool = False
    missed: bool = False
    evidence_all: bool = True

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able object."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Example:
        """Inverse of :meth:`to_dict`."""
        known = {field.name: values[field.name] for field in fields(cls)}
        known["pages"] = tuple(Page(tuple(p["lines"]), p["text"], p["source"], p["number"]) for p in values["pages"])
        for name in ("answers", "tags"):
            known[name] = tuple(values[name])
        known["evidence"] = None if values["evidence"] is None else tuple(values["evidence"])
        return cls(**known)


@dataclass(frozen=True)
class Answered:
    """One method's answer to one example.

    ``route`` has an object per page in request order: ``dpi`` (None for text), ``score``, ``rank``, ``promoted``,
    ``tokens``, ``place`` (index in the example's pages); it is empty for methods that do not choose. ``error`` is "" or
    why there is no answer (then ``f1`` and ``em`` are 0). Times are milliseconds.
    """

    example: str
    method: str
    text: str
    f1: float
    em: float
    finish_reason: str
    context_tokens: int
    query_tokens: int
    output_tokens: int
    kv_bytes: int
    ttft: float
    total: float
    route: tuple[Mapping[str, Any], ...] = ()
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able object."""
        return asdict(self)


@dataclass(frozen=True)
class Timed:
    """One repetition of one request for its first token; ``stages`` as in :class:`~qvpic_rag.records.Timing`, ms."""

    example: str
    method: str
    repeat: int
    ttft: float
    stages: Mapping[str, float]
    context_tokens: int
    kv_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able object."""
        return asdict(self)


@dataclass(frozen=True)
class OfflineCost:
    """What a method did ahead of a group's questions; see :class:`~qvpic_rag.baselines.base.Offline`."""

    group: str
    method: str
    pages: int
    seconds: float
    nbytes: int

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able object."""
        return asdict(self)


@dataclass(frozen=True)
class Served:
    """One request of several callers at once: ``wait`` for its turn, ``ttft`` and ``total`` with it; milliseconds."""

    method: str
    callers: int
    example: str
    wait: float
    ttft: float
    total: float

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able object."""
        return asdict(self)
