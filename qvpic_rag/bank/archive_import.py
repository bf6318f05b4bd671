"""Importing an archive into a bank, which is made where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from qvpic_rag.bank import failures
from qvpic_rag.bank.archive import ArchivedDocument, ArchiveReport
from qvpic_rag.bank.archive_read import ArchivedBlock, ArchiveReader
from qvpic_rag.bank.blockfile import load_block
from qvpic_rag.bank.folder import check_namespace
from qvpic_rag.bank.store import Bank
from qvpic_rag.errors import CorruptBlockError, MissingBlockError

__all__ = ["import_archive"]


def import_archive(
    archive: Path,
    bank_folder: Path,
    namespace: str = "default",
    progress: Callable[[int, int, str], None] | None = None,
) -> ArchiveReport:
    """Store the documents of an archive in a bank, in any namespace; the bank is made where there is none.

    The whole archive is read and checked before anything is stored, because one that was cut off in transfer would
    else leave a bank that looks complete. Documents of the same source are replaced; each becomes visible once all its
    blocks are stored, and an import that was interrupted goes on when it is run again.

    Parameters
    ----------
    archive : Path
        What :func:`~qvpic_rag.bank.archive_write.export_bank` wrote. The checks stand against accidents and against
        files made to do harm to the machine; what its pages say is up to whoever made it.
    bank_folder : Path
        A bank with the archive's recipe, or a new or empty folder.
    namespace : str
        Where the documents go, whatever namespace they came from.
    progress : callable, optional
        Called with blocks done, blocks to do (each is first checked, then stored), and what is being done.

    Raises
    ------
    ArchiveError
        The archive cannot be read or is not as it was written; the bank is as it was before.
    BankMismatchError
        The bank has another recipe than the archive; names the first differing field.
    BankNotFoundError
        ``bank_folder`` is a file, or a folder that holds other things.
    BankError
        The bank cannot be written, or its disk is full.
    ConfigError
        ``namespace`` is not a string of 1 to 255 characters.
    """
    folder = Path(bank_folder)
    check_namespace(namespace)
    report = progress or (lambda done, total, what: None)
    with ArchiveReader(Path(archive)) as reader:
        recipe, total = reader.manifest.recipe, reader.manifest.blocks
        existing = Bank.recipe_at(folder) is not None
        if existing:  # refused now, and not after gigabytes were read
            with Bank.open(folder, namespace) as bank:
                bank.check(recipe)
        reader.check(lambda done: report(done, 2 * total, "checking"))
        with Bank.open(folder, namespace) if existing else Bank.create(folder, recipe, namespace) as bank:
            bank.check(recipe)
            run = _Import(bank, reader, lambda done: report(total + done, 2 * total, "storing"))
            for document, digests in reader.documents():
                run.document(document, digests)
        return ArchiveReport(
            path=str(archive),
            namespace=namespace,
            documents=reader.manifest.documents,
            pages=reader.manifest.pages,
            blocks=total,
            bytes=reader.nbytes,
            added=tuple(run.added),
            replaced=tuple(run.replaced),
            unchanged=tuple(run.unchanged),
            stored=run.stored,
        )


@dataclass
class _Import:
    """What has been stored so far."""

    bank: Bank
    reader: ArchiveReader
    progress: Callable[[int], None]
    added: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    stored: int = 0
    done: int = 0
    pages: set[int] = field(default_factory=set)

    def document(self, document: ArchivedDocument, digests: list[str]) -> None:
        """Store a document after its blocks, which no other process then collects for lack of a document."""
        for page in document.pages:
            if page not in self.pages:
                self.pages.add(page)
                for block in self.reader.blocks[page]:
                    self.block(block)
                    self.done += 1
                    self.progress(self.done)
        self.renew(document)
        outcome = self.outcome(document, digests)
        if outcome is not self.unchanged:
            found = [self.reader.page(page) for page in document.pages]
            pages = [entry.page(document.source, number) for number, entry in enumerate(found)]
            vectors = [entry.vector for entry in found]
            self.bank.put_document(document.source, document.digest, pages, vectors, document.metadata)
        outcome.append(document.source)

    def outcome(self, document: ArchivedDocument, digests: list[str]) -> list[str]:
        """Which list the document belongs to."""
        known = self.bank.document_digest(document.source)
        if known is None:
            return self.added
        same = known == document.digest
        same = same and [page.digest for page in self.bank.document_pages(document.source)] == digests
        return self.unchanged if same else self.replaced

    def block(self, block: ArchivedBlock) -> None:
        """Store a block under its key in this bank, unless a sound one is there."""
        key = replace(block.key, namespace=self.bank.namespace)
        try:
            self.bank.blocks.read(key)  # not a use of it
        except (MissingBlockError, CorruptBlockError):
            pass
        else:
            return
        with self.extracted(block) as path:
            try:
                found = load_block(path, block.key, block.nbytes, block.checksum)
            except CorruptBlockError as error:
                self.reader.refuse(f"it changed while it was read, {error}", error)
            self.bank.put_block(replace(found, key=key))
        self.stored += 1

    def renew(self, document: ArchivedDocument) -> None:
        """A long document may have outlived its first blocks' grace period: what a collection took comes again."""
        blocks = [block for page in dict.fromkeys(document.pages) for block in self.reader.blocks[page]]
        kept = self.bank.keep_blocks([replace(block.key, namespace=self.bank.namespace) for block in blocks])
        for block, found in zip(blocks, kept, strict=True):
            key = replace(block.key, namespace=self.bank.namespace)
            if not found and not self.bank.blocks.was_evicted(key):
                self.block(block)

    @contextmanager
    def extracted(self, block: ArchivedBlock) -> Iterator[Path]:
        """The block's file under a temporary name, which counts against the bank's limit like any other."""
        blocks, digest = self.bank.blocks, block.key.digest
        with (
            failures.guard(self.bank.path),
            blocks.room.reserved(self.bank.namespace, digest, block.nbytes) as path,
        ):
            blocks.files.prepare(digest)
            with path.open("xb") as file:
                for piece in self.reader.pieces(block):
                    file.write(piece)
            yield path
