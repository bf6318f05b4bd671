"""Arguments and options that the commands for both readers share."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from qvpic_rag.console import err

__all__ = ["Debug", "Device", "Minutes", "Recipe", "Run", "until"]

Run = Annotated[Path, typer.Argument(help="Folder of the run; a checkpoint in it is continued.", metavar="RUN")]
Recipe = Annotated[
    Path | None,
    typer.Option(help="TOML file of stages; by default the one that comes with the package.", show_default=False),
]
Minutes = Annotated[
    float | None, typer.Option(help="Stop, with a checkpoint, after this long.", min=0, show_default=False)
]
Device = Annotated[str, typer.Option(help="Such as cpu or cuda:0.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


@contextmanager
def until(minutes: float | None) -> Iterator[Callable[[], bool]]:
    """Whether to stop: so many minutes have passed, or somebody asked for it (SIGINT, SIGTERM).

    A training that is asked to stop ends its step and writes a checkpoint; asked again, it ends at once.
    """
    end = None if minutes is None else time.monotonic() + 60 * minutes
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        err.print("Stopping after this step, with a checkpoint; run the same command again to go on.")

    before = {each: signal.signal(each, ask) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked) or (end is not None and time.monotonic() > end)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
