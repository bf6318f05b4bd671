"""Times of several actions that can be compared, on a machine that does other things as well."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

__all__ = ["best_times"]


def best_times(
    actions: Mapping[str, Callable[[], object]], rounds: int, progress: Callable[[int, int, str], None]
) -> dict[str, float]:
    """Seconds of the fastest of ``rounds`` runs of each action.

    The actions take turns, so that whatever disturbs the machine disturbs all of them, and the fastest run is the one
    that was disturbed least. What an action returns is let go within its time, as a request lets go of its cache.
    """
    best = dict.fromkeys(actions, float("inf"))
    for turn in range(rounds):
        for name, action in actions.items():
            progress(turn, rounds, name)
            start = time.perf_counter()
            action()
            best[name] = min(best[name], time.perf_counter() - start)
    progress(rounds, rounds, "")
    return best
