"""``qvpic bank``: look into a bank, check and clean it, and take it to another machine."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qvpic_rag.config import byte_count
from qvpic_rag.console import counted, err, print_json, print_stats, reported, say
from qvpic_rag.errors import InputError

if TYPE_CHECKING:
    from qvpic_rag.bank import ArchiveReport, Bank, StoredDocument

__all__ = ["AsJson", "BankOption", "Debug", "Namespace", "bank_app", "opened_bank"]

bank_app = typer.Typer(help="Look after a bank.", no_args_is_help=True, rich_markup_mode=None)

BankOption = Annotated[Path, typer.Option("--bank", help="Folder of the bank.", show_default=False)]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Namespace = Annotated[str, typer.Option("--namespace", help="Namespace of the documents.")]


def opened_bank(bank: Path, namespace: str) -> Bank:
    """The bank that a command works on."""
    from qvpic_rag.bank import Bank

    return Bank.open(bank, namespace=namespace)


@bank_app.command()
def stats(bank: BankOption, namespace: Namespace = "default", as_json: AsJson = False, debug: Debug = False) -> None:
    """What a bank holds and what it was made with."""
    with reported(debug), opened_bank(bank, namespace) as store:
        found = store.stats()
        if as_json:
            print_json({**found.to_dict(), "disk_bytes": store.disk_bytes()})
        else:
            print_stats(found, store.disk_bytes())


@bank_app.command("list")
def list_documents(
    bank: BankOption, namespace: Namespace = "default", as_json: AsJson = False, debug: Debug = False
) -> None:
    """The documents of a bank, by the names that `remove` takes."""
    with reported(debug), opened_bank(bank, namespace) as store:
        documents = store.documents()
        if as_json:
            print_json([{"source": document.source, "pages": document.pages} for document in documents])
        else:
            for document in documents:
                say(f"{document.source}  ({counted(document.pages, 'page')})")


@bank_app.command()
def verify(bank: BankOption, namespace: Namespace = "default", as_json: AsJson = False, debug: Debug = False) -> None:
    """Check the bytes and keys of all blocks.

    Exits with 1 where something is wrong. Damaged blocks are set aside; ingesting their documents again, or a question
    that needs them, compiles them anew.
    """
    with reported(debug), opened_bank(bank, namespace) as store:
        from qvpic_rag.progress import bar

        checked = 0

        def count(done: int, total: int) -> None:
            nonlocal checked
            checked = done
            update(done, total, "")

        with bar("Checking", "blocks", enabled=not as_json) as update:
            problems = store.verify(progress=count)
        if as_json:
            print_json([problem.to_dict() for problem in problems])
        else:
            for problem in problems:
                say(str(problem))
            say(f"{checked} blocks and pages checked, {counted(len(problems), 'problem')} found.")
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
    with reported(debug), opened_bank(bank, namespace) as store:
        result = store.gc(dry_run=dry_run, grace_s=grace)
        if as_json:
            print_json(result.to_dict())
        else:
            say(("Would remove " if dry_run else "Removed ") + str(result))
            if grace:
                err.print(f"What is younger than {grace:.0f} s was kept; --grace 0 removes it too.")


@bank_app.command()
def limit(
    bank: BankOption,
    max_bytes: Annotated[
        str | None, typer.Option("--max-bytes", help="Of all block files, such as 20GB or 500MiB; none: no limit.")
    ] = None,
    quota: Annotated[
        str | None, typer.Option("--quota", help="Of the namespace's block files, kept for it alone; none: no quota.")
    ] = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Bound the bytes of a bank or of a namespace, and show the bounds.

    What is too much is evicted at once, first what is cheap to compile and has not been used for long. Documents stay;
    a question that needs an evicted block compiles it again.
    """
    with reported(debug), opened_bank(bank, namespace) as store:
        before = sum(held for _, held, _ in store.holdings())
        if max_bytes is not None:
            store.set_max_bytes(byte_count(max_bytes))
        if quota is not None:
            store.set_quota(byte_count(quota))
        total, own = store.limits()
        holdings = store.holdings()
        evicted = max(0, before - sum(held for _, held, _ in holdings))
        if as_json:
            rows = [{"namespace": name, "bytes": held, "quota": kept} for name, held, kept in holdings]
            print_json({"max_bytes": total, "quota": own, "evicted_bytes": evicted, "namespaces": rows})
            return
        say(f"bank  {_bytes(total)}")
        for name, held, kept in holdings:
            say(f"  namespace {name!r} holds {held:,} bytes; quota  {_bytes(kept)}")
        if evicted:
            say(f"{evicted:,} bytes were evicted.")


