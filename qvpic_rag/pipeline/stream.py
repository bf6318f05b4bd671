"""An answer while it is being written: a worker thread generates, the consumer iterates."""

from __future__ import annotations

import asyncio
import atexit
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from weakref import WeakKeyDictionary

from qvpic_rag.errors import InputError
from qvpic_rag.records import Answer

__all__ = ["AnswerStream"]

Work = Callable[[Callable[[str], None], threading.Event], Answer]

_running: WeakKeyDictionary[threading.Thread, threading.Event] = WeakKeyDictionary()


@atexit.register
def _stop_workers() -> None:
    """A thread inside torch when the interpreter goes away aborts the process, so workers end first."""
    workers = list(_running.items())
    for _, cancelled in workers:
        cancelled.set()
    for worker, _ in workers:
        worker.join()


class _Items:
    """What a worker has made and nobody took yet; a thread or an event loop can wait for it."""

    def __init__(self) -> None:
        self._made: queue.SimpleQueue[str | Answer | BaseException] = queue.SimpleQueue()
        self._wakers: list[Callable[[], object]] = []
        self._ended = False

    def put(self, item: str | Answer | BaseException) -> None:
        self._made.put(item)
        self._ended = not isinstance(item, str)
        for wake in list(self._wakers):
            with suppress(RuntimeError):  # the loop that waited is closed
                wake()

    def take(self) -> str | Answer | BaseException:
        """The next one, waited for."""
        return self._made.get()

    async def atake(self) -> str | Answer | BaseException:
        """The next one, waited for without a thread."""
        with self._waking(asyncio.get_running_loop()) as made:
            while True:
                made.clear()
                with suppress(queue.Empty):
                    return self._made.get_nowait()
                await made.wait()

    async def aended(self) -> None:
        """Wait for the last one, without taking it."""
        with self._waking(asyncio.get_running_loop()) as made:
            while not self._ended:
                await made.wait()
                made.clear()

    @contextmanager
    def _waking(self, loop: asyncio.AbstractEventLoop) -> Iterator[asyncio.Event]:
        made = asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(made.set)

        self._wakers.append(wake)
        try:
            yield made
        finally:
            self._wakers.remove(wake)


class AnswerStream(Iterator[str], AsyncIterator[str]):
    """Iterates over pieces of answer text, with ``for`` or ``async for``; then :attr:`answer` holds the whole record.

    An error in the worker is raised here, never lost. Closing the stream, or letting go of it, ends generation at the
    next token.
    """

    def __init__(self, work: Work) -> None:
        self._items = _Items()
        self._cancelled = threading.Event()
        self._result: Answer | BaseException | None = None
        # The worker holds no reference to the stream, so a stream nobody holds is collected and cancels the worker.
        self._worker = threading.Thread(
            target=_run, args=(work, self._items, self._cancelled), name="qvpic-answer", daemon=True
        )
        _running[self._worker] = self._cancelled
        self._worker.start()

    def __next__(self) -> str:
        if self._result is None:
            item = self._items.take()
            if isinstance(item, str):
                return item
            self._finish(item)
        raise StopIteration

    async def __anext__(self) -> str:
        if self._result is None:
            item = await self._items.atake()
            if isinstance(item, str):
                return item
            self._finish(item)
        raise StopAsyncIteration

    def _finish(self, item: Answer | BaseException) -> None:
        self._items.put(item)  # for whoever reads this stream too
        self._result = item
        self._worker.join()  # it has nothing left to do
        if isinstance(item, BaseException):
            raise item

    @property
    def answer(self) -> Answer:
        """The finished answer.

        Raises
        ------
        InputError
            The stream has not been read to its end.
        """
        if not isinstance(self._result, Answer):
            raise InputError("The answer is not finished; read the stream to its end first.")
        return self._result

    def close(self) -> None:
        """Stop generating and wait for the worker."""
        self._cancelled.set()
        self._worker.join()

    async def aclose(self) -> None:
        """Stop generating and wait for the worker without blocking the event loop.

        Cancelled while it waits, it has stopped the worker all the same.
        """
        self._cancelled.set()
        await self._items.aended()
        self._worker.join()

    def __enter__(self) -> AnswerStream:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    async def __aenter__(self) -> AnswerStream:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._cancelled.set()


def _run(work: Work, items: _Items, cancelled: threading.Event) -> None:
    try:
        items.put(work(items.put, cancelled))
    except BaseException as error:
        items.put(error)
