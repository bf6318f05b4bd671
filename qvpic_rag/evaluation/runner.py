"""A run: every example through every method, some of them timed, all of it written down as it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from qvpic_rag.baselines.base import Method
from qvpic_rag.errors import ConfigError
from qvpic_rag.evaluation.asking import FAILURES, request_of
from qvpic_rag.evaluation.records import Answered, Example, OfflineCost, Timed
from qvpic_rag.evaluation.rundir import RunFolder
from qvpic_rag.evaluation.scoring import score
from qvpic_rag.evaluation.serving import serve
from qvpic_rag.models import LanguageModel
from qvpic_rag.records import Answer

__all__ = ["Plan", "run"]


@dataclass(frozen=True)
class Plan:
    """What is measured besides answers.

    Attributes
    ----------
    timed : int
        Examples whose time to first token is measured, spread over the suite; 0: none.
    repeats : int
        Repetitions of each, all methods taking turns (the paper: the mean of three).
    served : int
        Requests for each number of callers; 0: none.
    callers : tuple[int, ...]
        How many ask at once.
    """

    timed: int = 8
    repeats: int = 3
    served: int = 20
    callers: tuple[int, ...] = (1, 4, 16)

    def __post_init__(self) -> None:
        for name in ("timed", "served"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be at least 0, not {getattr(self, name)}.")
        if self.repeats < 1 or not self.callers or min(self.callers) < 1:
            raise ConfigError(f"repeats and callers must be at least 1, not {self.repeats} and {self.callers}.")


def run(
    folder: RunFolder,
    model: LanguageModel,
    methods: Sequence[Method],
    examples: Sequence[Example],
    plan: Plan,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> None:
    """Measure what ``folder`` does not hold yet.

    Groups are taken one after the other: their pages are prepared by each method, their examples answered, the timed
    ones among them timed, and the pages let go.
    """
    if not examples:
        raise ConfigError("The suite has no examples; check its options.")
    _Run(folder, model, methods, examples, plan, progress).all()


class _Run:
    def __init__(
        self,
        folder: RunFolder,
        model: LanguageModel,
        methods: Sequence[Method],
        examples: Sequence[Example],
        plan: Plan,
        progress: Callable[[int, int, str], None],
    ) -> None:
        self.folder, self.model, self.methods, self.examples, self.plan = folder, model, methods, examples, plan
        self.progress = progress
        self.done = {kind: folder.done(kind) for kind in ("examples", "answers", "timing", "offline", "served")}
        answers = (row for row in folder.rows("answers") if isinstance(row, Answered))
        self.failed = {(row.example, row.method) for row in answers if row.error}
        count = min(plan.timed, len(examples))
        self.timed = {examples[place * len(examples) // count].id for place in range(count)}
        self.warm: set[tuple[str, str]] = set()  # answered in this process
        self.total = len(examples) * len(methods)
        self.finished = 0

    def all(self) -> None:
        held = {row.id: row for row in self.folder.rows("examples") if isinstance(row, Example)}
        for example in self.examples:
            if example.id not in held:
                self.folder.append("examples", example)
            elif held[example.id] != example:
                raise ConfigError(
                    f"Example {example.id} is not what {self.folder.path} holds: documents, fonts or the embedder have "
                    "changed since; use another --out."
                )
        for group, members in groupby(self.examples, key=lambda example: example.group):
            self._group(group, list(members))
        chosen = self.examples[: self.plan.served]
        for method in self.methods if chosen else ():
            whole = [example for example in chosen if (example.id, method.name) not in self.failed]
            tell = partial(self._tell_callers, method.name)
            serve(self.folder, self.model, method, whole, self.plan.callers, tell)

    def _tell_callers(self, method: str, callers: int) -> None:
        self.progress(self.finished, self.total, f"{method}, {callers} callers")

    def _group(self, group: str, members: list[Example]) -> None:
        todo = [method for method in self.methods if self._missing(method, members)]
        for method in todo:
            self._prepare(method, group, members)
        for example in members:
            for method in self.methods:
                key = (example.id, method.name)
                if method in todo and key not in self.done["answers"] and key not in self.failed:
                    self._answer(method, example)
                self.finished += 1
                self.progress(self.finished, self.total, example.id)
            self._time([method for method in todo if self._untimed(method, example)], example)
        for method in todo:
            method.forget()

    def _missing(self, method: Method, members: list[Example]) -> bool:
        return any(
            (example.id, method.name) not in self.done["answers"] or self._untimed(method, example)
            for example in members
        )

    def _untimed(self, method: Method, example: Example) -> bool:
        key = (example.id, method.name)
        wanted = example.id in self.timed and key not in self.failed
        return wanted and any((*key, repeat) not in self.done["timing"] for repeat in range(self.plan.repeats))

    def _prepare(self, method: Method, group: str, members: list[Example]) -> None:
        pages, seconds, nbytes = 0, 0.0, 0
        for example in members:
            if (example.id, method.name) in self.failed:
                continue
            try:
                cost = method.prepare(example.pages, example.before)
            except FAILURES as error:
                self._failure(method, example, error)
            else:
                pages, seconds, nbytes = pages + cost.pages, seconds + cost.seconds, nbytes + cost.nbytes
        if pages and (group, method.name) not in self.done["offline"]:
            self.folder.append("offline", OfflineCost(group, method.name, pages, seconds, nbytes))

    def _answer(self, method: Method, example: Example) -> None:
        try:
            answer = method.answer(request_of(example))
        except FAILURES as error:
            self._failure(method, example, error)
        else:
            self.warm.add((example.id, method.name))
            self.folder.append("answers", _answered(method, example, answer))

    def _failure(self, method: Method, example: Example, error: Exception) -> None:
        self.failed.add((example.id, method.name))
        if (example.id, method.name) not in self.done["answers"]:
            self.folder.append(
                "answers", Answered(example.id, method.name, "", 0.0, 0.0, "", 0, 0, 0, 0, 0.0, 0.0, (), str(error))
            )

    def _time(self, methods: Sequence[Method], example: Example) -> None:
        """Methods take turns, in another order each round, so that what disturbs the machine disturbs all of them."""
        request = request_of(example)
        request = replace(request, generation=replace(request.generation, max_new_tokens=1))
        for method in methods:
            if (example.id, method.name) not in self.warm:  # answered before the run was taken up again
                method.answer(request)
        for repeat in range(self.plan.repeats):
            for method in _rotated(methods, repeat):
                if (example.id, method.name, repeat) in self.done["timing"]:
                    continue
                answer = method.answer(request)
                timing = answer.timing
                stages = {name: getattr(timing, name) for name in ("embed", "route", "assemble", "prefill")}
                self.folder.append(
                    "timing",
                    Timed(
                        example.id, method.name, repeat, timing.ttft, stages, answer.usage.context_tokens,
                        answer.usage.kv_bytes,
                    ),
                )  # fmt: skip


def _rotated(methods: Sequence[Method], by: int) -> Iterator[Method]:
    for place in range(len(methods)):
        yield methods[(place + by) % len(methods)]


def _answered(method: Method, example: Example, answer: Answer) -> Answered:
    found = score(answer.text, example.answers, example.scoring)
    places: dict[str, list[int]] = {}  # pages may look alike; routes have them in the same order
    for place, page in enumerate(example.pages):
        places.setdefault(page.digest, []).append(place)
    return Answered(
        example=example.id,
        method=method.name,
        text=answer.text,
        f1=found.f1,
        em=found.em,
        finish_reason=answer.finish_reason,
        context_tokens=answer.usage.context_tokens,
        query_tokens=answer.usage.query_tokens,
        output_tokens=answer.usage.output_tokens,
        kv_bytes=answer.usage.kv_bytes,
        ttft=answer.timing.ttft,
        total=answer.timing.total,
        route=tuple(
            {
                "place": places[page.page_id].pop(0),
                "dpi": page.dpi,
                "score": page.score,
                "rank": page.rank,
                "promoted": page.promoted,
                "tokens": page.tokens,
            }
            for page in answer.route.pages
        ),
    )
