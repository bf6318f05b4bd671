"""The command line: ``qvpic ingest``, ``ask``, ``demo`` and ``bank``. Thin: every command is a call of the library.

Exit codes: 0 done, 2 wrong usage or input, 1 any other failure. Errors are one sentence on stderr; ``--debug`` adds
the traceback.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from qvpic_rag import __version__
from qvpic_rag.errors import InputError, QVPICError

if TYPE_CHECKING:
    from qvpic_rag.bank import Bank
    from qvpic_rag.pipeline import QVPIC, IngestReport
    from qvpic_rag.records import Answer

__all__ = ["app", "main"]

app = typer.Typer(
    help="Fast retrieval-augmented generation on vision-language models from precompiled page KV caches.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
bank_app = typer.Typer(help="Look after a bank.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(bank_app, name="bank")

_out = Console(highlight=False, markup=False, soft_wrap=True)
_err = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)

BankOption = Annotated[Path, typer.Option("--bank", help="Folder of the bank.", show_default=False)]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Namespace = Annotated[str, typer.Option("--namespace", help="Namespace of the documents.")]
Device = Annotated[str | None, typer.Option("--device", help="Such as cpu or cuda:0.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model. Read it first.")
]


def main() -> None:
    """Entry point of the ``qvpic`` command."""
    # Wide characters in answers must not fail on a terminal that is not UTF-8.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    app()


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        _out.print(f"qvpic-rag {__version__}")
        raise typer.Exit


@contextmanager
def _reported(debug: bool) -> Iterator[None]:
    """Errors as one sentence and an exit code."""
    _quiet_libraries(debug)
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        _err.print("Interrupted; what was finished is stored, run the same command again to continue.")
        raise typer.Exit(1) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains again on exit
        raise typer.Exit(1) from None
    except QVPICError as error:
        if debug:
            raise
        _err.print(f"Error: {error}")
        raise typer.Exit(error.exit_code) from None
    except Exception as error:
        if debug:
            raise
        _err.print(f"Error: {type(error).__name__}: {error}. Run again with --debug to see where.")
        raise typer.Exit(1) from None


def _quiet_libraries(debug: bool) -> None:
    """Progress bars and notices of the libraries below are noise on a command's output."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    if debug:
        return
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _loaded(load: Callable[[], QVPIC]) -> QVPIC:
    """Import and load behind a spinner; both take seconds."""
    with _err.status("Loading the model ..."):
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()
        return load()


