"""``qvpic eval``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qvpic_rag.bank_cli import Debug
from qvpic_rag.console import reported, say

__all__ = ["eval_app"]

eval_app = typer.Typer(
    help="Measure methods on questions with known answers.", no_args_is_help=True, rich_markup_mode=None
)

RunPath = Annotated[Path, typer.Argument(help="A run's folder, or one with the runs of several models.", metavar="DIR")]


@eval_app.callback()
def evaluate() -> None:
    """Measure methods on questions with known answers, and look at what was measured."""


@eval_app.command("report")
def report(
    path: RunPath,
    out: Annotated[Path | None, typer.Option(help="Where the report goes; by default the run's folder.")] = None,
    debug: Debug = False,
) -> None:
    """Tables and plots of a run: REPORT.md, report.html and plots/.

    A run that is not finished can be reported on. Needs the extra `eval`.
    """
    with reported(debug):
        from qvpic_rag.evaluation.report import write_report

        say(str(write_report(path, out)))


@eval_app.command("audit")
def audit(
    path: RunPath,
    method: Annotated[str | None, typer.Option(help="Only this method.")] = None,
    most: Annotated[int, typer.Option(help="How many wrong answers get a page.", min=0)] = 50,
    out: Annotated[Path | None, typer.Option(help="Where pages go; by default audit/ in the run's folder.")] = None,
    debug: Debug = False,
) -> None:
    """Whether the page that holds the answer was promoted, and what the model saw where it answered wrongly."""
    with reported(debug):
        from qvpic_rag.evaluation.audit import write_audit

        say(str(write_audit(path, out, method=method, most=most)))
