"""Looking after a whole bank, all namespaces: statistics, verification and garbage collection."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from qvpic_rag.bank import blockrows, catalogue, failures, limits
from qvpic_rag.bank.blockfile import check_file
from qvpic_rag.bank.blockrows import BlockRow
from qvpic_rag.bank.blocks import BlockStore
from qvpic_rag.bank.files import BlockFiles, FoundFile
from qvpic_rag.bank.folder import index_path
from qvpic_rag.bank.index_db import Database
from qvpic_rag.bank.recipe import summary
from qvpic_rag.bank.records import BankStats, GcResult, Problem
from qvpic_rag.bank.room import Taken
from qvpic_rag.bank.signals import SignalFiles
from qvpic_rag.bank.usage import counters
from qvpic_rag.errors import BankError, CorruptBlockError
from qvpic_rag.records import Recipe

__all__ = ["collect", "disk_bytes", "statistics", "verify"]

_BATCH = 32  # unlinking large files takes a while, and other writers wait for it
_AGAIN = "it is compiled again when a request needs it"


def statistics(database: Database, recipe: Recipe, namespace: str) -> BankStats:
    """Statistics of one namespace, from the database alone."""
    with database.read() as connection:
        query = f"""SELECT dpi, count(*), sum(bytes) FROM blocks WHERE {catalogue.IN_NAMESPACE} AND state = ?
            GROUP BY dpi ORDER BY dpi"""
        rows = connection.execute(query, (namespace, blockrows.STORED)).fetchall()
        query = f"SELECT count(*) FROM blocks WHERE {catalogue.IN_NAMESPACE} AND state = ?"
        evicted, damaged = (
            int(connection.execute(query, (namespace, state)).fetchone()[0])
            for state in (blockrows.EVICTED, blockrows.DAMAGED)
        )
        query = f"SELECT count(*) FROM documents WHERE {catalogue.IN_NAMESPACE}"
        documents = int(connection.execute(query, (namespace,)).fetchone()[0])
        pages = catalogue.page_count(connection, namespace)
        unlinked = blockrows.count_unlinked(connection, namespace)
        bound, _ = limits.bound(connection, namespace)
        counts = counters(connection, namespace)
        generation = catalogue.generation(connection, namespace, database.folder)
    return BankStats(
        path=str(database.folder),
        namespace=namespace,
        documents=documents,
        pages=pages,
        blocks={dpi: count for dpi, count, _ in rows},
        block_bytes={dpi: nbytes for dpi, _, nbytes in rows},
        unlinked=unlinked,
        evicted=evicted,
        damaged=damaged,
        limit=bound,
        counters=counts,
        generation=generation,
        recipe=summary(recipe),
    )


def disk_bytes(folder: Path) -> int:
    """Bytes of every file in a bank's folder: all namespaces, database, indexes and leftovers included."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(where, name).lstat().st_size
            except FileNotFoundError:
                continue
    return total


def _expired(modified: float, now: float, grace_s: float) -> bool:
    return abs(now - modified) >= grace_s


def verify(
    database: Database,
    blocks: BlockStore,
    recipe: Recipe,
    grace_s: float,
    progress: Callable[[int, int], None] | None,
) -> Iterator[Problem]:
    """Check the database, every block, every page, and that no other file lies about; damaged blocks are set aside."""
    try:
        with database.read() as connection:
            yield from _check_database(connection)
            queries = f"SELECT count(*) FROM blocks WHERE state != {blockrows.EVICTED}", "SELECT count(*) FROM pages"
            total = sum(connection.execute(query).fetchone()[0] for query in queries)
        for done, problem in enumerate(_checks(database, blocks, recipe), start=1):
            if problem is not None:
                yield problem
            if progress is not None:
                progress(min(done, total), total)
        now = time.time()
        for found in blocks.files.walk():
            yield from _check_file_found(database, found, str(found.path.relative_to(database.folder)), now, grace_s)
    except BankError as error:
        if not failures.is_damage(error.__cause__):
            raise
        yield Problem("database", "", str(error))


def _checks(database: Database, blocks: BlockStore, recipe: Recipe) -> Iterator[Problem | None]:
    for row in blockrows.all_rows(database):
        yield _check_block(database, blocks, recipe, row)
    yield from _check_pages(database, recipe.dimension)


