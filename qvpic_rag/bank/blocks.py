"""Blocks of one namespace of a bank: through the RAM tier and the folder of files, with their rows.

Order of writes of a block: room for it, temporary file in the block's own folder, flush, fsync; then, holding the
database's write lock, rename, fsync of the folder, row, commit. Whatever is cut short leaves a temporary file or a file
without a row, which nothing reads and the next writer removes. A row without a file is a miss, and so compiled again.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qvpic_rag.bank import blockrows, catalogue, failures, limits
from qvpic_rag.bank.blockfile import Written, check_file, header_of, load_block, read_header, write_temporary
from qvpic_rag.bank.blockrows import BlockRow
from qvpic_rag.bank.claims import Claims
from qvpic_rag.bank.files import BlockFiles
from qvpic_rag.bank.index_db import Database
from qvpic_rag.bank.room import Room
from qvpic_rag.bank.tiers import Tiers
from qvpic_rag.bank.usage import UseLog
from qvpic_rag.bank.writers import Writers, remove_abandoned
from qvpic_rag.errors import BankError, BankMismatchError, CorruptBlockError, MissingBlockError
from qvpic_rag.metrics import METRICS
from qvpic_rag.records import BlockKey, KVBlock, Recipe

if TYPE_CHECKING:
    from qvpic_rag.bank.uploads import Uploads

__all__ = ["BlockStore", "Loaded"]

_log = logging.getLogger(__name__)
_PATIENCE_S = 5.0  # of a reader for the database


@dataclass(frozen=True, eq=False)
class Loaded:
    """A block, the tier it came from, and the seconds that took."""

    block: KVBlock
    tier: str
    seconds: float


class BlockStore:
    """See the module docstring; :class:`~qvpic_rag.bank.Bank` documents what its methods promise.

    Attributes
    ----------
    files, room, claims, log, writers
        The parts that looking after a bank needs as well.
    """

    def __init__(self, database: Database, recipe: Recipe, namespace: str, tiers: Tiers) -> None:
        self.path = database.folder
        self._database = database
        self._recipe = recipe
        self._namespace = namespace
        self._ram = tiers.ram
        self._remote = tiers.remote
        self._uploads: Uploads | None = None
        self.files = BlockFiles(self.path / "blocks")
        self.writers = Writers(self.path / "writers")
        self.log = UseLog(database, namespace)
        self.room = Room(database, self.files, self.writers, self.log, recipe.dpis)
        self.claims = Claims(database, self.writers)

    def begin(self) -> None:
        """In a bank that can be written: clean up after writers that died, and upload what they left."""
        try:
            if self.room.abandoned():
                self.recover()
        except BankError as error:  # reading needs none of it
            _log.warning("what a dead writer left in a bank was not removed: %s", error)
        if self._remote is not None:
            from qvpic_rag.bank.uploads import Uploads  # here: it imports fsspec

            self._uploads = Uploads(self._remote, self._waiting, self._uploaded, self._count_waiting)
            if self._count_waiting():
                self._uploads.wake()

    def recover(self) -> None:
        """Clean up what dead writers left: blocks, claims and half-written indexes."""
        self.room.recover()
        remove_abandoned(self.path / "index")

    # ------------------------------------------------------------------ keys

    def foreign_field(self, key: BlockKey) -> str | None:
        """The first field in which a key is not one of this bank's."""
        dpi = key.dpi if key.dpi in self._recipe.dpis else self._recipe.dpis[0]
        differing = key.differing(self._recipe.block_key(key.page, dpi, self._namespace))
        return differing[0] if differing else None

    def check_key(self, key: BlockKey) -> None:
        """Raise ``BankMismatchError`` for a key of another bank."""
        field = self.foreign_field(key)
        if field is None:
            return
        own = self._recipe.block_key(key.page, key.dpi, self._namespace)
        held = list(self._recipe.dpis) if field == "dpi" else getattr(own, field)
        raise BankMismatchError(
            f"The bank at {str(self.path)!r} holds blocks with {field} {str(held)[:24]!r}, asked for is "
            f"{str(getattr(key, field))[:24]!r}: use the bank's own {field}, or another bank.",
            field=field,
        )

    # ------------------------------------------------------------------ what is there

    def was_evicted(self, key: BlockKey) -> bool:
        """Whether the block was stored and went to make room: it is missed on purpose."""
        return self.states([key])[0] == blockrows.EVICTED

    def has_room(self) -> bool:
        """Whether the limit, if there is one, leaves a fifth free: enough to bring back what was evicted."""
        with self._database.read() as connection:
            bound, names = limits.bound(connection, self._namespace)
            return bound is None or limits.used(connection, names) <= 0.8 * bound

    def settled(self, key: BlockKey, evicted: bool) -> bool:
        """Whether the block need not be compiled: it is stored, or it was evicted and evicted ones are not wanted."""
        state = self.states([key])[0]
        return state == blockrows.STORED or (state == blockrows.EVICTED and not evicted)

    def states(self, keys: Sequence[BlockKey]) -> list[int | None]:
        """The state of each block's row (:mod:`~qvpic_rag.bank.blockrows`); None where there is none, or no file."""
        with self._database.read() as connection:
            return [self._state(connection, key) for key in keys]

    def keep(self, keys: Sequence[BlockKey]) -> list[bool]:
        """Which blocks are stored; their grace period starts anew."""
        writable = self._database.writable
        with self._database.write(durable=False) if writable else self._database.read() as connection:
            stored = [self._state(connection, key) == blockrows.STORED for key in keys]
            for key, found in zip(keys, stored, strict=True):
                if found and writable:
                    blockrows.touch(connection, key.digest, time.time())
        return stored

    def _state(self, connection: sqlite3.Connection, key: BlockKey) -> int | None:
        row = None if self.foreign_field(key) is not None else blockrows.find(connection, key.digest)
        if row is None or (row.state == blockrows.STORED and not self.files.exists(key.digest)):
            return None
        return row.state

    def tokens(self, key: BlockKey) -> int | None:
        """How many tokens a block has, from its file's header; None where no file of it is stored, or a damaged one."""
        self.check_key(key)
        with self._database.read() as connection:
            row = blockrows.find(connection, key.digest)
        if row is None or row.state != blockrows.STORED:
            return None
        try:
            header = read_header(self.files.path(key.digest), row.nbytes)
        except (OSError, CorruptBlockError):  # whoever loads the block says so and sets it aside
            return None
        return header.shape[2] if header.key == key else None

    # ------------------------------------------------------------------ writing

    def put(self, block: KVBlock, cost_s: float) -> None:
        """Store a block, durably. A block that is stored and sound stays as it is."""
        self.check_key(block.key)
        if not self._database.writable:
            raise failures.read_only(self.path)
        if not self._kept(block.key.digest):
            self.admit(block.key, header_of(block).file_bytes, cost_s, lambda path: write_temporary(path, block))

    def admit(
        self,
        key: BlockKey,
        nbytes: int,
        cost_s: float,
        write: Callable[[Path], Written | None],
        *,
        uploaded: bool = False,
    ) -> bool:
        """Make a file of ``nbytes``, which ``write`` writes to the temporary path it is given, a stored block.

        False when ``write`` had nothing to write. ``uploaded``: the remote tier has it.
        """
        digest = key.digest
        with failures.guard(self.path), self.room.reserved(self._namespace, digest, nbytes) as path:
            self.files.prepare(digest)
            written = write(path)
            if written is None:
                return False
            with self._database.write() as connection:
                # Another process may have stored it meanwhile. A sound file is never replaced, so that no reader meets
                # one writer's file with the other's checksum: two compilations may differ in the last bit.
                row = blockrows.find(connection, digest)
                if row is not None and self._sound(row):
                    return True
                self.files.publish(written, digest)
                owner = catalogue.namespace_id(connection, self._namespace)
                blockrows.insert(connection, owner, key, written.nbytes, written.checksum, time.time(), cost_s)
                if uploaded:
                    blockrows.mark_uploaded(connection, digest, written.checksum)
                self.room.release(connection, path)
        self.log.count("written_blocks")
        METRICS.count("bank_written_bytes", nbytes)
        if self._uploads is not None and not uploaded:
            self._uploads.wake()
        return True

    def _kept(self, digest: str) -> bool:
        """Whether a sound block is stored; if so, its grace period starts anew."""
        with self._database.read() as connection:
            row = blockrows.find(connection, digest)
        if row is None or not self._sound(row):
            return False
        with self._database.write(durable=False) as connection:
            blockrows.touch(connection, digest, time.time())
            found = blockrows.find(connection, digest)
            return found is not None and found.state == blockrows.STORED

    def _sound(self, row: BlockRow) -> bool:
        if row.state != blockrows.STORED:
            return False
        try:
            header = check_file(self.files.path(row.digest), row.nbytes, row.checksum)
        except (CorruptBlockError, FileNotFoundError):
            return False
        except OSError as error:
            raise failures.os_failure(error, self.path) from error
        return header.key.digest == row.digest

    # ------------------------------------------------------------------ reading

    def read(self, key: BlockKey) -> Loaded:
        """A stored block, checked; uncounted until it is noted (:meth:`note`), for it may be read in vain."""
        self.check_key(key)
        start, tier = time.perf_counter(), "ram"
        block = self._ram.get(key.digest)
        if block is None:
            tier, block, copied = self._beneath(key)
            if copied:  # a mapping would keep its file from eviction
                self._ram.put(block)
        return Loaded(block, tier, time.perf_counter() - start)

    def note(self, loaded: Loaded) -> None:
        """A block that was read is used."""
        tier, block = loaded.tier, loaded.block
        self.log.used(block.key.digest)
        self.log.count("hits", tier=tier)
        METRICS.count("bank_read_bytes", block.nbytes, tier=tier)
        METRICS.observe("bank_load_seconds", loaded.seconds, tier=tier)

    def _beneath(self, key: BlockKey) -> tuple[str, KVBlock, bool]:
        """A block from the bank's files, or from the remote tier through them; the tier, and whether it was copied."""
        try:
            return "disk", *self._load(key)
        except (MissingBlockError, CorruptBlockError):
            if not self.fetch(key):
                raise
        return "remote", *self._load(key)

    def missed(self) -> None:
        """A block that was asked for is in no tier."""
        self.log.count("misses")

    def fetch(self, key: BlockKey) -> bool:
        """Whether the remote tier had the block, which is stored now. What goes wrong there is a miss here."""
        remote = self._remote
        if remote is None or not self._database.writable:
            return False
        try:
            entry = remote.look(key.digest)
            return entry is not None and self.admit(
                key, entry.nbytes, 0.0, lambda path: remote.fetch(entry, path), uploaded=True
            )
        except BankError as error:
            METRICS.count("remote_failures")
            _log.warning("a block was not read from the remote tier: %s", error)
            return False

    def _load(self, key: BlockKey) -> tuple[KVBlock, bool]:
        with self._database.read() as connection:
            row = blockrows.find(connection, key.digest)
        while row is not None and row.state == blockrows.STORED:
            copied = self._ram.takes(row.nbytes)
            try:
                block = load_block(self.files.path(key.digest), key, row.nbytes, row.checksum, copied=copied)
                return block, copied
            except FileNotFoundError:
                pass
            except (CorruptBlockError, BankMismatchError) as error:
                how = str(error) if isinstance(error, CorruptBlockError) else "it is another page's"
                if self._set_aside(row):
                    raise self._damaged(key, how) from error
            except OSError as error:
                # Whatever the reason, a request may compile the page instead.
                raise CorruptBlockError(str(failures.os_failure(error, self.path))) from error
            with self._database.read() as connection:
                found = blockrows.find(connection, key.digest)
            if found == row:
                break
            row = found  # replaced or evicted by another process between the two reads
        if row is not None and row.state == blockrows.DAMAGED:
            raise self._damaged(key, "as was found before")
        raise MissingBlockError(
            f"The block of page {key.page[:12]} at {key.dpi} DPI is not in the bank at {str(self.path)!r}: compile and "
            f"store it again, for example by ingesting its document again."
        )

    def _set_aside(self, row: BlockRow) -> bool:
        """As :meth:`quarantine`; where that cannot be written down, the block is damaged all the same."""
        try:
            return self.quarantine(row)
        except BankError as error:
            _log.warning("a damaged block was not set aside: %s", error)
            return True

    def _damaged(self, key: BlockKey, how: str) -> CorruptBlockError:
        return CorruptBlockError(
            f"The stored block of page {key.page[:12]} at {key.dpi} DPI is damaged, {how}: compile and store it again, "
            f"and look for more damage with `qvpic bank verify --bank {self.path}`."
        )

    def quarantine(self, row: BlockRow) -> bool:
        """Set a damaged block aside, so that nobody reads it again; False when it was replaced meanwhile.

        Looked at again under the write lock, where no other process replaces it.
        """
        if not self._database.writable:
            with self._database.read() as connection:
                return blockrows.find(connection, row.digest) == row
        with self._database.write(durable=False, patience_s=_PATIENCE_S) as connection:
            found = blockrows.find(connection, row.digest)
            if found is None or found.checksum != row.checksum or self._sound(found):
                return False
            path = self.files.path(row.digest)
            blockrows.mark_damaged(connection, row.digest, path.stat().st_size if path.is_file() else 0)
        self.log.count("quarantines")
        return True

    # ------------------------------------------------------------------ the remote tier

    def _waiting(self, limit: int) -> list[tuple[str, Path, int, str]]:
        """Blocks of this namespace that the remote tier does not have yet: digest, file, bytes, checksum."""
        with self._database.read() as connection:
            rows = blockrows.waiting(connection, self._namespace, limit)
        return [(row.digest, self.files.path(row.digest), row.nbytes, row.checksum) for row in rows]

    def _count_waiting(self) -> int:
        with self._database.read() as connection:
            return blockrows.count_waiting(connection, self._namespace)

    def _uploaded(self, digest: str, checksum: str) -> None:
        with self._database.write(durable=False) as connection:
            blockrows.mark_uploaded(connection, digest, checksum)

    @property
    def remote_answers(self) -> bool:
        """Whether there is a remote tier, and it did not fail just now."""
        return self._remote is not None and self._remote.available

    def flush(self, timeout_s: float) -> int:
        """See :meth:`~qvpic_rag.bank.Bank.flush`."""
        return self._uploads.flush(timeout_s) if self._uploads is not None else 0

    # ------------------------------------------------------------------ ends

    def note_use(self) -> None:
        """Write down when blocks were last used, if that has not been done for a minute; call it between requests."""
        if self.log.due:
            self.log.write()

    def forget(self, digests: Sequence[str]) -> None:
        """Hold blocks in memory no longer that were removed from the bank."""
        for digest in digests:
            self._ram.drop(digest)

    def close(self) -> None:
        """Write notes down and end being a writer."""
        self._ram.clear()
        try:
            if self._uploads is not None:
                self._uploads.close()
            self.log.write(patience_s=2.0)
        finally:
            self.writers.close()
