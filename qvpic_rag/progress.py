"""A progress bar with speed and time left, on stderr, only where that is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

__all__ = ["Progress", "bar"]

Progress = Callable[[int, int, str], None]
"""Called with how much is done, how much there is, and what is being worked on."""


class _Rate(ProgressColumn):
    """Things per second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.1f} {self._unit}/s")


@contextmanager
def bar(title: str, unit: str, *, enabled: bool = True) -> Iterator[Progress]:
    """A callback that draws the bar; a silent one unless ``enabled`` and stderr is a terminal."""
    console = Console(stderr=True)
    if not (enabled and console.is_terminal):
        yield lambda done, total, source: None
        return
    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(unit),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with RichProgress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total, source: progress.update(task, completed=done, total=total, description=source)