def _check_database(connection: sqlite3.Connection) -> Iterator[Problem]:
    advice = "restore the bank from a backup, or make it again with `qvpic ingest PATH --bank DIR --model MODEL`"
    for (finding,) in connection.execute("PRAGMA quick_check(20)"):
        if finding != "ok":
            yield Problem("database", "", f"The database is damaged ({finding}): {advice}.")
    for table, *_ in connection.execute("PRAGMA foreign_key_check"):
        yield Problem("database", "", f"A row of {table} refers to nothing: {advice}.")
    for name, number in connection.execute("SELECT name, generation FROM namespaces"):
        if not catalogue.is_generation(number):
            yield Problem("database", "", f"The change counter of namespace {name!r} is damaged: {advice}.")


def _check_block(database: Database, blocks: BlockStore, recipe: Recipe, row: BlockRow) -> Problem | None:
    """The problem of a block unless another process put or removed the block meanwhile."""
    current: BlockRow | None = row
    while current is not None:
        problem = _inspect(blocks.files, recipe, current)
        if problem is None:
            return None
        with database.read() as connection:
            found = blockrows.find(connection, row.digest)
        if found == current:
            if problem.kind in ("corrupt", "mismatch"):
                blocks.quarantine(current)
            return problem
        current = found
    return None


def _inspect(files: BlockFiles, recipe: Recipe, row: BlockRow) -> Problem | None:
    what = f"Block {row.digest[:12]} (page {row.page[:12]} at {row.dpi} DPI)"
    if row.state == blockrows.DAMAGED:
        return Problem("quarantined", row.digest, f"{what} was found damaged and is set aside: {_AGAIN}.")
    try:
        header = check_file(files.path(row.digest), row.nbytes, row.checksum)
    except FileNotFoundError:
        return Problem("missing", row.digest, f"{what} has no file: {_AGAIN}.")
    except CorruptBlockError as error:
        return Problem("corrupt", row.digest, f"{what} is damaged, {error}: {_AGAIN}.")
    except (OSError, ValueError) as error:
        return Problem(
            "unreadable", row.digest, f"{what} cannot be read ({error}): check the disk and the permissions."
        )
    expected = recipe.block_key(row.page, row.dpi, row.namespace)
    differing = header.key.differing(expected)
    if differing or header.key.digest != row.digest:
        field = differing[0] if differing else "digest"
        return Problem("mismatch", row.digest, f"{what} holds another block, its {field} differs: {_AGAIN}.")
    return None


def _check_pages(database: Database, dimension: int) -> Iterator[Problem | None]:
    with database.read() as connection:
        for (source,) in connection.execute("SELECT source FROM documents"):
            catalogue.decode_text(source)  # raises where it is damaged
    last = 0
    query = f"SELECT id, digest, lines, embedding, text FROM pages WHERE id > ? ORDER BY id LIMIT {8 * _BATCH}"
    while True:
        with database.read() as connection:
            rows = connection.execute(query, (last,)).fetchall()
        if not rows:
            return
        for number, digest, encoded, blob, text in rows:
            damage = ""
            if catalogue.decode_lines(encoded, digest) is None:
                damage = "lines are"
            elif catalogue.decode_embedding(blob, dimension) is None:
                damage = "embedding is"
            elif not catalogue.is_text(text):
                damage = "text is"
            message = f"The {damage} damaged in page {number}: remove its document and ingest it again."
            yield Problem("page", str(number), message) if damage else None
        last = rows[-1][0]


def _check_file_found(database: Database, found: FoundFile, name: str, now: float, grace_s: float) -> Iterator[Problem]:
    if found.digest:
        with database.read() as connection:
            known = blockrows.find(connection, found.digest) is not None
        if not known and _expired(found.modified, now, grace_s):
            yield Problem("orphan", name, f"{name} is in no row of the database: `qvpic bank gc` removes it.")
    elif not found.temporary:
        yield Problem("unknown", name, f"{name} is not a file of the bank: move it elsewhere.")
    elif _expired(found.modified, now, grace_s):
        yield Problem("temporary", name, f"{name} is what a stopped writer left: `qvpic bank gc` removes it.")


