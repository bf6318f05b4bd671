"""What commands print, and how they report errors: one sentence on stderr and an exit code."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from qvpic_rag.errors import QVPICError

if TYPE_CHECKING:
    from qvpic_rag.bank import BankStats
    from qvpic_rag.demo import Shown
    from qvpic_rag.pipeline import QVPIC, IngestReport
    from qvpic_rag.records import Answer

__all__ = [
    "counted",
    "err",
    "print_answer",
    "print_demo",
    "print_ingest",
    "print_json",
    "print_route",
    "print_stats",
    "print_usage_error",
    "reported",
    "say",
]

err = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
"""Standard error: everything about a result."""


def say(text: str = "", *, end: str = "\n") -> None:
    """Write to standard output, at once and unaltered: results only.

    Raises
    ------
    BrokenPipeError
        Nobody reads it any more.
    QVPICError
        It cannot be written, such as into a file on a full disk.
    """
    try:
        sys.stdout.write(text + end)
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains again on exit
        if isinstance(error, BrokenPipeError):
            raise
        raise QVPICError(f"The output cannot be written ({error.strerror}); write it to another place.") from error


def counted(number: int, noun: str) -> str:
    """Such as "1 page" and "2 pages"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@contextmanager
def reported(debug: bool) -> Iterator[None]:
    """Errors as one sentence and an exit code."""
    _quiet_libraries(debug)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            yield
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        err.print("Interrupted; what was stored stays, run the same command again to go on.")
        raise typer.Exit(1) from None
    except BrokenPipeError:
        raise typer.Exit(1) from None
    except Exception as error:
        if debug:
            traceback.print_exc()
        known = isinstance(error, QVPICError)
        what = str(error) if known else f"{type(error).__name__}: {error}. Run again with --debug to see where."
        err.print(f"Error: {what}")
        raise typer.Exit(error.exit_code if isinstance(error, QVPICError) else 1) from None


def print_usage_error(error: Any) -> int:
    """A command line that click refuses, as one sentence; returns the exit code."""
    message = error.format_message().rstrip(".?")
    if "\n" in message:  # a command without anything: its help
        err.print(message)
    else:
        command = error.ctx.command_path if error.ctx else "qvpic"
        err.print(f"Error: {message}; see: {command} --help")
    return int(error.exit_code)


def _show_warning(message: Warning | str, *where: object, **more: object) -> None:
    """What is wrong, without the source line of the library."""
    err.print(f"Warning: {message}")


def _quiet_libraries(debug: bool) -> None:
    """Progress bars and notices of the libraries below are noise on a command's output."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("qvpic_rag.pipeline.facade").setLevel(logging.ERROR)  # failures are printed with the report
    if debug:
        return
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def print_stats(stats: BankStats, disk_bytes: int) -> None:
    """A namespace's content, and the bytes of the whole bank, as a few lines."""
    recipe = stats.to_dict()["recipe"]
    held = f"{counted(stats.documents, 'document')}, {counted(stats.pages, 'page')}"
    say(f"{held} in namespace {stats.namespace!r} of {stats.path}")
    for dpi, count in stats.blocks.items():
        say(f"  {dpi:>4} DPI  {counted(count, 'block')}  {stats.block_bytes[dpi] / 1e6:.1f} MB")
    for count, what in (
        (stats.unlinked, "of pages that no document holds; `qvpic bank gc` removes those that are not used"),
        (stats.evicted, "evicted to make room; compiled again when a request needs them"),
        (stats.damaged, "found damaged and set aside; compiled again when a request needs them"),
    ):
        if count:
            say(f"  {counted(count, 'block')} {what}")
    say(f"limit  {stats.limit / 1e6:.1f} MB" if stats.limit is not None else "limit  none")
    say(f"whole bank on disk  {disk_bytes / 1e6:.1f} MB")
    for name, number in stats.counters.items():
        say(f"{name}  {number}")
    for name in ("model", "revision", "dtype", "system_prompt", "profile", "embedder"):
        if recipe.get(name):
            say(f"{name.replace('_', ' ')}  {recipe[name]}")
    if set(recipe["storage"]) != {"native"}:
        say(f"storage  {','.join(recipe['storage'])}")


def print_json(value: object) -> None:
    """One JSON value, readable; text as it is where the terminal can show it."""
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    say(json.dumps(value, ensure_ascii=not unicode, indent=2))


