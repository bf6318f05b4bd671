"""The queue in front of a model: in order, bounded, and free again after whatever happens."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from qvpic_rag import QVPIC
from qvpic_rag.errors import ConfigError, GenerationError, QueueFullError
from qvpic_rag.pipeline import request
from qvpic_rag.pipeline.turns import Turns, turns_of

BADGE = "What is the badge code of Omar Reyes?"


def started(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not what():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_turns_come_in_the_order_of_asking() -> None:
    turns, order = Turns(), []

    def ask(number: int) -> None:
        with turns.turn(100) as mine:
            assert mine
            order.append(number)

    with turns.turn(100):
        threads = []
        for number in range(20):
            threads.append(started(lambda n=number: ask(n)))  # type: ignore[misc]
            until(lambda n=number: len(turns._queue) == n + 2)  # type: ignore[misc]
    for thread in threads:
        thread.join()
    assert order == list(range(20))
    assert not turns._queue


def test_one_at_a_time() -> None:
    turns, inside, most = Turns(), 0, 0
    lock = threading.Lock()

    def ask() -> None:
        nonlocal inside, most
        with turns.turn(100):
            with lock:
                inside += 1
                most = max(most, inside)
            time.sleep(0.001)
            with lock:
                inside -= 1

    threads = [started(ask) for _ in range(16)]
    for thread in threads:
        thread.join()
    assert most == 1


@pytest.mark.parametrize("waiting", [0, 1, 3])
def test_a_full_queue_says_so(waiting: int) -> None:
    turns, leave = Turns(), threading.Event()

    def ask() -> None:
        with turns.turn(waiting):
            leave.wait()

    threads = []
    for number in range(waiting + 1):
        threads.append(started(ask))
        until(lambda n=number: len(turns._queue) == n + 1)  # type: ignore[misc]
    with pytest.raises(QueueFullError, match=f"and {waiting} wait.*max_waiting"), turns.turn(waiting):
        pass
    leave.set()
    for thread in threads:
        thread.join()
    with turns.turn(0) as mine:
        assert mine


def test_who_gives_up_loses_the_place_and_nobody_else_does() -> None:
    turns, cancelled, found = Turns(), threading.Event(), []

    def give_up() -> None:
        with turns.turn(9, cancelled) as mine:
            found.append(mine)

    with turns.turn(9):
        thread = started(give_up)
        until(lambda: len(turns._queue) == 2)
        cancelled.set()
        thread.join()
        assert found == [False]
        assert len(turns._queue) == 1


def test_a_failure_ends_the_turn() -> None:
    turns = Turns()
    with pytest.raises(RuntimeError), turns.turn(0):
        raise RuntimeError
    with turns.turn(0) as mine:
        assert mine


@contextmanager
def held(rag: QVPIC) -> Iterator[Turns]:
    """The model is busy with something else."""
    turns = turns_of(rag.engine.model)
    with turns.turn(0):
        yield turns


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # is multi-threaded, says Python 3.12
@pytest.mark.parametrize("busy", [False, True])
def test_a_child_never_waits_for_its_parents_questions(rag: QVPIC, busy: bool) -> None:
    with held(rag) if busy else nullcontext():
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # ends a child that waits
            try:
                with turns_of(rag.engine.model).turn(0):
                    said = ""
            except GenerationError as error:
                said = str(error)
            os._exit(0 if ("forked" in said) == busy else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_question_waits_and_says_how_long(rag: QVPIC) -> None:
    answers: list[Any] = []
    with held(rag) as turns:
        thread = started(lambda: answers.append(rag.ask(BADGE, max_new_tokens=2)))
        until(lambda: len(turns._queue) == 2)
        time.sleep(0.02)
    thread.join()
    timing = answers[0].timing
    assert timing.wait >= 10
    assert timing.to_dict()["wait"] == timing.wait
    stages = timing.embed + timing.search + timing.route + timing.load + timing.assemble + timing.prefill
    assert stages == pytest.approx(timing.ttft)  # without the wait
    assert "wait" not in rag.ask(BADGE, max_new_tokens=2).timing.to_dict()


def test_a_stream_that_is_closed_while_it_waits(rag: QVPIC) -> None:
    with held(rag) as turns:
        stream = rag.stream(BADGE)
        until(lambda: len(turns._queue) == 2)
        stream.close()
        assert len(turns._queue) == 1
        assert list(stream) == []
        assert stream.answer.finish_reason == "cancelled"


def test_max_waiting_is_an_option_of_the_engine(open_rag: Callable[..., QVPIC]) -> None:
    rag = open_rag(max_waiting=0)
    with held(rag):
        with pytest.raises(QueueFullError):
            rag.ask(BADGE)
        with pytest.raises(QueueFullError):
            list(rag.stream(BADGE))
    with pytest.raises(ConfigError, match="max_waiting"):
        open_rag(max_waiting=-1)


def test_a_failed_generation_frees_the_model(rag: QVPIC, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise GenerationError("The model failed.")

    monkeypatch.setattr(request, "generate", fail)
    with pytest.raises(GenerationError):
        rag.ask(BADGE)
    with pytest.raises(GenerationError):
        list(rag.stream(BADGE))
    monkeypatch.undo()
    assert rag.ask(BADGE, max_new_tokens=16).text