class _Collector:
    """One run of garbage collection."""

    def __init__(self, database: Database, blocks: BlockStore, grace_s: float, dry_run: bool) -> None:
        self.database = database
        self.store = blocks
        self.files = blocks.files
        self.grace_s = grace_s
        self.dry_run = dry_run
        self.now = time.time()
        self.bytes = 0

    def unlink(self, path: Path, nbytes: int) -> None:
        if not self.dry_run:
            path.unlink(missing_ok=True)
        self.bytes += nbytes

    def pages(self) -> int:
        """Pages that no document holds. Removing a document removes its pages, so this finds something only in a
        database that was altered by other means."""
        condition = "NOT EXISTS (SELECT 1 FROM links WHERE page_id = pages.id)"
        if self.dry_run:
            with self.database.read() as connection:
                return int(connection.execute(f"SELECT count(*) FROM pages WHERE {condition}").fetchone()[0])
        with self.database.write() as connection:
            owners = connection.execute(f"SELECT DISTINCT namespace_id FROM pages WHERE {condition}").fetchall()
            for (owner,) in owners:
                catalogue.changed(connection, owner)
            return connection.execute(f"DELETE FROM pages WHERE {condition}").rowcount

    def blocks(self) -> int:
        """Blocks of pages that no document holds; one that a request has mapped stays."""
        count = skipped = 0
        while True:
            if self.dry_run:
                with self.database.read() as connection:
                    rows = blockrows.unlinked(connection, self.now, self.grace_s, _BATCH, skipped)
                gone, skipped = rows, skipped + len(rows)
            else:
                with Taken() as taken:
                    with self.database.write() as connection:
                        rows = blockrows.unlinked(connection, self.now, self.grace_s, _BATCH, skipped)
                        self.store.room.remove(connection, rows, taken)
                    gone, skipped = taken.rows, skipped + len(rows) - len(taken.rows)
                    self.bytes += sum(self._size(row) for row in gone)
                    self.store.room.finish(taken)
                self.store.forget([row.digest for row in gone])
            if self.dry_run:
                self.bytes += sum(self._size(row) for row in gone)
            count += len(gone)
            if len(rows) < _BATCH:
                return count

    def _size(self, row: BlockRow) -> int:
        return row.nbytes if self.files.exists(row.digest) else 0

    def leftovers(self) -> tuple[int, int]:
        """Block files without a row, and temporary files."""
        orphans = temporary = 0
        with self.database.read() as connection:
            at_work = {name for (name,) in connection.execute("SELECT file FROM reservations")}
        for found in self.files.walk():
            if not _expired(found.modified, self.now, self.grace_s) or found.path.name in at_work:
                continue
            if found.digest:
                orphans += self._orphan(found)
            elif found.temporary:
                self.unlink(found.path, found.nbytes)
                temporary += 1
        return orphans, temporary

    def signals(self) -> int:
        """Files of signals of pages that are gone, in every namespace."""
        with self.database.read() as connection:
            namespaces = [name for (name,) in connection.execute("SELECT name FROM namespaces")]
        count = 0
        for namespace in namespaces:
            files = SignalFiles(index_path(self.database.folder, namespace), "")
            names = files.names()  # before the pages: whoever writes a file has stored its page
            query = f"SELECT digest FROM pages WHERE {catalogue.IN_NAMESPACE}"
            with self.database.read() as connection:
                pages = {digest for (digest,) in connection.execute(query, (namespace,))}
            for name in sorted(names):
                path = files.folder / name
                if name.partition(".")[0] not in pages and path.exists():  # another process may have been quicker
                    self.unlink(path, path.stat().st_size)
                    count += 1
        return count

    def _orphan(self, found: FoundFile) -> bool:
        with self.database.read() as connection:
            if blockrows.find(connection, found.digest) is not None:
                return False
        if self.dry_run:
            self.unlink(found.path, found.nbytes)
            return True
        with self.database.write() as connection:  # again, now that no other process can store it
            if blockrows.find(connection, found.digest) is not None:
                return False
            self.unlink(found.path, found.nbytes)
            return True


def collect(database: Database, blocks: BlockStore, grace_s: float, dry_run: bool) -> GcResult:
    """Remove what nothing refers to; see :class:`~qvpic_rag.bank.records.GcResult` and ``Bank.gc``."""
    if not dry_run:
        blocks.recover()
    run = _Collector(database, blocks, grace_s, dry_run)
    pages = run.pages()
    removed = run.blocks()
    orphans, temporary = run.leftovers()
    orphans += run.signals()
    return GcResult(removed, pages, orphans, temporary, run.bytes, dry_run)