def _bytes(number: int | None) -> str:
    return "no limit" if number is None else f"{number:,} bytes"


@bank_app.command()
def remove(
    sources: Annotated[list[str], typer.Argument(help="Documents as they were ingested.", metavar="SOURCE")],
    bank: BankOption,
    namespace: Namespace = "default",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Remove documents.

    The space of their blocks is freed by `qvpic bank gc`.
    """
    with reported(debug), opened_bank(bank, namespace) as store:
        documents = _named(store, sources, "nothing was removed")
        for document in documents:
            store.remove_document(document.source)
        if as_json:
            pages = sum(document.pages for document in documents)
            print_json({"removed": [document.source for document in documents], "pages": pages})
        else:
            where = shlex.quote(str(bank))
            say(
                f"{counted(len(documents), 'document')} removed; free their space with: qvpic bank gc --bank {where} "
                f"(what was stored or used within the last hour stays; --grace 0 frees it now)"
            )


@bank_app.command("export")
def export_documents(
    file: Annotated[Path, typer.Argument(help="The archive to write, a tar file.", metavar="FILE")],
    bank: BankOption,
    sources: Annotated[
        list[str] | None, typer.Argument(help="Documents as they were ingested; by default all.", metavar="SOURCE")
    ] = None,
    namespace: Namespace = "default",
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Write documents and their blocks into one file.

    Another machine takes it with `qvpic bank import`, and compiles nothing.
    """
    with reported(debug), opened_bank(bank, namespace) as store:
        from qvpic_rag.bank import export_bank
        from qvpic_rag.progress import bar

        names = [each.source for each in _named(store, sources, "nothing was exported")] if sources else None
        with bar("Exporting", "blocks", enabled=not as_json) as update:
            report = export_bank(store, file, names, update, force=force)
        if as_json:
            print_json(report.to_dict())
        else:
            say(f"{_held(report)} written to {file}, {report.bytes / 1e6:.1f} MB.")


@bank_app.command("import")
def import_documents(
    file: Annotated[Path, typer.Argument(help="What `qvpic bank export` wrote.", metavar="FILE")],
    bank: BankOption,
    namespace: Namespace = "default",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Store what another machine exported.

    The bank is made where there is none. The whole file is checked first; documents of the same names are replaced.
    """
    with reported(debug):
        from qvpic_rag.bank import import_archive
        from qvpic_rag.progress import bar

        with bar("Importing", "blocks", enabled=not as_json) as update:
            report = import_archive(file, bank, namespace, update)
        if as_json:
            print_json(report.to_dict())
        else:
            names = ("added", "replaced", "unchanged")
            counts = ", ".join(f"{count} {name}" for name in names if (count := len(getattr(report, name))))
            say(f"{counts}: {_held(report)}, {report.stored} of them new here, {report.bytes / 1e6:.1f} MB.")


def _held(report: ArchiveReport) -> str:
    """What an archive holds."""
    counts = (report.documents, "document"), (report.pages, "page"), (report.blocks, "block")
    return ", ".join(counted(*count) for count in counts)


def _named(store: Bank, sources: Sequence[str], otherwise: str) -> list[StoredDocument]:
    """The documents of these names, each once; ``otherwise`` is what an unknown name means for the command."""
    known = {document.source: document for document in store.documents()}
    # Paths are stored without ./ and the like; other names are taken as they are.
    names = dict.fromkeys(name if name in known else Path(name).as_posix() for name in sources)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            listing = f"see: qvpic bank list --bank {shlex.quote(str(store.path))}"
            hint = f"did you mean {near[0]!r}?" if near else listing
            raise InputError(f"The bank holds no document {name!r}, and {otherwise}; {hint}")
    return [known[name] for name in names]
