"""Streams: pieces add up, errors arrive, and a consumer that goes away stops the work."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

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
        async for _ in rag.stream(BADGE, max_new_tokens=32):
            break

    asyncio.run(impatient())
    deadline = time.monotonic() + 30
    while _workers() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _workers() == 0


def test_waiting_takes_no_threads() -> None:
    """Many consumers wait in an event loop whose pool of threads is taken up by something else."""
    go = threading.Event()

    def work(on_piece: Callable[[str], None], cancelled: threading.Event) -> Answer:
        assert go.wait(30)
        on_piece("a")
        on_piece("b")
        return Answer("ab", "stop", Route(), Timing(), Usage(0, 0, 2, 0))

    async def read(stream: AnswerStream) -> str:
        return "".join([piece async for piece in stream]) + stream.answer.text

    async def everybody() -> list[str]:
        loop, release = asyncio.get_running_loop(), threading.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))
        blocked = loop.run_in_executor(None, release.wait, 30)
        readers = [asyncio.ensure_future(read(AnswerStream(work))) for _ in range(50)]
        await asyncio.sleep(0.05)
        assert not any(reader.done() for reader in readers)
        go.set()
        found = await asyncio.gather(*readers)
        release.set()
        assert await blocked
        return found

    assert asyncio.run(everybody()) == ["abab"] * 50


def test_a_cancelled_task_stops_the_worker_at_once() -> None:
    started = threading.Event()

    async def impatient() -> None:
        async with AnswerStream(_endless(started)) as stream:
            async for _ in stream:
                pass

    async def give_up() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(impatient(), 0.2)

    asyncio.run(give_up())
    assert started.is_set()
    assert _workers() == 0


def test_an_error_reaches_an_async_consumer_once() -> None:
    def work(on_piece: Callable[[str], None], cancelled: threading.Event) -> Answer:
        on_piece("a")
        raise GenerationError("device lost")

    async def read() -> None:
        stream = AnswerStream(work)
        assert await anext(stream) == "a"
        with pytest.raises(GenerationError, match="device lost"):
            await anext(stream)
        assert [piece async for piece in stream] == []
        await stream.aclose()
        with pytest.raises(InputError, match="not finished"):
            _ = stream.answer

    asyncio.run(read())


def test_a_loop_that_is_gone_does_not_hurt_the_worker() -> None:
    started = threading.Event()
    stream = AnswerStream(_endless(started))

    async def look() -> None:
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(look())
    stream.close()
    assert list(stream) in (["first"], [])
    assert stream.answer.finish_reason == "cancelled"
