"""Exporting documents of a bank as an archive."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import xxhash

from qvpic_rag.bank import archive
from qvpic_rag.bank.archive import ArchivedDocument, ArchivedPage, ArchiveReport, Manifest
from qvpic_rag.bank.blockfile import encoded, sync_folder
from qvpic_rag.bank.records import StoredDocument
from qvpic_rag.bank.store import Bank
from qvpic_rag.bank.writers import TEMPORARY
from qvpic_rag.errors import (
    ArchiveError,
    BankError,
    BankMismatchError,
    BankNotFoundError,
    CorruptBlockError,
    DocumentError,
    MissingBlockError,
)
from qvpic_rag.records import BlockKey

if TYPE_CHECKING:
    pass

__all__ = ["export_bank"]


def export_bank(
    bank: Bank,
    target: Path,
    sources: Sequence[str] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    *,
    force: bool = False,
) -> ArchiveReport:
    """Write documents of the bank's namespace, with their pages and blocks, into one file.

    It gets its name when it is complete and on the disk. The same documents give the same bytes.

    Parameters
    ----------
    bank : Bank
        Seen through the namespace to export; read only.
    target : Path
        The file to write.
    sources : Sequence[str], optional
        Which documents; by default all of the namespace.
    progress : callable, optional
        Called with blocks written, their total, and "writing".
    force : bool
        Replace an existing file.

    Raises
    ------
    ArchiveError
        ``target`` exists, or what is to be written does not fit the format.
    BankNotFoundError
        The namespace holds no documents.
    DocumentError
        A source is not stored.
    BankError
        Blocks are missing or damaged, the bank changed meanwhile, or the file cannot be written; none is left then.
    """
    path = Path(target)
    _check_target(path, force)
    plan = _Plan(bank, sources)
    with _temporary(path) as (file, temporary):
        _write(_Writer(file, path), plan, progress or (lambda done, total, what: None))
        file.flush()
        os.fsync(file.fileno())
        nbytes = file.tell()
        _check_target(path, force)
        temporary.replace(path)
        sync_folder(path.parent)
    manifest = plan.manifest
    return ArchiveReport(
        path=str(target),
        namespace=bank.namespace,
        documents=manifest.documents,
        pages=manifest.pages,
        blocks=manifest.blocks,
        bytes=nbytes,
    )


def _check_target(path: Path, force: bool) -> None:
    if not path.parent.is_dir():
        raise ArchiveError(f"There is no folder {str(path.parent)!r} for the archive: make it or choose another place.")
    if not os.path.lexists(path):
        return
    if not path.is_file():
        raise ArchiveError(f"{str(path)!r} is there and is no file: choose another name for the archive.")
    if not force:
        raise ArchiveError(f"{str(path)!r} exists: choose another name for the archive, or replace it with --force.")


def _chosen(bank: Bank, sources: Sequence[str] | None) -> list[StoredDocument]:
    """The documents in the bank's order, whatever the order of the sources."""
    documents = bank.documents()
    known = {document.source for document in documents}
    for source in sources or ():
        if source not in known:
            raise DocumentError(
                f"The bank at {str(bank.path)!r} holds no document {source!r}: `qvpic bank list` names those it holds."
            )
    wanted = known if sources is None else set(sources)
    chosen = [document for document in documents if document.source in wanted]
    if not chosen:
        raise BankNotFoundError(
            f"There is nothing to export from namespace {bank.namespace!r} of the bank at {str(bank.path)!r}: name a "
            f"namespace and documents that it holds."
        )
    return chosen


