"""An answer while it is being written: a worker thread generates, the consumer iterates."""

from __future__ import annotations

import atexit
import queue
import threading
from collections.abc import Callable, Iterator
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


class AnswerStream(Iterator[str]):
    """Iterates over pieces of answer text; afterwards :attr:`answer` holds the whole record.

    An error in the worker is raised here, never lost. Closing the stream, or letting go of it, ends generation at the
    next token.
    """

    def __init__(self, work: Work) -> None:
        self._items: queue.SimpleQueue[str | Answer | BaseException] = queue.SimpleQueue()
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
            item = self._items.get()
            if isinstance(item, str):
                return item
            self._items.put(item)  # for another thread that reads this stream too
            self._result = item
            self._worker.join()
            if isinstance(item, BaseException):
                raise item
        raise StopIteration

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

    def __enter__(self) -> AnswerStream:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._cancelled.set()


def _run(work: Work, items: queue.SimpleQueue[str | Answer | BaseException], cancelled: threading.Event) -> None:
    try:
        items.put(work(items.put, cancelled))
    except BaseException as error:
        items.put(error)