def print_ingest(report: IngestReport, bank: Path, pages: int, as_json: bool) -> None:
    """What an ingest did; failures on stderr, one sentence each."""
    if as_json:
        print_json(
            {
                "added": list(report.added),
                "replaced": list(report.replaced),
                "repaired": list(report.repaired),
                "unchanged": list(report.unchanged),
                "failed": [{"source": failure.source, "error": str(failure.error)} for failure in report.failed],
                "left_out": list(report.left_out),
                "pages": report.pages,
                "compiled": report.compiled,
                "seconds": report.seconds,
            }
        )
    else:
        speed = f" ({report.pages / report.seconds:.1f} pages/s)" if report.compiled and report.seconds else ""
        names = ("added", "replaced", "repaired", "unchanged", "failed")
        counts = ", ".join(f"{count} {name}" for name in names if (count := len(getattr(report, name))))
        say(
            f"{counts or 'nothing'}: {counted(report.pages, 'page')}, {counted(report.compiled, 'block')} compiled in "
            f"{report.seconds:.1f} s{speed}."
        )
        say(f"The bank {bank} holds {counted(pages, 'page')}.")
    for failure in report.failed:
        err.print(f"Error: {failure.error}")
    if report.left_out:
        endings = sorted({Path(source).suffix or "no ending" for source in report.left_out})
        err.print(
            f"{counted(len(report.left_out), 'file')} left out, because there is no reader for their types "
            f"({', '.join(endings[:8])}{', ...' if len(endings) > 8 else ''}); convert them to one that README names."
        )


def print_answer(rag: QVPIC, question: str, generation: dict[str, Any]) -> Answer:
    """The answer, on a terminal while it is being written; returns its record."""
    if not sys.stdout.isatty():
        answer = rag.ask(question, **generation)
        say(answer.text)
        return answer
    with rag.stream(question, **generation) as stream:
        for piece in stream:
            say(piece, end="")
        say()
        return stream.answer


def print_route(answer: Answer) -> None:
    """What the answer rests on, on stderr, so that stdout is the answer alone."""
    if not answer.text:
        err.print("The answer is empty.")
    if answer.finish_reason == "length":
        err.print(f"The answer was cut off after {answer.usage.output_tokens} tokens; raise --max-new-tokens.")
    if answer.route.note:
        err.print(answer.route.note)
    if answer.route.dropped:
        err.print(f"{counted(len(answer.route.dropped), 'page')} of lowest rank left out: the context is full.")
    if answer.route.compiled:
        err.print(f"{counted(len(answer.route.compiled), 'page')} compiled now, because the bank lacked them.")
    for page in answer.route.pages:
        err.print(f"  {page.dpi:>4} DPI  score {page.score:6.3f}  {page.source}, page {page.number + 1}")
    err.print(
        f"first token after {answer.timing.ttft:.0f} ms, answer after {answer.timing.total:.0f} ms; "
        f"{answer.usage.context_tokens} tokens from the bank, {answer.usage.query_tokens} prefilled"
    )


def print_demo(report: IngestReport, results: list[Shown], bank: Path | None) -> None:
    """The demo's questions, answers, pages and times to first token."""
    if report.added:
        say(
            f"{len(report.added)} documents, {report.pages} pages compiled at 72 and 120 DPI in "
            f"{report.seconds:.1f} s (once, offline).\n"
        )
    else:
        say(f"{len(report.unchanged)} documents, unchanged since they were compiled into {bank}.\n")
    for shown in results:
        say(f"Q  {shown.question}")
        say(f"A  {shown.cached.text}   ({'right' if shown.correct else f'wrong, expected {shown.expected}'})")
        for page in shown.cached.route.pages:
            mark = "*" if page.promoted else " "
            say(f"   {mark} {page.dpi:>3} DPI  score {page.score:6.3f}  {page.source}, page {page.number + 1}")
        say(
            f"   first token after {shown.cached_ttft:.1f} ms; full prefill {shown.full_ttft:.1f} ms, "
            f"{shown.full_ttft / shown.cached_ttft:.1f} times as long\n"
        )
    say(
        "* read at high resolution. First token: median of 3, query embedding, search and routing included; full "
        "prefill is of the same pages at high resolution, already rendered.\n"
        "The reader is a model of six million parameters that knows only this kind of page and question."
    )
    if bank is None:
        say("To ask more of these documents, keep them with --bank DIR.")
    else:
        command = sys.argv[0] if "/" in sys.argv[0] and not Path(sys.argv[0]).is_absolute() else "qvpic"
        say(f'\nTry: {command} ask "{results[0].question}" --bank {shlex.quote(str(bank))}')
