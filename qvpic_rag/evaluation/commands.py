"""``qvpic eval``."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from qvpic_rag.bank_cli import Debug
from qvpic_rag.console import err, reported, say
from qvpic_rag.errors import ConfigError

__all__ = ["eval_app"]

eval_app = typer.Typer(
    help="Measure methods on questions with known answers.", no_args_is_help=True, rich_markup_mode=None
)

RunPath = Annotated[Path, typer.Argument(help="A run's folder, or one with the runs of several models.", metavar="DIR")]


@eval_app.callback()
def evaluate() -> None:
    """Measure methods on questions with known answers, and look at what was measured."""


@eval_app.command("run")
def run(
    suite: Annotated[str, typer.Option(help="facts (generated), longbench, or folder (your own questions).")],
    out: Annotated[Path, typer.Option(help="Folder of the run; one that is there is gone on with.")],
    model: Annotated[
        list[str] | None, typer.Option(help="demo (default), smollm2, a folder or a hub id; may be repeated.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Such as full@120,full@text,pic@72/native,epic2@text,top4@text,prefix@120,qvpic.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="The paper's comparisons, such as q1,q3; of q1, q2, q3, q4, sensitivity.")
    ] = None,
    questions: Annotated[
        str | None, typer.Option(help="facts: how many for each number of pages; folder: their JSONL or CSV file.")
    ] = None,
    pages: Annotated[str | None, typer.Option(help="facts: numbers of pages, such as 2,4,8,16.")] = None,
    kinds: Annotated[
        str | None, typer.Option(help="facts: ask for these in turn, such as fact,two_hop; all: every kind.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="longbench: folder of JSONL files; else the hub's.")] = None,
    tasks: Annotated[str | None, typer.Option(help="longbench: such as hotpotqa,musique.")] = None,
    limit: Annotated[int | None, typer.Option(help="longbench: questions of each task.")] = None,
    prompts: Annotated[str | None, typer.Option(help="longbench: glyph or longbench.")] = None,
    max_context: Annotated[
        int | None, typer.Option(help="longbench: text tokens that contexts are cut to, in their middle.")
    ] = None,
    documents: Annotated[
        list[str] | None, typer.Option(help="folder: file, folder or pattern; may be repeated.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="folder: pages for each question.")] = None,
    chunk_tokens: Annotated[int | None, typer.Option(help="Text models: longest chunk, tokens.")] = None,
    embedder: Annotated[str | None, typer.Option(help="What scores pages.")] = None,
    profile: Annotated[str | None, typer.Option(help="Render profile.")] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(help="Longest answer, in place of the suite's: thinking models need thousands.", min=1, max=10**6),
    ] = None,
    timed: Annotated[int, typer.Option(help="Examples whose time to first token is measured.")] = 8,
    served: Annotated[int, typer.Option(help="Requests for each number of callers, P99 from 100 on; 0: none.")] = 20,
    seed: Annotated[int, typer.Option(help="facts: another one gives other documents.", min=0)] = 0,
    device: Annotated[str | None, typer.Option(help="Such as cpu or cuda:0.")] = None,
    dtype: Annotated[str | None, typer.Option(help="bfloat16, float16 or float32.")] = None,
    trust_remote_code: Annotated[bool, typer.Option(help="Run Python code that comes with the model.")] = False,
    debug: Debug = False,
) -> None:
    """Ask every question through every method.

    Stop it at any time; the same command goes on. `qvpic eval report` shows what there is.
    """
    with reported(debug):
        from functools import partial

        from qvpic_rag.evaluation.runner import Plan
        from qvpic_rag.evaluation.start import Wanted, measure
        from qvpic_rag.progress import bar
        from qvpic_rag.reader.facts import QUESTION_KINDS

        options = {
            "questions": questions if suite == "folder" or questions is None else _whole("questions", questions),
            "pages": None if pages is None else tuple(_whole("pages", part) for part in pages.split(",")),
            "kinds": None if kinds is None else QUESTION_KINDS if kinds == "all" else tuple(kinds.split(",")),
            "data": data,
            "tasks": None if tasks is None else tuple(tasks.split(",")),
            "limit": limit,
            "prompts": prompts,
            "max_context": max_context,
            "documents": None if documents is None else tuple(documents),
            "top_k": top_k,
        }
        setup = {
            "chunk_tokens": chunk_tokens,
            "embedder": embedder,
            "profile": profile,
            "device": device,
            "dtype": dtype,
            "trust_remote_code": trust_remote_code or None,
        }
        wanted = Wanted(
            suite,
            _given(options),
            tuple(model or ["demo"]),
            tuple(methods.split(",")) if methods else (),
            preset,
            _given(setup),
            Plan(timed=timed, served=served),
            seed,
            max_new_tokens,
        )
        progress = partial(bar, unit="answers") if err.is_terminal else _lines
        for place in measure(wanted, out, progress):
            say(str(place))
        say(f"Look at it with: qvpic eval report {shlex.quote(str(out))}")


_QUIET_S = 30.0  # between two lines of progress in a log


@contextmanager
def _lines(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """Progress where there is no terminal: a line now and then."""
    said = time.monotonic()

    def progress(done: int, total: int, what: str) -> None:
        nonlocal said
        if time.monotonic() - said >= _QUIET_S:
            said = time.monotonic()
            err.print(f"{title}: {done} of {total} answers")

    yield progress


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"--{name} must be whole numbers, not {text!r}.") from None


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
