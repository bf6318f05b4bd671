"""The command line: ``qvpic ingest``, ``ask``, ``demo`` and ``bank``. Thin: every command is a call of the library.

Exit codes: 0 done, 2 wrong usage or input, 1 any other failure. Errors are one sentence on stderr; ``--debug`` adds
the traceback.
"""

from __future__ import annotations

import glob
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qvpic_rag import __version__
from qvpic_rag.bank_cli import AsJson, BankOption, Debug, Namespace, bank_app, opened_bank
from qvpic_rag.bench.commands import bench_app
from qvpic_rag.config import GenerateConfig, byte_count
from qvpic_rag.console import (
    counted,
    err,
    print_answer,
    print_demo,
    print_ingest,
    print_json,
    print_route,
    print_usage_error,
    reported,
    say,
)
from qvpic_rag.errors import BankNotFoundError, InputError, QVPICError
from qvpic_rag.evaluation.commands import eval_app
from qvpic_rag.reader.commands import reader_app

if TYPE_CHECKING:
    from qvpic_rag.pipeline import QVPIC
    from qvpic_rag.records import Answer

__all__ = ["app", "main"]

app = typer.Typer(
    help="Fast retrieval-augmented generation on vision-language models from precompiled page KV caches.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(bank_app, name="bank")
app.add_typer(reader_app, name="reader")
app.add_typer(bench_app, name="bench")
app.add_typer(eval_app, name="eval")

Remote = Annotated[
    str | None, typer.Option("--remote", help="URL of a remote tier of blocks, such as s3://bucket/folder.")
]
Router = Annotated[
    str, typer.Option("--router", help="What pages are scored by: dense, or hybrid (with BGE-M3 as the embedder).")
]
Device = Annotated[str | None, typer.Option("--device", help="Such as cpu or cuda:0.")]
_UPLOAD_S = 3.0  # between two looks whether the remote tier still answers
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]  # click's, or that of the copy in later typers
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model. Read it first.")
]


def main() -> None:
    """Entry point of the ``qvpic`` command."""
    # Read when torch is imported: threads that spin while they wait make a small model ten times slower on a machine
    # that does anything else.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Wide characters in answers must not fail on a terminal that is not UTF-8.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(prog_name="qvpic", standalone_mode=False)
    except _UsageError as error:
        code = print_usage_error(error)
    sys.exit(code)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        say(f"qvpic-rag {__version__}")
        raise typer.Exit


def _loaded(load: Callable[[], QVPIC]) -> QVPIC:
    """Import and load behind a spinner; both take seconds."""
    with err.status("Loading the model ..."):
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()
        return load()


