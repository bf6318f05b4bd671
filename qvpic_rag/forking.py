"""What must be made anew in a forked process: a lock that another thread of the parent held is never released there."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["Renewable", "renewed"]


class Renewable(Protocol):
    """Something with locks or other things that belong to one process."""

    def _after_fork(self) -> None: ...


_LIVING: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renewed(what: Renewable) -> None:
    """Call ``what._after_fork()`` in every process that is forked from this one, before anything else runs there."""
    _LIVING.add(what)


def _renew() -> None:
    for what in list(_LIVING):
        what._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
