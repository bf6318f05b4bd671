"""The bank: compiled pages, their embeddings and the documents they belong to, in one folder.

::

    DIR/bank.sqlite                                 recipe, documents, pages with text and embedding, block rows
    DIR/blocks/<2 hex digits>/<digest>.safetensors  one file per block, named by its key's digest
    DIR/index/<hex>.faiss                           search index per namespace, can be rebuilt from the database

Order of writes of a block: temporary file in the block's own folder, flush, fsync; then, holding the database's write
lock, rename, fsync of the folder, row, commit. Whatever is cut short leaves a temporary file or a file without a row,
which nothing reads and ``gc`` removes. A row without a file is a miss, and so compiled again.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qvpic_rag.bank import blockrows, catalogue, failures, upkeep
from qvpic_rag.bank.blockfile import check_file, load_block
from qvpic_rag.bank.blockrows import BlockRow
from qvpic_rag.bank.files import BlockFiles
from qvpic_rag.bank.folder import check_free, check_namespace, find_folder, holds_bank, prepare_folder
from qvpic_rag.bank.index_db import Database, EmptyBankError
from qvpic_rag.bank.recipe import check_recipe, decode_recipe, encode_recipe
from qvpic_rag.bank.records import BankStats, GcResult, Problem, StoredDocument, StoredPage
from qvpic_rag.errors import BankMismatchError, CorruptBlockError, MissingBlockError
from qvpic_rag.records import BlockKey, KVBlock, Page, Recipe

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Bank"]

GRACE_S = 3600.0


class Bank:
    """A bank in one folder, seen through one namespace; made by :meth:`create` or :meth:`open`.

    One object may be used from several threads, and several processes may read and write one bank at the same time.
    Every method raises ``BankError`` when the disk is full, access is denied, the database is locked for a minute, or
    the bank was closed; earlier content stays readable then. In a folder without write permission a bank can be read.

    Attributes
    ----------
    path : Path
        The folder.
    recipe : Recipe
        What everything in it was made with.
    namespace : str
        The tenant whose documents, pages and blocks this object sees and changes.
    """

    def __init__(self, path: Path, recipe: Recipe, namespace: str, database: Database) -> None:
        self.path = path
        self.recipe = recipe
        self.namespace = namespace
        self._database = database
        self._files = BlockFiles(path / "blocks")

    @classmethod
    def create(cls, path: str | os.PathLike[str], recipe: Recipe, namespace: str = "default") -> Bank:
        """Make a bank in a new or empty folder; an existing bank is opened if it has this recipe.

        Raises
        ------
        BankNotFoundError
            ``path`` is a file, or a folder that holds other things.
        BankMismatchError
            The existing bank has another recipe; names the first differing field.
        ConfigError
            ``namespace`` is not a string of 1 to 255 characters.
        """
        folder = Path(path)
        check_namespace(namespace)
        encoded = encode_recipe(recipe)
        decode_recipe(encoded, folder)
        prepare_folder(folder)
        Database.create(folder, encoded)
        bank = cls.open(folder, namespace)
        try:
            bank.check(recipe)
        except BaseException:
            bank.close()
            raise
        return bank

    @classmethod
    def open(cls, path: str | os.PathLike[str], namespace: str = "default") -> Bank:
        """Open an existing bank; a namespace that nothing was stored in yet is empty.

        Raises
        ------
        BankNotFoundError
            There is no bank at ``path``, or its database is empty, damaged or another program's.
        BankError
            The bank was written by a newer version, or lies on a file system that cannot hold it.
        ConfigError
            ``namespace`` is not a string of 1 to 255 characters.
        """
        folder = Path(path)
        check_namespace(namespace)
        find_folder(folder)
        database = Database(folder)
        try:
            database.check_format()
            with database.read() as connection:
                row = connection.execute("SELECT json FROM recipe").fetchone()
            bank = cls(folder, decode_recipe(row[0] if row else "", folder), namespace, database)
            if database.writable:
                with failures.guard(folder):
                    bank.index_path.parent.mkdir(exist_ok=True)
        except BaseException:
            database.close()
            raise
        return bank

    @classmethod
    def recipe_at(cls, path: str | os.PathLike[str]) -> Recipe | None:
        """The recipe of the bank at ``path``; None where there is none and one can be made.

        Raises
        ------
        BankNotFoundError
            Other things are at ``path``, or a damaged bank.
        """
        folder = Path(path)
        if not holds_bank(folder):
            check_free(folder)
            return None
        try:
            with cls.open(folder) as bank:
                return bank.recipe
        except EmptyBankError:  # its creation was cut short, or goes on in another process
            return None

    @property
    def index_path(self) -> Path:
        """Where this namespace's search index belongs; its folder exists unless the bank is read-only."""
        name = hashlib.sha256(self.namespace.encode("utf-8")).hexdigest()[:32]
        return self.path / "index" / f"{name}.faiss"

    @property
    def generation(self) -> int:
        """Grows with every committed change of this namespace's pages, whichever process made it.

        It grows by random steps, so that two banks with different histories, such as a bank and its restored backup,
        do not come to the same number: what is kept under a number belongs to these very pages.

        Read it before :meth:`vectors` when both are kept: a change in between then makes the copy look too old, which
        costs a reload, and never too new.
        """
        with self._database.read() as connection:
            return catalogue.generation(connection, self.namespace, self.path)

    def check(self, recipe: Recipe) -> None:
        """Raise ``BankMismatchError`` naming the first field in which the bank was made otherwise than ``recipe``.

        Names and paths of the models do not matter when their fingerprints agree.
        """
        check_recipe(self.recipe, recipe, self.path)

    def has_block(self, key: BlockKey) -> bool:
        """Whether the block is stored, without reading it; always False for a key that is not of this bank."""
        with self._database.read() as connection:
            return self._stored(connection, key)

    def keep_blocks(self, keys: Sequence[BlockKey]) -> list[bool]:
        """Which of these blocks are stored, as :meth:`has_block` tells; their grace period (:meth:`gc`) starts anew.

        So no other process removes them before the caller stores the document that they belong to. In a bank that
        cannot be written this only tells.
        """
        if not keys:
            return []
        writable = self._database.writable
        with self._database.write() if writable else self._database.read() as connection:
            stored = [self._stored(connection, key) for key in keys]
            for key, found in zip(keys, stored, strict=True):
                if found and writable:
                    blockrows.touch(connection, key.digest, time.time())
        return stored

    def _stored(self, connection: sqlite3.Connection, key: BlockKey) -> bool:
        if self._foreign_field(key) is not None or blockrows.find(connection, key.digest) is None:
            return False
        return self._files.exists(key.digest)

    def put_block(self, block: KVBlock) -> None:
        """Store a block; on return it survives a power cut. A block that is stored and sound stays as it is.

        Raises
        ------
        BankMismatchError
            The block's key or its tensors' dtype is not of this bank; names the field.
        CompileError
            The block's tensors do not fit together.
        """
        self._check_key(block.key)
        digest = block.key.digest
        if not self._database.writable:
            raise failures.read_only(self.path)
        if self._kept(digest):
            return
        with failures.guard(self.path):
            written = self._files.write(block)
        try:
            with self._database.write() as connection:
                # Another process may have stored it meanwhile. A sound file is never replaced, so that no reader meets
                # one writer's file with the other's checksum: two compilations may differ in the last bit.
                row = blockrows.find(connection, digest)
                if row is not None and self._sound(row):
                    return
                self._files.publish(written, digest)
                owner = catalogue.namespace_id(connection, self.namespace)
                blockrows.insert(connection, owner, block.key, written.nbytes, written.checksum, time.time())
        finally:
            with failures.guard(self.path):
                written.path.unlink(missing_ok=True)

    def _kept(self, digest: str) -> bool:
        """Whether a sound block is stored; if so, its grace period starts anew."""
        with self._database.read() as connection:
            row = blockrows.find(connection, digest)
        if row is None or not self._sound(row):
            return False
        with self._database.write() as connection:
            blockrows.touch(connection, digest, time.time())
            return blockrows.find(connection, digest) is not None

    def _sound(self, row: BlockRow) -> bool:
        try:
            check_file(self._files.path(row.digest), row.nbytes, row.checksum)
        except (CorruptBlockError, FileNotFoundError):
            return False
        except OSError as error:
            raise failures.os_failure(error, self.path) from error
        return True

    def get_block(self, key: BlockKey) -> KVBlock:
        """A stored block, checked; its tensors are views of the file that cannot alter it.

        Nothing is removed when it is damaged: :meth:`put_block` of the same key replaces it.

        Raises
        ------
        MissingBlockError
            It is not stored, or its file is gone.
        CorruptBlockError
            The file is not what was written.
        BankMismatchError
            The key is not of this bank, or the file holds another key's block; names the field.
        """
        self._check_key(key)
        with self._database.read() as connection:
            row = blockrows.find(connection, key.digest)
        while row is not None:
            try:
                return load_block(self._files.path(key.digest), key, row.nbytes, row.checksum)
            except FileNotFoundError:
                break
            except CorruptBlockError as error:
                damage = error
            except OSError as error:
                raise failures.os_failure(error, self.path) from error
            with self._database.read() as connection:
                found = blockrows.find(connection, key.digest)
            if found is not None and found.checksum == row.checksum:
                raise CorruptBlockError(
                    f"The stored block of page {key.page[:12]} at {key.dpi} DPI is damaged, {damage}: compile and "
                    f"store it again, and look for more damage with `qvpic bank verify --bank {self.path}`."
                ) from damage
            row = found  # replaced by another process between the two reads
        raise MissingBlockError(
            f"The block of page {key.page[:12]} at {key.dpi} DPI is not in the bank at {str(self.path)!r}: compile and "
            f"store it again, for example by ingesting its document again."
        )

    def _foreign_field(self, key: BlockKey) -> str | None:
        """The first field in which a key is not one of this bank's."""
        dpi = key.dpi if key.dpi in self.recipe.dpis else self.recipe.dpis[0]
        differing = key.differing(self.recipe.block_key(key.page, dpi, self.namespace))
        return differing[0] if differing else None

    def _check_key(self, key: BlockKey) -> None:
        field = self._foreign_field(key)
        if field is None:
            return
        own = self.recipe.block_key(key.page, key.dpi, self.namespace)
        held = list(self.recipe.dpis) if field == "dpi" else getattr(own, field)
        raise BankMismatchError(
            f"The bank at {str(self.path)!r} holds blocks with {field} {str(held)[:24]!r}, asked for is "
            f"{str(getattr(key, field))[:24]!r}: use the bank's own {field}, or another bank.",
            field=field,
        )

    def document_digest(self, source: str) -> str | None:
        """The digest the document was stored with, None when it is not stored."""
        with self._database.read() as connection:
            return catalogue.document_digest(connection, self.namespace, source)

    def put_document(
        self,
        source: str,
        digest: str,
        pages: Sequence[Page],
        vectors: npt.ArrayLike,
        metadata: Mapping[str, Any],
    ) -> None:
        """Store a document with its pages and their embeddings ``[pages, dimension]``, in place of what it was before.

        All of it becomes visible at once. Pages it shares with its earlier self or with other documents keep their
        ids. Store the pages' blocks first, so that no page is ever found without them.

        Raises
        ------
        DocumentError
            Pages and embeddings do not fit together, or the metadata is not JSON.
        BankMismatchError
            The embeddings have another length than the bank's (field ``dimension``).
        """
        checked = catalogue.check_document(source, pages, vectors, metadata, self.recipe.dimension)
        with self._database.write() as connection:
            catalogue.put_document(connection, self.namespace, source, digest, pages, *checked)

    def remove_document(self, source: str) -> bool:
        """Remove a document, and its pages unless another one holds them; False when it is not stored.

        The blocks stay until :meth:`gc`, so that storing the document again soon compiles nothing.
        """
        with self._database.write() as connection:
            return catalogue.remove_document(connection, self.namespace, source)

    def documents(self) -> list[StoredDocument]:
        """All documents, in the order in which they were first stored."""
        with self._database.read() as connection:
            return catalogue.documents(connection, self.namespace)

    def document_pages(self, source: str) -> list[Page]:
        """The pages of a document in their order; none when it is not stored."""
        with self._database.read() as connection:
            return catalogue.document_pages(connection, self.namespace, source, self.path)

    def pages(self, ids: Sequence[int] | None = None) -> list[StoredPage]:
        """The pages with these ids in their order, without those that are not stored (any more); None: all, by id.

        A page that several documents share comes with the source and number it has in the one stored first.
        """
        with self._database.read() as connection:
            return catalogue.pages(connection, self.namespace, ids, self.path)

    def find_page(self, digest: str) -> Page | None:
        """The page with this digest (:attr:`Page.digest`), as :meth:`pages` gives it; None when it is not stored."""
        with self._database.read() as connection:
            return catalogue.find_page(connection, self.namespace, digest, self.path)

    def embeddings(self, digests: Sequence[str]) -> dict[str, npt.NDArray[np.float32]]:
        """Embeddings ``[dimension]`` of the pages with these digests; those that are not stored are left out."""
        with self._database.read() as connection:
            return catalogue.embeddings(connection, self.namespace, digests, self.recipe.dimension, self.path)

    def page_count(self) -> int:
        """Number of pages; a shared page counts once."""
        with self._database.read() as connection:
            return catalogue.page_count(connection, self.namespace)

    def vectors(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Ids int64 ``[pages]``, ascending, and embeddings float32 ``[pages, dimension]`` of all pages."""
        with self._database.read() as connection:
            return catalogue.vectors(connection, self.namespace, self.recipe.dimension, self.path)

    def stats(self) -> BankStats:
        """What this namespace holds; reads no block."""
        with failures.guard(self.path):
            return upkeep.statistics(self._database, self.recipe, self.namespace)

    def verify(self, *, progress: Callable[[int, int], None] | None = None, grace_s: float = GRACE_S) -> list[Problem]:
        """Check the whole bank, all namespaces: database, every block's file, every page, leftover files.

        Parameters
        ----------
        progress : callable, optional
            Called with blocks and pages checked so far, and their total.
        grace_s : float
            Leftover files younger than this many seconds may be of a writer at work and are no problem.
        """
        with failures.guard(self.path):
            return list(upkeep.verify(self._database, self._files, self.recipe, grace_s, progress))

    def gc(self, *, dry_run: bool = False, grace_s: float = GRACE_S) -> GcResult:
        """Remove, in all namespaces, blocks that no document's page needs, and what stopped writers left.

        Parameters
        ----------
        dry_run : bool
            Count only.
        grace_s : float
            Blocks put, and files written, less than this many seconds ago stay: another process may be about to store
            the document that they belong to. With 0, let no other process ingest meanwhile.
        """
        with failures.guard(self.path):
            return upkeep.collect(self._database, self._files, grace_s, dry_run)

    def close(self) -> None:
        """Close the database; blocks that were read stay usable."""
        self._database.close()

    def __enter__(self) -> Bank:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