@app.command()
def ingest(
    paths: Annotated[
        list[str],
        typer.Argument(help="Files, folders, globs, or - for standard input (document 'stdin').", metavar="PATH"),
    ],
    bank: BankOption,
    model: Annotated[
        str | None, typer.Option(help="demo, a folder or a hub id; by default the one the bank was made with.")
    ] = None,
    embedder: Annotated[str | None, typer.Option(help="Folder or hub id of the embedding model.")] = None,
    profile: Annotated[
        str | None, typer.Option(help="Render profile: glyph, glyph-literal, demo, smolglyph or a TOML file.")
    ] = None,
    system_prompt: Annotated[str | None, typer.Option(help="System prompt that pages are compiled under.")] = None,
    low_dpi: Annotated[int | None, typer.Option(help="Low resolution; needs --high-dpi.")] = None,
    high_dpi: Annotated[int | None, typer.Option(help="High resolution; needs --low-dpi.")] = None,
    storage: Annotated[
        str | None, typer.Option(help="How blocks are stored: native, int8, int4, or low,high such as int4,int8.")
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(help="Limit of the bank's block files from now on, such as 20GB."),
    ] = None,
    remote: Remote = None,
    router: Router = "dense",
    batch_size: Annotated[int, typer.Option(help="Pages per forward pass.")] = 4,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse documents with undrawable characters.")] = False,
    dtype: Annotated[str | None, typer.Option(help="bfloat16, float16 or float32.")] = None,
    device: Device = None,
    namespace: Namespace = "default",
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Render and compile documents into a bank.

    The bank is made where there is none. What it holds already is not compiled again, so a command that was
    interrupted goes on where it stopped when it is run again.
    """
    with reported(debug):
        if (low_dpi is None) != (high_dpi is None):
            raise InputError("Give --low-dpi and --high-dpi together, such as --low-dpi 72 --high-dpi 120.")
        _check_paths(paths)
        if model is None and not bank.exists():
            raise InputError(
                f"There is no bank at {bank} yet; say with --model which model to make it with (demo is bundled)."
            )
        dpis = None if low_dpi is None or high_dpi is None else (low_dpi, high_dpi)
        stdin = getattr(sys.stdin, "buffer", None) if "-" in paths else None  # None: started without a console
        options: dict[str, Any] = {
            "embedder": embedder,
            "profile": profile,
            "system_prompt": system_prompt,
            "dpis": dpis,
            "storage": storage,
            "remote": remote,
            "ram_bytes": 0,  # nothing is read twice
            "router": router,
            "batch_size": batch_size,
            "strict": strict,
            "dtype": dtype,
            "device": device,
            "namespace": namespace,
            "trust_remote_code": trust_remote_code,
        }
        limit = None if max_bytes is None else byte_count(max_bytes)
        with _loaded(lambda: _opened(bank, model, options)) as rag:
            if max_bytes is not None:
                rag.bank.set_max_bytes(limit)
            report = rag.ingest(paths, stdin=stdin)
            waiting = _uploaded(rag)
            pages = rag.bank.page_count()
            gone = _gone(paths, [document.source for document in rag.bank.documents()])
        print_ingest(report, bank, pages, as_json)
        if waiting:
            err.print(
                f"{counted(waiting, 'block')} did not reach the remote tier; they are uploaded when the bank is next "
                f"used with --remote and it answers."
            )
        if gone:
            err.print(
                f"{counted(len(gone), 'document')} of the bank not found from here any more, such as {gone[0]}; "
                f"to forget it: qvpic bank remove {shlex.quote(gone[0])} --bank {shlex.quote(str(bank))}"
            )
        if report.failed:
            stored = report.added or report.replaced or report.repaired or report.unchanged
            raise typer.Exit(1 if stored else 2)


def _check_paths(paths: Sequence[str]) -> None:
    """A mistyped path is refused before a model is loaded and a bank is made for nothing."""
    if not any(path == "-" or glob.has_magic(path) or os.path.lexists(path) for path in paths):
        raise InputError(f"{paths[0]!r} does not exist; check the path.")


def _gone(paths: Sequence[str], sources: Sequence[str]) -> list[str]:
    """Stored files below the folders given that are not there any more; they keep answering until they are removed.

    Names without a folder may be anything, such as ``stdin``, so nothing is said of ``.`` and what is above it.
    """
    folders = [folder for folder in map(Path, paths) if folder.is_dir() and folder.name and ".." not in folder.parts]
    return [
        source
        for source in sources
        if not os.path.lexists(source) and any(folder in Path(source).parents for folder in folders)
    ]


def _uploaded(rag: QVPIC) -> int:
    """Wait for uploads as long as the remote tier answers and they get on; how many blocks are left."""
    left = rag.bank.flush(_UPLOAD_S)
    while left and rag.bank.blocks.remote_answers:
        before, start = left, time.monotonic()
        left = rag.bank.flush(_UPLOAD_S)
        if left == before and time.monotonic() - start < _UPLOAD_S / 2:
            break  # nothing waits that can be uploaded
    return left


def _opened(bank: Path, model: str | None, options: dict[str, Any]) -> QVPIC:
    from qvpic_rag.pipeline import QVPIC

    return QVPIC.open(bank, **options) if model is None else QVPIC.from_pretrained(model, bank, **options)


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="The question.", metavar="QUESTION")],
    bank: BankOption,
    top_k: Annotated[int, typer.Option("--top-k", help="Pages retrieved.")] = 8,
    alpha: Annotated[float, typer.Option(help="Share of the relevance to cover at high resolution.")] = 0.65,
    budget: Annotated[int, typer.Option(help="Most pages at high resolution.")] = 4,
    token_budget: Annotated[
        int | None, typer.Option(help="Most tokens that high resolutions may add, in place of --budget.")
    ] = None,
    router: Router = "dense",
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer, tokens.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    stop: Annotated[list[str] | None, typer.Option(help="A string that ends the answer; may be repeated.")] = None,
    model: Annotated[str | None, typer.Option(help="Where the bank's model is now, if it has moved.")] = None,
    remote: Remote = None,
    device: Device = None,
    namespace: Namespace = "default",
    trust_remote_code: TrustRemoteCode = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write an HTML page that shows the pages used.", metavar="FILE.html")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Answer a question from a bank."""
    with reported(debug):
        if not question.strip():
            raise InputError("The question is empty; ask something.")
        if trace is not None and not trace.parent.is_dir():
            raise InputError(f"There is no folder {str(trace.parent)!r} for the trace; make it or choose another one.")
        generation: dict[str, Any] = {
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "stop": tuple(stop or ()),
        }
        GenerateConfig(**generation)  # refuses wrong values before a model is loaded
        options: dict[str, Any] = {
            "model": model,
            "top_k": top_k,
            "alpha": alpha,
            "budget": budget,
            "token_budget": token_budget,
            "router": router,
            "device": device,
            "namespace": namespace,
            "trust_remote_code": trust_remote_code,
            "remote": remote,
            "ram_bytes": 0,  # one question: each block is read once
        }
        _check_pages(bank, namespace)
        with _loaded(lambda: _asked(bank, options)) as rag:
            if as_json:
                answer = rag.ask(question, **generation)
                print_json(answer.to_dict())
            else:
                answer = print_answer(rag, question, generation)
                print_route(answer)
            if trace is not None:  # last, so that nothing that goes wrong with it costs the answer
                _write_trace(rag, question, answer, trace)
                if not as_json:
                    err.print(f"The trace is in {trace}")


def _asked(bank: Path, options: dict[str, Any]) -> QVPIC:
    from qvpic_rag.pipeline import QVPIC

    return QVPIC.open(bank, **options)


def _check_pages(bank: Path, namespace: str) -> None:
    """A missing or empty bank is refused before the model is loaded."""
    with opened_bank(bank, namespace) as store:
        if store.page_count() == 0:
            where = "" if namespace == "default" else f" in namespace {namespace!r}"
            more = "" if namespace == "default" else f" --namespace {shlex.quote(namespace)}"
            raise BankNotFoundError(
                f"The bank {bank} holds no pages{where}; run: qvpic ingest PATH --bank {shlex.quote(str(bank))}{more}"
            )


def _write_trace(rag: QVPIC, question: str, answer: Answer, path: Path) -> None:
    from qvpic_rag.trace import trace_html

    pictures = {p.page_id: rag.page_image(rag.page(p.page_id), p.dpi) for p in answer.route.pages}
    try:
        path.write_text(trace_html(question, answer, pictures), encoding="utf-8", errors="xmlcharrefreplace")
    except OSError as error:
        raise InputError(f"The trace cannot be written to {path} ({error.strerror}); choose another place.") from error


@app.command()
def demo(
    bank: Annotated[Path | None, typer.Option("--bank", help="Keep the demo's bank here, to ask more of it.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Ask three questions of bundled documents.

    The documents are ingested with the bundled reader; every answer is timed beside full prefill of the same pages.
    """
    with reported(debug), tempfile.TemporaryDirectory(prefix="qvpic-demo-") as folder:
        where = bank or Path(folder) / "bank"
        from qvpic_rag.demo import demo_documents, run_demo
        from qvpic_rag.pipeline import QVPIC

        with _loaded(lambda: QVPIC.from_pretrained("demo", where)) as rag:
            report = rag.ingest(demo_documents())
            results = list(run_demo(rag))
        if as_json:
            print_json(
                [
                    {"question": r.question, "expected": r.expected, "correct": r.correct}
                    | {"ttft_ms": {"qvpic": r.cached_ttft, "full_prefill": r.full_ttft}}
                    | {"qvpic": r.cached.to_dict(), "full_prefill": r.full.to_dict()}
                    for r in results
                ]
            )
        else:
            print_demo(report, results, bank)
        if not all(result.correct for result in results):
            raise QVPICError("The demo gave a wrong answer; please report it with the output of: qvpic demo --json")