@app.command()
def ingest(
    paths: Annotated[
        list[str], typer.Argument(help="Files, folders, globs, or - for standard input.", metavar="PATH...")
    ],
    bank: BankOption,
    model: Annotated[
        str | None, typer.Option(help="demo, a folder or a hub id; by default the one the bank was made with.")
    ] = None,
    embedder: Annotated[str | None, typer.Option(help="Folder or hub id of the embedding model.")] = None,
    profile: Annotated[
        str | None, typer.Option(help="Render profile: glyph, glyph-literal, demo or a TOML file.")
    ] = None,
    system_prompt: Annotated[str | None, typer.Option(help="System prompt that pages are compiled under.")] = None,
    low_dpi: Annotated[int | None, typer.Option(help="Low resolution; needs --high-dpi.")] = None,
    high_dpi: Annotated[int | None, typer.Option(help="High resolution; needs --low-dpi.")] = None,
    batch_size: Annotated[int, typer.Option(help="Pages per forward pass.")] = 4,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse documents with undrawable characters.")] = False,
    dtype: Annotated[str | None, typer.Option(help="bfloat16, float16 or float32.")] = None,
    device: Device = None,
    namespace: Namespace = "default",
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Render and compile documents into a bank, which is created where there is none."""
    with _reported(debug):
        if (low_dpi is None) != (high_dpi is None):
            raise InputError("Give --low-dpi and --high-dpi together, such as --low-dpi 72 --high-dpi 120.")
        dpis = None if low_dpi is None or high_dpi is None else (low_dpi, high_dpi)
        stdin = sys.stdin.buffer if "-" in paths else None
        options: dict[str, Any] = {
            "embedder": embedder,
            "profile": profile,
            "system_prompt": system_prompt,
            "dpis": dpis,
            "batch_size": batch_size,
            "strict": strict,
            "dtype": dtype,
            "device": device,
            "namespace": namespace,
            "trust_remote_code": trust_remote_code,
        }
        with _loaded(lambda: _opened(bank, model, options)) as rag:
            report = rag.ingest(paths, stdin=stdin)
            pages = rag.bank.page_count()
        _print_ingest(report, bank, pages, as_json)
        if report.failed:
            stored = report.added or report.replaced or report.repaired or report.unchanged
            raise typer.Exit(1 if stored else 2)


def _opened(bank: Path, model: str | None, options: dict[str, Any]) -> QVPIC:
    from qvpic_rag.pipeline import QVPIC

    if model is not None:
        return QVPIC.from_pretrained(model, bank, **options)
    if not bank.exists():
        raise InputError(f"There is no bank at {bank} yet; say with --model which model to make it with.")
    return QVPIC.open(bank, **options)


def _print_ingest(report: IngestReport, bank: Path, pages: int, as_json: bool) -> None:
    if as_json:
        _print_json(
            {
                "added": list(report.added),
                "replaced": list(report.replaced),
                "repaired": list(report.repaired),
                "unchanged": list(report.unchanged),
                "failed": [{"source": failure.source, "error": str(failure.error)} for failure in report.failed],
                "pages": report.pages,
                "compiled": report.compiled,
                "seconds": report.seconds,
            }
        )
    else:
        speed = f" ({report.pages / report.seconds:.1f} pages/s)" if report.pages and report.seconds else ""
        names = ("added", "replaced", "repaired", "unchanged", "failed")
        counts = ", ".join(f"{count} {name}" for name in names if (count := len(getattr(report, name))))
        _out.print(f"{counts or 'nothing'}: {report.pages} pages compiled in {report.seconds:.1f} s{speed}.")
        _out.print(f"The bank {bank} holds {pages} pages.")
    for failure in report.failed:
        _err.print(f"Error: {failure.error}")


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="The question.")],
    bank: BankOption,
    top_k: Annotated[int, typer.Option("--top-k", help="Pages retrieved.")] = 8,
    alpha: Annotated[float, typer.Option(help="Share of the relevance to cover at high resolution.")] = 0.65,
    budget: Annotated[int, typer.Option(help="Most pages at high resolution.")] = 4,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer, tokens.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    stop: Annotated[list[str] | None, typer.Option(help="A string that ends the answer; may be repeated.")] = None,
    model: Annotated[str | None, typer.Option(help="Where the bank's model is now, if it has moved.")] = None,
    device: Device = None,
    namespace: Namespace = "default",
    trust_remote_code: TrustRemoteCode = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write an HTML page about the answer.", metavar="FILE.html")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Answer a question from a bank."""
    with _reported(debug):
        if not question.strip():
            raise InputError("The question is empty; ask something.")
        from qvpic_rag.pipeline import QVPIC

        def load() -> QVPIC:
            return QVPIC.open(
                bank,
                model=model,
                top_k=top_k,
                alpha=alpha,
                budget=budget,
                device=device,
                namespace=namespace,
                trust_remote_code=trust_remote_code,
            )

        with _loaded(load) as rag:
            _check_not_empty(rag.bank, bank)
            generation: dict[str, Any] = {
                "max_new_tokens": max_new_tokens,
                "temperature": temperature,
                "stop": tuple(stop or ()),
            }
            if as_json or trace is not None or not sys.stdout.isatty():
                answer = rag.ask(question, **generation)
                if not as_json:
                    _out.print(answer.text)
            else:
                answer = _print_stream(rag, question, generation)
            if trace is not None:
                _write_trace(rag, question, answer, trace)
        if as_json:
            _print_json(answer.to_dict())
        else:
            _print_route(answer)


def _check_not_empty(store: Bank, bank: Path) -> None:
    from qvpic_rag.errors import BankNotFoundError

    if store.page_count() == 0:
        raise BankNotFoundError(f"The bank {bank} holds no pages; run: qvpic ingest PATH --bank {bank}")


def _print_stream(rag: QVPIC, question: str, generation: dict[str, Any]) -> Answer:
    with rag.stream(question, **generation) as stream:
        for piece in stream:
            _out.print(piece, end="")
        _out.print()
        return stream.answer


def _print_route(answer: Answer) -> None:
    """What the answer rests on, on stderr, so that stdout is the answer alone."""
    if answer.route.note:
        _err.print(answer.route.note)
    if answer.route.dropped:
        _err.print(f"{len(answer.route.dropped)} page(s) of lowest rank were left out: the context is full.")
    for page in answer.route.pages:
        _err.print(f"  {page.dpi:>4} DPI  score {page.score:6.3f}  {page.source}, page {page.number + 1}")
    _err.print(
        f"first token after {answer.timing.ttft:.0f} ms, answer after {answer.timing.total:.0f} ms; "
        f"{answer.usage.context_tokens} tokens from the bank, {answer.usage.query_tokens} prefilled"
    )


def _write_trace(rag: QVPIC, question: str, answer: Answer, path: Path) -> None:
    from qvpic_rag.trace import trace_html

    pictures = {p.page_id: rag.page_image(rag.page(p.page_id), p.dpi) for p in answer.route.pages}
    try:
        path.write_text(trace_html(question, answer, pictures), encoding="utf-8")
    except OSError as error:
        raise InputError(f"The trace cannot be written to {path} ({error.strerror}); choose another place.") from error


@app.command()
def demo(
    bank: Annotated[Path | None, typer.Option("--bank", help="Keep the demo's bank here, to ask more of it.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Ingest bundled documents with the bundled reader and ask three questions, beside full prefill."""
    with _reported(debug), tempfile.TemporaryDirectory(prefix="qvpic-demo-") as folder:
        where = bank or Path(folder) / "bank"
        from qvpic_rag.demo import demo_documents, run_demo
        from qvpic_rag.pipeline import QVPIC

        with _loaded(lambda: QVPIC.from_pretrained("demo", where)) as rag:
            report = rag.ingest(demo_documents())
            results = list(run_demo(rag))
        if as_json:
            _print_json(
                [
                    {"question": r.question, "expected": r.expected, "correct": r.correct}
                    | {"qvpic": r.cached.to_dict(), "full_prefill": r.full.to_dict()}
                    for r in results
                ]
            )
        else:
            _print_demo(report, results, bank)
        if not all(result.correct for result in results):
            raise QVPICError("The demo gave a wrong answer; please report it with the output of: qvpic demo --json")


def _print_demo(report: IngestReport, results: list[Any], bank: Path | None) -> None:
    if report.added:
        _out.print(
            f"{len(report.added)} documents, {report.pages} pages compiled at 72 and 120 DPI in "
            f"{report.seconds:.1f} s (once, offline).\n"
        )
    else:
        _out.print(f"{len(report.unchanged)} documents, unchanged since they were compiled into {bank}.\n")
    for shown in results:
        cached, full = shown.cached, shown.full
        _out.print(f"Q  {shown.question}")
        _out.print(f"A  {cached.text}   ({'right' if shown.correct else f'wrong, expected {shown.expected}'})")
        for page in cached.route.pages:
            mark = "*" if page.promoted else " "
            _out.print(f"   {mark} {page.dpi:>3} DPI  score {page.score:6.3f}  {page.source}, page {page.number + 1}")
        _out.print(
            f"   first token: QV-PIC {cached.timing.ttft:.1f} ms (query embedding and routing included), full prefill "
            f"{full.timing.ttft:.1f} ms (same pages at high resolution, already rendered): "
            f"{full.timing.ttft / cached.timing.ttft:.1f} times faster\n"
        )
    _out.print("* read at high resolution. The reader is a 5.1 M-parameter model that reads only this kind of page.")
    if bank is not None:
        _out.print(f'Try: qvpic ask "{results[0].question}" --bank {bank}')


@bank_app.command()
def stats(bank: BankOption, namespace: Namespace = "default", as_json: AsJson = False, debug: Debug = False) -> None:
    """What a bank holds and what it was made with."""
    with _reported(debug), _opened_bank(bank, namespace) as store:
        values = store.stats().to_dict()
        if as_json:
            _print_json(values)
        else:
            for name, value in values.items():
                shown = json.dumps(value) if isinstance(value, dict | list) else value
                _out.print(f"{name.replace('_', ' ')}: {shown}")


@bank_app.command()
def verify(bank: BankOption, namespace: Namespace = "default", as_json: AsJson = False, debug: Debug = False) -> None:
    """Check every block's bytes and key; exits with 1 where something is wrong."""
    with _reported(debug), _opened_bank(bank, namespace) as store:
        from qvpic_rag.progress import bar

        with bar("Checking", "blocks", enabled=not as_json) as update:
            problems = store.verify(progress=lambda done, total: update(done, total, ""))
        if as_json:
            _print_json([problem.to_dict() for problem in problems])
        else:
            for problem in problems:
                _out.print(str(problem))
            _out.print(f"{len(problems)} problem(s) found.")
        if problems:
            raise typer.Exit(1)


@bank_app.command()
def gc(
    bank: BankOption,
    namespace: Namespace = "default",
    grace: Annotated[float, typer.Option(help="Keep what is younger than this many seconds.", min=0)] = 3600,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Remove blocks that no document uses any more.

    Young ones are kept, because another process may be about to use what it has just compiled.
    """
    with _reported(debug), _opened_bank(bank, namespace) as store:
        result = store.gc(dry_run=dry_run, grace_s=grace)
        if as_json:
            _print_json(result.to_dict())
        else:
            _out.print(("Would remove " if dry_run else "Removed ") + str(result))


@bank_app.command()
def remove(
    sources: Annotated[list[str], typer.Argument(help="Documents as they were ingested.", metavar="SOURCE...")],
    bank: BankOption,
    namespace: Namespace = "default",
    debug: Debug = False,
) -> None:
    """Remove documents; their blocks are freed by `qvpic bank gc`."""
    with _reported(debug), _opened_bank(bank, namespace) as store:
        known = {document.source for document in store.documents()}
        missing = [source for source in sources if source not in known]
        if missing:
            raise InputError(f"The bank holds no document {missing[0]!r}; see: qvpic bank stats --bank {bank}")
        for source in sources:
            store.remove_document(source)
        _out.print(f"{len(sources)} document(s) removed.")


def _opened_bank(bank: Path, namespace: str) -> Bank:
    from qvpic_rag.bank import Bank

    return Bank.open(bank, namespace=namespace)


def _print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")
