"""Latency with several callers at once, each asking its next question when the last one is answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from qvpic_rag.baselines.base import Method
from qvpic_rag.evaluation.asking import request_of
from qvpic_rag.evaluation.records import Example, Served
from qvpic_rag.evaluation.rundir import RunFolder
from qvpic_rag.models import LanguageModel
from qvpic_rag.pipeline.turns import turns_of

__all__ = ["serve"]


def serve(
    folder: RunFolder,
    model: LanguageModel,
    method: Method,
    examples: Sequence[Example],
    callers: Sequence[int],
    tell: Callable[[int], None] = lambda callers: None,
) -> None:
    """Ask one method all ``examples`` with each number of callers; what was measured before is not measured again.

    The model answers one question at a time, in the order in which they came, as the engine has it.
    """
    done = folder.done("served")
    missing = [count for count in callers if any((method.name, count, example.id) not in done for example in examples)]
    if not missing:
        return
    for example in examples:
        method.prepare(example.pages, example.before)

    def ask(example: Example) -> tuple[float, float, float]:
        came = time.perf_counter()
        with turns_of(model).turn(len(examples)):
            wait = (time.perf_counter() - came) * 1000
            timing = method.answer(request_of(example)).timing
        return wait, wait + timing.ttft, wait + timing.total

    for count in missing:
        tell(count)
        with ThreadPoolExecutor(count) as pool:
            found = list(pool.map(ask, examples))
        # All were asked, though some may be written down already: the missing ones alone would have a shorter queue.
        for example, (wait, ttft, total) in zip(examples, found, strict=True):
            if (method.name, count, example.id) not in done:
                folder.append("served", Served(method.name, count, example.id, wait, ttft, total))
    method.forget()
