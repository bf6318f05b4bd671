"""Arguments and options that the commands for both readers share."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

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


def until(minutes: float | None) -> Callable[[], bool]:
    """Whether so many minutes have passed since now; never, for None."""
    end = None if minutes is None else time.monotonic() + 60 * minutes
    return lambda: end is not None and time.monotonic() > end
