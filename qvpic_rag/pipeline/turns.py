"""One question at a time for each model: a fair, bounded queue.

Questions that a model answered side by side would each take as long as all of them together, and each hold a context in
memory. So they are answered in the order in which they came, whatever engine of the process they came through.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from qvpic_rag.errors import GenerationError, QueueFullError
from qvpic_rag.models import LanguageModel

__all__ = ["Turns", "turns_of"]

_GLANCE_S = 0.05  # between looks at whether a waiting question was given up


class Turns:
    """The queue of one model; the first in it has the turn."""

    def __init__(self) -> None:
        self._queue: deque[object] = deque()
        self._moved = threading.Condition()
        self._unusable = False

    def forked(self) -> None:
        """Begin anew in a child process; a model that was at work when the process forked is of no use there."""
        self._unusable = bool(self._queue)
        self._queue, self._moved = deque(), threading.Condition()

    @contextmanager
    def turn(self, waiting: int, cancelled: threading.Event | None = None) -> Iterator[bool]:
        """Wait for the turn and hold it.

        Parameters
        ----------
        waiting : int
            How many may wait already.
        cancelled : threading.Event, optional
            Ends the waiting.

        Yields
        ------
        bool
            Whether this is the turn: False where ``cancelled`` came first.

        Raises
        ------
        QueueFullError
            More than ``waiting`` questions are waiting.
        GenerationError
            This process was forked from one whose model was at work.
        """
        if self._unusable:
            raise GenerationError(
                "This process was forked while the model was answering; load the model after forking, or start "
                "processes with the method 'spawn'."
            )
        mine = object()
        with self._moved:
            ahead = len(self._queue)
            if ahead > waiting:
                raise QueueFullError(
                    f"The model answers one question and {ahead - 1} wait; ask again later, or allow more with "
                    "max_waiting."
                )
            self._queue.append(mine)
        try:
            with self._moved:
                while self._queue[0] is not mine and not (cancelled and cancelled.is_set()):
                    self._moved.wait(_GLANCE_S if cancelled else None)
                has_turn = self._queue[0] is mine
            yield has_turn
        finally:
            with self._moved:
                self._queue.remove(mine)
                self._moved.notify_all()


_known: WeakKeyDictionary[LanguageModel, Turns] = WeakKeyDictionary()
_lock = threading.Lock()


def turns_of(model: LanguageModel) -> Turns:
    """The queue in front of a model."""
    with _lock:
        return _known.setdefault(model, Turns())


def _forked() -> None:
    """What was busy goes on in the parent; here nobody would ever free the model and its locks."""
    global _lock
    _lock = threading.Lock()
    for turns in _known.values():
        turns.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
