"""The progress bar of an ingest: pages per second and time left, on stderr, only where that is a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from qvpic_rag.pipeline.ingest import Progress

__all__ = ["bar"]


class _Rate(ProgressColumn):
    """Pages per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.1f} pages/s")


@contextmanager
def bar(*, enabled: bool) -> Iterator[Progress]:
    """A callback that draws the bar; a silent one unless ``enabled`` and stderr is a terminal."""
    console = Console(stderr=True)
    if not (enabled and console.is_terminal):
        yield lambda done, total, source: None
        return
    columns = (
        TextColumn("Compiling"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with RichProgress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total, source: progress.update(task, completed=done, total=total, description=source)
