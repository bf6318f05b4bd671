"""The bank: compiled pages, their embeddings and the documents they belong to, in one folder.

::

    DIR/bank.sqlite                                 recipe, documents, pages with text and embedding, block rows
    DIR/blocks/<2 hex digits>/<digest>.safetensors  one file per block, named by its key's digest
    DIR/index/<hex>.faiss                           search index per namespace, can be rebuilt from the database
    DIR/index/<hex>.signals/<name>                  one file per page for hybrid routing, can be made again, too
    DIR/writers/<hex>.lock                          held locked by each process that writes
How a block is stored is told in :mod:`qvpic_rag.bank.blocks`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qvpic_rag.bank import blockrows, catalogue, failures, limits, upkeep
from qvpic_rag.bank.blocks import BlockStore
from qvpic_rag.bank.folder import check_free, check_namespace, find_folder, holds_bank, index_path, prepare_folder
from qvpic_rag.bank.index_db import Database, EmptyBankError
from qvpic_rag.bank.loader import BlockLoader
from qvpic_rag.bank.recipe import check_recipe, decode_recipe, encode_recipe
from qvpic_rag.bank.records import BankStats, GcResult, Problem, StoredDocument, StoredPage
from qvpic_rag.bank.tiers import Tiers
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
    blocks : BlockStore
        Its blocks, with what only engines need: claims, evictions, tiers.
    """

    def __init__(self, path: Path, recipe: Recipe, namespace: str, database: Database, tiers: Tiers) -> None:
        self.path = path
        self.recipe = recipe
        self.namespace = namespace
        self._database = database
        self.blocks = BlockStore(database, recipe, namespace, tiers)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        recipe: Recipe,
        namespace: str = "default",
        *,
        ram_bytes: int = 0,
        remote: str | None = None,
    ) -> Bank:
        """Make a bank in a new or empty folder; an existing bank is opened if it has this recipe.

        ``ram_bytes`` and ``remote`` are as for :meth:`open`.

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
        bank = cls.open(folder, namespace, ram_bytes=ram_bytes, remote=remote)
        try:
            bank.check(recipe)
        except BaseException:
            bank.close()
            raise
        return bank

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], namespace: str = "default", *, ram_bytes: int = 0, remote: str | None = None
    ) -> Bank:
        """Open an existing bank; a namespace that nothing was stored in yet is empty.

        Parameters
        ----------
        path : path
            The bank's folder.
        namespace : str
            The tenant.
        ram_bytes : int
            Bytes of blocks that this object keeps in memory, the ones used last.
        remote : str, optional
            URL of a remote tier that fsspec knows, such as ``s3://bucket/folder``: blocks that are put are uploaded in
            the background, and blocks that are not here are looked for there.

        Raises
        ------
        BankNotFoundError
            There is no bank at ``path``, or its database is empty, damaged or another program's.
        BankError
            The bank was written by a newer version, or lies on a file system that cannot hold it.
        ConfigError
            ``namespace`` is not a string of 1 to 255 characters, or ``remote`` is no URL of this kind.
        MissingDependencyError
            The package that serves the URL is not installed.
        """
        folder = Path(path)
        check_namespace(namespace)
        find_folder(folder)
        tiers = Tiers.of(ram_bytes, remote)
        database = Database(folder)
        try:
            database.check_format()
            with database.read() as connection:
                row = connection.execute("SELECT json FROM recipe").fetchone()
            bank = cls(folder, decode_recipe(row[0] if row else "", folder), namespace, database, tiers)
            if database.writable:
                with failures.guard(folder):
                    bank.index_path.parent.mkdir(exist_ok=True)
                    bank.blocks.begin()
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
        return index_path(self.path, self.namespace)

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
        return self.blocks.states([key])[0] == blockrows.STORED

    def keep_blocks(self, keys: Sequence[BlockKey]) -> list[bool]:
        """Which of these blocks are stored, as :meth:`has_block` tells; their grace period (:meth:`gc`) starts anew.

        So no other process removes them before the caller stores the document that they belong to. In a bank that
        cannot be written this only tells.
        """
        return self.blocks.keep(keys) if keys else []

    def put_block(self, block: KVBlock, *, cost_s: float = 0.0) -> None:
        """Store a block; on return it survives a power cut. A block that is stored and sound stays as it is.

        Parameters
        ----------
        block : KVBlock
            Its key must be one of this bank's.
        cost_s : float
            Seconds that compiling it took; cheap ones are evicted first. 0: unknown, taken for the mean.

        Raises
        ------
        BankMismatchError
            The block's key or its tensors' dtype is not of this bank; names the field.
        BankFullError
            The bank's limit is reached, and everything in it is in use or larger than the limit.
        CompileError
            The block's tensors do not fit together.
        """
        self.blocks.put(block, cost_s)

    def get_block(self, key: BlockKey) -> KVBlock:
        """A stored block, checked; its tensors are to be read only, and nothing that is done to them alters the file.

        A damaged one is set aside and never read again; :meth:`put_block` of the same key replaces it. While a block is
        in use its file is not evicted.

        Raises
        ------
        MissingBlockError
            It is not stored, was evicted or set aside, or its file is gone.
        CorruptBlockError
            The file is not what was written, or cannot be read.
        BankMismatchError
            The key is not of this bank; names the field.
        """
        with BlockLoader(self.blocks) as loader:
            return loader.get(key)

    def limits(self) -> tuple[int | None, int | None]:
        """The bank's ``max_bytes`` and this namespace's quota, bytes; None where there is no limit."""
        with self._database.read() as connection:
            return limits.limits(connection, self.namespace)

    def holdings(self) -> list[tuple[str, int, int | None]]:
        """Every namespace's name, bytes and quota; for whoever runs the machine, as :meth:`disk_bytes`."""
        with self._database.read() as connection:
            return limits.holdings(connection)

    def set_max_bytes(self, max_bytes: int | None) -> None:
        """Bound the block files of all namespaces, temporary ones included; None: no bound. It holds from now on.

        What is too much is evicted now, and room is made as blocks are put: first what is cheap to compile again for
        its size and has not been used for long, of a page the high resolution first, and nothing that is in use.
        Documents stay; a request that needs an evicted block compiles it again, as its ``on_miss`` says.

        Raises
        ------
        BankFullError
            What is in use just now exceeds the limit; the limit is as it was, and what is not in use is evicted.
        ConfigError
            Not a whole number from 1, or less than the namespaces' quotas together.
        """
        self.blocks.room.set_max_bytes(max_bytes)

    def set_quota(self, quota: int | None) -> None:
        """Bound this namespace's block files, and keep as much of the bank's limit for it; None: no quota.

        A namespace only ever evicts its own blocks. Those without a quota share what the quotas leave.

        Raises
        ------
        BankFullError, ConfigError
            As :meth:`set_max_bytes`.
        """
        self.blocks.room.set_quota(self.namespace, quota)

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
            self.blocks.log.write()
            return upkeep.statistics(self._database, self.recipe, self.namespace)

    def disk_bytes(self) -> int:
        """Bytes of every file in the bank's folder, whatever namespace it belongs to; for whoever runs the machine."""
        with failures.guard(self.path):
            return upkeep.disk_bytes(self.path)

    def verify(self, *, progress: Callable[[int, int], None] | None = None, grace_s: float = GRACE_S) -> list[Problem]:
        """Check the whole bank, all namespaces: database, every block's file, every page, leftover files.

        Blocks that are damaged are set aside, where the bank can be written: the next ingest of their documents, or a
        request that needs them, compiles them again.

        Parameters
        ----------
        progress : callable, optional
            Called with blocks and pages checked so far, and their total.
        grace_s : float
            Leftover files younger than this many seconds may be of a writer at work and are no problem.
        """
        with failures.guard(self.path):
            return list(upkeep.verify(self._database, self.blocks, self.recipe, grace_s, progress))

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
            self.blocks.log.write()
            return upkeep.collect(self._database, self.blocks, grace_s, dry_run)

    def flush(self, timeout_s: float) -> int:
        """Wait until what was put has reached the remote tier; how many blocks have not after ``timeout_s`` seconds.

        What is left is uploaded when the bank is opened with it again. Without a remote tier: 0.
        """
        return self.blocks.flush(timeout_s)

    def close(self) -> None:
        """Close the bank; blocks that were read stay usable. Harmless when closed."""
        try:
            self.blocks.close()
        finally:
            self._database.close()

    def __enter__(self) -> Bank:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
