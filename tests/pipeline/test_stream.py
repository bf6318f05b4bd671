"""Streams: pieces add up, errors arrive, and a consumer that goes away stops the work."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from qvpic_rag import QVPIC
from qvpic_rag.errors import GenerationError, InputError
from qvpic_rag.pipeline.stream import AnswerStream
from qvpic_rag.records import Answer, Route, Timing, Usage

BADGE = "What is the badge code of Omar Reyes?"


def _workers() -> int:
    return sum(thread.name == "qvpic-answer" for thread in threading.enumerate())


def _endless(started: threading.Event) -> Callable[[Callable[[str], None], threading.Event], Answer]:
    def work(on_piece: Callable[[str], None], cancelled: threading.Event) -> Answer:
        on_piece("first")
        started.set()
        assert cancelled.wait(30)
        return Answer("first", "cancelled", Route(), Timing(), Usage(0, 0, 1, 0))

    return work


def test_pieces_add_up_to_the_answer(rag: QVPIC) -> None:
    stream = rag.stream(BADGE, max_new_tokens=32)
    with pytest.raises(InputError, match="not finished"):
        _ = stream.answer
    pieces = list(stream)
    assert len(pieces) > 1
    assert "".join(pieces) == stream.answer.text == "TB-209"
    assert list(stream) == []


def test_an_error_in_the_worker_reaches_the_consumer(rag: QVPIC, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("device lost")

    monkeypatch.setattr(rag.engine.model.model, "forward", fail)
    with pytest.raises(GenerationError, match="device lost"):
        list(rag.stream(BADGE))
    assert _workers() == 0


def test_wrong_options_are_raised_at_once(rag: QVPIC) -> None:
    with pytest.raises(InputError):
        rag.stream(BADGE, max_new_tokens=0)


def test_closing_stops_the_worker() -> None:
    started = threading.Event()
    with AnswerStream(_endless(started)) as stream:
        assert next(stream) == "first"
    assert _workers() == 0


def test_letting_go_stops_the_worker() -> None:
    started = threading.Event()
    stream = AnswerStream(_endless(started))
    assert started.wait(30)
    worker = stream._worker
    del stream
    worker.join(30)
    assert not worker.is_alive()


def test_a_real_answer_ends_at_the_next_token(rag: QVPIC) -> None:
    stream = rag.stream(BADGE, max_new_tokens=32)
    next(stream)
    stream.close()
    rest = list(stream)
    assert stream.answer.finish_reason in ("cancelled", "stop")
    assert len(rest) < 32


def test_cancelling_an_async_consumer_stops_the_worker(rag: QVPIC) -> None:
    async def impatient() -> None:
        async for _ in rag.astream(BADGE, max_new_tokens=32):
            break

    asyncio.run(impatient())
    deadline = time.monotonic() + 30
    while _workers() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _workers() == 0