@contextmanager
def _temporary(path: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """A new file beside the target, gone when the block fails; errors of the disk are one sentence."""
    temporary = path.with_name(f".qvpic-{os.getpid()}-{secrets.token_hex(8)}{TEMPORARY}")
    try:
        with temporary.open("xb") as file:
            yield file, temporary
    except OSError as error:
        raise BankError(
            f"The archive {str(path)!r} cannot be written ({error.strerror or type(error).__name__}): free some space "
            f"or permit writing there, or choose another place."
        ) from error
    finally:
        with contextlib.suppress(OSError):  # the first failure is the one to report
            temporary.unlink(missing_ok=True)


class _Writer:
    """Members in their order, with their checksums.

    A member's size is known once it is written, so its header is written last, which a file permits.
    """

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self.file = file
        self.path = path
        self.checksums: dict[str, str] = {}
        self.nbytes = 0

    def member(self, name: str, parts: Iterator[bytes | memoryview]) -> None:
        """Write a member that consists of these parts."""
        start, size, hasher = self.file.tell(), 0, xxhash.xxh3_128()
        self.file.write(bytes(archive.SECTOR))
        for part in parts:
            # Hashed and written piece by piece, so that the second use finds the bytes in the processor's cache.
            for at in range(0, len(part), archive.CHUNK):
                piece = part[at : at + archive.CHUNK]
                hasher.update(piece)
                self.file.write(piece)
            size += len(part)
        self.file.write(archive.padding(size))
        end = self.file.tell()
        if size > archive.LARGEST_MEMBER:
            raise self.too_much(f"{name} has {size} bytes")
        self.file.seek(start)
        self.file.write(archive.member_header(name, size))
        self.file.seek(end)
        self.checksums[name] = hasher.hexdigest()
        self.nbytes += size

    def entries(self, name: str, lines: Iterator[bytes]) -> None:
        """Write a member of lines, each of which a reader must be able to hold."""

        def checked() -> Iterator[bytes]:
            for number, line in enumerate(lines, start=1):
                if len(line) > archive.LONGEST_LINE:
                    raise self.too_much(f"entry {number} of {name} has {len(line)} bytes")
                yield line

        self.member(name, checked())

    def end(self) -> None:
        """Write what comes last."""
        self.member(archive.END, iter([archive.end_of(self.checksums, self.nbytes)]))
        self.file.write(archive.TAIL)

    def too_much(self, what: str) -> ArchiveError:
        """The error of what the format cannot hold."""
        return ArchiveError(
            f"The archive {str(self.path)!r} cannot be written, {what}: export fewer or smaller documents at a time."
        )


class _Plan:
    """Which pages there are, each once, in the order in which documents name them."""

    def __init__(self, bank: Bank, sources: Sequence[str] | None) -> None:
        self.bank = bank
        self.generation = bank.generation  # first, so that no change after it goes unnoticed
        documents = _chosen(bank, sources)
        self.places: dict[str, int] = {}
        self.documents = [self._placed(document) for document in documents]
        pages = len(self.places)
        self.manifest = Manifest(bank.recipe, bank.namespace, len(documents), pages, pages * len(set(bank.recipe.dpis)))

    def _placed(self, document: StoredDocument) -> ArchivedDocument:
        pages = self.bank.document_pages(document.source)
        places = [self.places.setdefault(page.digest, len(self.places)) for page in pages]
        return ArchivedDocument(document.source, document.digest, document.metadata, places)

    def blocks(self) -> Iterator[BlockKey]:
        """Every block's key, in the archive's order."""
        for digest in self.places:
            yield from self.manifest.keys(digest)

    def pages(self) -> Iterator[bytes]:
        """A line per page, read one at a time."""
        for digest in self.places:
            page, vectors = self.bank.find_page(digest), self.bank.embeddings([digest])
            if page is None or digest not in vectors:
                raise self.changed()
            yield ArchivedPage(page.lines, page.text, vectors[digest]).encode()

    def changed(self) -> BankError:
        """Documents, pages and blocks would not belong together."""
        return BankError(
            f"Another process changed the bank at {str(self.bank.path)!r} during the export: run the same command "
            f"again when that process is done."
        )


def _write(writer: _Writer, plan: _Plan, progress: Callable[[int, int, str], None]) -> None:
    missing = sum(not plan.bank.has_block(key) for key in plan.blocks())  # told before gigabytes are written
    total, where = plan.manifest.blocks, str(plan.bank.path)
    if missing:
        raise BankError(
            f"{missing} of the {total} blocks to export are not in the bank at {where!r}, lost or evicted for room: "
            f"lift its limit if it has one (`qvpic bank limit --max-bytes none`), ingest the documents again with "
            f"`qvpic ingest`, which compiles them, and run the same command again."
        )
    writer.entries(archive.HEAD, iter([plan.manifest.encode()]))
    writer.entries(archive.PAGES, plan.pages())
    writer.entries(archive.DOCUMENTS, (document.encode() for document in plan.documents))
    if plan.bank.generation != plan.generation:
        raise plan.changed()
    damaged = 0
    for done, key in enumerate(plan.blocks(), start=1):
        try:
            block = plan.bank.get_block(key)
        except (MissingBlockError, CorruptBlockError, BankMismatchError):
            damaged += 1
        else:
            if not damaged:  # else the rest is only counted
                writer.member(archive.block_name(key), encoded(block))
        progress(done, total, "writing")
    if damaged:
        raise BankError(
            f"{damaged} of the {total} blocks to export are damaged in the bank at {where!r}: `qvpic bank verify` "
            f"names them; compile them again with `qvpic bank remove`, `qvpic bank gc --grace 0` and `qvpic ingest`."
        )
    writer.end()
