"""An engine inside a component of another framework: opened when needed, copied and pickled without its model."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from qvpic_rag.pipeline.facade import QVPIC

__all__ = ["LazyEngine"]


class LazyEngine:
    """An engine that is opened by whichever thread needs it first, and opened anew when its options have changed.

    Nobody holds it but its owner and the answers on their way, so it is closed when the last of them is gone. A pickle
    or copy of it is one that is not open: components travel without their model.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rag: QVPIC | None = None
        self._options: dict[str, Any] = {}

    def get(self, options: dict[str, Any]) -> QVPIC:
        """The open engine; ``options`` are arguments of ``QVPIC.from_pretrained``."""
        with self._lock:
            if self._rag is None or self._options != options:
                self._rag, self._options = QVPIC.from_pretrained(**options), dict(options)
                # Not at exit: answers may still be on their way then.
                weakref.finalize(self._rag, self._rag.bank.close).atexit = False
            return self._rag

    def close(self) -> None:
        """Close the engine; :meth:`get` opens it again."""
        with self._lock:
            if self._rag is not None:
                self._rag.close()
                self._rag = None

    def __reduce__(self) -> tuple[Any, ...]:
        return LazyEngine, ()

    def __deepcopy__(self, memo: object) -> LazyEngine:
        return LazyEngine()
