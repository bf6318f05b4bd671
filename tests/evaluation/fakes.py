"""Methods for tests: they write down what they are asked, fail where they are told to, and stop at a chosen call."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from qvpic_rag.baselines.base import Method, Offline, Request
from qvpic_rag.evaluation.records import Example
from qvpic_rag.models import LanguageModel
from qvpic_rag.records import Answer, Page, Route, RoutedPage, Timing, Usage
from tests.evaluation.runs import example

__all__ = ["Calls", "Fake", "asked", "model"]


@dataclass
class Calls:
    """What methods were asked, in order: ``(what, method, example or page)``. Call ``stop``, and all later, end the
    process."""

    stop: int | None = None
    made: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, what: str, method: str, about: str) -> None:
        if len(self.made) == self.stop:
            raise KeyboardInterrupt
        self.made.append((what, method, about))

    def of(self, what: str) -> list[tuple[str, str]]:
        return [(method, about) for each, method, about in self.made if each == what]


class Fake(Method):
    """``unprepared`` and ``unanswered`` say which examples fail, by id; ``seconds`` is how long an answer takes."""

    def __init__(
        self,
        name: str,
        calls: Calls,
        *,
        unprepared: Mapping[str, Exception] | None = None,
        unanswered: Mapping[str, Exception] | None = None,
        seconds: float = 0.0,
        routes: bool = False,
    ) -> None:
        self.name, self.calls, self.seconds, self.routes = name, calls, seconds, routes
        self.unprepared, self.unanswered = unprepared or {}, unanswered or {}
        self.kept: set[str] = set()

    def prepare(self, pages: Sequence[Page], before: str) -> Offline:
        self.calls.add("prepare", self.name, before)
        if before in self.unprepared:
            raise self.unprepared[before]
        new = {page.digest for page in pages} - self.kept
        self.kept |= new
        return Offline(len(new), 0.5 * len(new), 100 * len(new))

    def forget(self) -> None:
        self.calls.add("forget", self.name, "")
        self.kept.clear()

    def answer(self, request: Request) -> Answer:
        what = "time" if request.generation.max_new_tokens == 1 else "answer"
        self.calls.add(what, self.name, request.before)
        assert {page.digest for page in request.pages} <= self.kept, "not prepared"
        if request.before in self.unanswered:
            raise self.unanswered[request.before]
        time.sleep(self.seconds)
        took = 1000 * self.seconds
        routed = tuple(
            RoutedPage(page.digest, page.source, page.number, 72, 0.5, rank, rank == 0, 9)
            for rank, page in enumerate(request.pages)
        )
        return Answer(
            f"{self.name} on {request.query}",
            "stop",
            Route(routed if self.routes else ()),
            Timing(embed=1.0, route=0.5, assemble=0.25, prefill=2.0, ttft=took / 2, total=took),
            Usage(10, 5, 2, 1000),
        )


class _Model:
    """Something that a queue can stand in front of."""


def model() -> LanguageModel:
    return cast(LanguageModel, _Model())


def asked(groups: Mapping[str, str]) -> list[Example]:
    """Examples of one-letter ids, ``group -> ids``; each says its id before its two pages, one of them its group's."""
    return [
        replace(
            example(each, group, before=each, query=each),
            pages=(Page((group,), group, group, 0), Page((each,), each, group, 1)),
        )
        for group, ids in groups.items()
        for each in ids
    ]
