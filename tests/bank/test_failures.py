"""A disk that is full or denies access: one clear sentence, and nothing half visible."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qvpic_rag.bank import Bank, blockfile, failures, index_db
from qvpic_rag.errors import BankError, CorruptBlockError
from tests.bank import samples

ROOT = Path(__file__).parents[2]
CAUSES = [
    (errno.ENOSPC, r"is full.*qvpic bank gc"),
    (errno.EDQUOT, r"is full"),
    (errno.EACCES, r"no permission for .*give this user"),
    (errno.EROFS, r"no permission for"),
    (errno.EIO, r"failed on .*Input/output error"),
]


def raising(number: int) -> Callable[..., None]:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number), str(arguments[0]))

    return fail


@pytest.mark.parametrize("place", ["fsync", "replace", "open", "mkdir", "sync_folder"])
@pytest.mark.parametrize(("number", "words"), CAUSES)
def test_a_block_that_cannot_be_stored(bank: Bank, place: str, number: int, words: str) -> None:
    samples.put(bank, "a.txt", ["one"])
    block = samples.block(bank, samples.page("two"))
    with pytest.MonkeyPatch.context() as patch:
        if place == "fsync":
            patch.setattr(os, "fsync", raising(number))
        elif place == "sync_folder":  # after the rename: a file without a row
            patch.setattr("qvpic_rag.bank.files.sync_folder", raising(number))
        else:
            patch.setattr(Path, place, raising(number))
        with pytest.raises(BankError, match=words) as caught:
            bank.put_block(block)
    assert "\n" not in str(caught.value)
    assert not bank.has_block(block.key)
    assert list(bank.path.rglob("*.tmp")) == []
    one = samples.block(bank, samples.page("one"))
    assert samples.same(bank.get_block(one.key), one)
    assert bank.verify() == []
    bank.put_block(block)
    assert samples.same(bank.get_block(block.key), block)
    assert bank.verify(grace_s=0) == []


def test_a_disk_that_fills_in_the_middle_of_a_block(tmp_path: Path) -> None:
    """A real failing write: a limit on file size stops it half-way."""
    script = f"""
import resource, signal, sys
from qvpic_rag.bank import Bank
from qvpic_rag.errors import BankError
from tests.bank import samples
with Bank.create({str(tmp_path / "bank")!r}, samples.recipe()) as bank:
    samples.put(bank, "a.txt", ["one"])
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
    block = samples.block(bank, samples.page("two"), shape=(4, 2, 1000, 64))
    try:
        bank.put_block(block)
    except BankError as error:
        print(error)
    pages, vectors = samples.document("b.txt", [f"{{n}} " + "word " * 1000 for n in range(200)])
    try:
        bank.put_document("b.txt", "d", pages, vectors, {{}})
    except BankError as error:
        print(error)
    assert not bank.has_block(block.key)
    assert [d.source for d in bank.documents()] == ["a.txt"], bank.documents()
    one = samples.block(bank, samples.page("one"))
    assert samples.same(bank.get_block(one.key), one)
    assert bank.verify(grace_s=0) == [], bank.verify(grace_s=0)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "is full" in first
    assert "bank" in second
    with Bank.open(tmp_path / "bank") as bank:
        assert bank.verify(grace_s=0) == []


def test_a_full_disk_while_storing_a_document(bank: Bank) -> None:
    samples.put(bank, "a.txt", ["one"])
    with bank._database.read() as connection:
        connection.execute("SELECT 1")
    assert bank._database._connection is not None
    bank._database._connection.execute("PRAGMA max_page_count = 1")  # SQLite's own way to be full
    pages, vectors = samples.document("a.txt", ["two " * 5000, "three " * 5000])
    with pytest.raises(BankError, match="is full"):
        bank.put_document("a.txt", "d", pages, vectors, {})
    assert [entry.page.lines[0] for entry in bank.pages(bank.vectors()[0])] == ["one"]
    bank._database._connection.execute("PRAGMA max_page_count = 1000000")
    bank.put_document("a.txt", "d", pages, vectors, {})
    assert bank.page_count() == 2


def test_a_lock_that_is_held_too_long(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    samples.put(bank, "a.txt", ["one"])
    monkeypatch.setattr(index_db, "_BUSY_S", 0.05)
    with Bank.open(bank.path) as other:
        with bank._database.write(), pytest.raises(BankError, match="locked by another process"):
            other.remove_document("a.txt")
        assert other.remove_document("a.txt")


class _Interrupted(sqlite3.Connection):
    """Ctrl-C comes right after SQLite did the first statement that begins with ``after``."""

    after = ""

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        cursor = super().execute(statement, *values)
        if self.after and statement.startswith(self.after):
            self.after = ""
            raise KeyboardInterrupt
        return cursor


@pytest.mark.parametrize("after", ["BEGIN", "SELECT", "DELETE"])
def test_an_interrupt_leaves_no_transaction_open(bank: Bank, after: str) -> None:
    samples.put(bank, "a.txt", ["one"])
    connection = sqlite3.connect(
        bank.path / "bank.sqlite", isolation_level=None, check_same_thread=False, factory=_Interrupted, timeout=0
    )
    with Bank.open(bank.path) as other:
        other._database._connection = connection
        calls = [lambda: other.remove_document("a.txt")]
        if after != "DELETE":
            calls.append(lambda: other.generation)
        for call in calls:
            connection.after = after
            with pytest.raises(KeyboardInterrupt):
                call()
            assert not connection.in_transaction
            samples.put(bank, "b.txt", [call.__name__, str(bank.generation)])
            assert other.generation == bank.generation
        connection.execute("BEGIN IMMEDIATE")  # an interrupt came within the clean-up
        assert other.remove_document("b.txt")
        connection.execute("BEGIN")
        connection.execute("SELECT * FROM pages").fetchone()
        bank.remove_document("a.txt")
        assert other.documents() == []


def test_a_failed_write_within_a_transaction_stores_nothing(bank: Bank) -> None:
    def write_within_a_write() -> None:
        with bank._database.write() as connection:
            connection.execute("INSERT INTO namespaces (name) VALUES ('half')")
            bank.remove_document("a.txt")

    with pytest.raises(BankError, match="a transaction"):
        write_within_a_write()
    with bank._database.read() as connection:
        assert connection.execute("SELECT count(*) FROM namespaces").fetchone() == (0,)


class _Refusing(sqlite3.Connection):
    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        raise sqlite3.OperationalError("disk I/O error")


def _without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk without a free byte, as SQLite meets it: it cannot make the files of WAL mode."""
    connect, usage = index_db._connect, shutil.disk_usage

    def refuse(file: Path, options: str) -> sqlite3.Connection:
        if "immutable" in options:
            return connect(file, options)
        return sqlite3.connect(file, factory=_Refusing)

    monkeypatch.setattr(index_db, "_connect", refuse)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(path)._replace(free=0))


def test_a_disk_without_a_free_byte(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    samples.put(bank, "a.txt", ["one"])
    log = (bank.path / "bank.sqlite-wal").read_bytes()
    assert log
    bank.close()
    with monkeypatch.context() as patch:
        _without_room(patch)
        with Bank.open(bank.path) as full:
            assert full.stats().documents == 1
            assert full.verify() == []
            assert full.gc(dry_run=True).blocks == 0
            assert full.pages(full.vectors()[0])[0].page.lines[0] == "one"
            block = samples.block(full, samples.page("one"))
            assert samples.same(full.get_block(block.key), block)
            for call in (full.gc, lambda: full.remove_document("a.txt")):
                with pytest.raises(BankError, match=r"is full, too full even .*: free some space elsewhere"):
                    call()
            patch.undo()  # some space was freed
            assert full.remove_document("a.txt")
            assert full.documents() == []
        (bank.path / "bank.sqlite-wal").write_bytes(log)  # its last writer was killed
        _without_room(patch)
        with pytest.raises(BankError, match="free some space elsewhere"):
            Bank.open(bank.path)


def test_an_interrupted_write_leaves_no_temporary_file(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(blockfile.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bank.put_block(samples.block(bank, samples.page("one")))
    assert list((bank.path / "blocks").rglob("*.tmp")) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("database or disk is full", "is full"),
        ("attempt to write a readonly database", "is read-only here"),
        ("database is locked", "locked by another process"),
        ("locking protocol", "local disk"),
        ("database disk image is malformed", "is damaged: restore"),
        ("file is not a database", "is damaged: restore"),
        ("disk I/O error", r"failed \(disk I/O error\)"),
    ],
)
def test_sqlite_errors_become_sentences(text: str, words: str) -> None:
    with pytest.raises(BankError, match=words) as caught, failures.guard(Path("bank")):
        raise sqlite3.OperationalError(text)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(bank: Bank, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    samples.put(bank, "a.txt", ["one"])
    bank.close()

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    with Bank.open(bank.path) as other, monkeypatch.context() as patch:
        patch.setattr("fcntl.flock", refuse)
        for use in (
            lambda: other.put_block(samples.block(other, samples.page("two"))),
            lambda: other.get_block(samples.block(other, samples.page("one")).key),
        ):
            with pytest.raises(BankError, match=r"does not support file locks .* put the bank on a local disk"):
                use()


def lock(bank: Bank) -> sqlite3.Connection:
    """Another process's writing transaction, which does not end."""
    connection = sqlite3.connect(bank.path / "bank.sqlite", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    return connection


def test_notes_never_fail_or_delay_anything(bank: Bank) -> None:
    samples.put(bank, "a.txt", ["one"])
    key = samples.block(bank, samples.page("one")).key
    with Bank.open(bank.path) as reader:
        reader.get_block(key)
        reader.blocks.log._written -= 61
        locked = lock(bank)
        start = time.monotonic()
        assert reader.blocks.log.due
        reader.blocks.note_use()
        assert not reader.blocks.log.due, "the next try is a minute away"
        reader.close()
        assert time.monotonic() - start < 20
        locked.close()
    assert "hits disk" not in bank.stats().counters


def test_reading_and_claiming_go_on_while_the_database_is_locked(
    bank: Bank, block_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qvpic_rag.bank.claims._PATIENCE_S", 0.05)
    monkeypatch.setattr("qvpic_rag.bank.blocks._PATIENCE_S", 0.05)
    block = samples.block(bank, samples.page("one"))
    samples.put(bank, "b.txt", ["two"])
    other = samples.block(bank, samples.page("two"))
    locked = lock(bank)
    assert samples.same(bank.get_block(other.key), other)
    with bank.blocks.claims.made([block.key.digest]) as mine:
        assert mine == {block.key.digest}
    block_path.write_bytes(block_path.read_bytes()[:-1])
    with pytest.raises(CorruptBlockError, match=r"has .* bytes instead of"):
        bank.get_block(block.key)
    locked.close()
    with pytest.raises(CorruptBlockError, match=r"has .* bytes instead of"):
        bank.get_block(block.key)
    with pytest.raises(CorruptBlockError, match="as was found before"):
        bank.get_block(block.key)


def test_a_bank_opens_although_nothing_can_be_cleaned_up(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    samples.put(bank, "a.txt", ["one"])
    dead = bank.path / "writers" / f"{'0' * 16}.lock"
    dead.touch()
    with monkeypatch.context() as patch:
        patch.setattr("qvpic_rag.bank.index_db._BUSY_S", 0.05)
        locked = lock(bank)
        with Bank.open(bank.path) as other:
            other.get_block(samples.block(bank, samples.page("one")).key)
        locked.close()
    Bank.open(bank.path).close()
    assert not dead.exists()


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ELOOP])
def test_a_block_that_cannot_be_read_counts_as_damaged(bank: Bank, block_path: Path, number: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qvpic_rag.bank.blockfile.os.open", raising(number))
        with pytest.raises(CorruptBlockError):
            bank.get_block(samples.block(bank, samples.page("one")).key)
    block = samples.block(bank, samples.page("one"))
    assert samples.same(bank.get_block(block.key), block), "it was not set aside"


@pytest.mark.parametrize(
    ("column", "value"),
    [("bytes", "x"), ("bytes", b"1"), ("bytes", -5), ("checksum", b"7"), ("state", "x"), ("created", "")],
)
def test_a_malformed_row_is_one_sentence(bank: Bank, block_path: Path, column: str, value: object) -> None:
    with bank._database.write() as connection:
        connection.execute(f"UPDATE blocks SET {column} = ?", (value,))
    for use in (
        lambda: bank.get_block(samples.block(bank, samples.page("one")).key),
        lambda: bank.put_block(samples.block(bank, samples.page("one"))),
    ):
        with pytest.raises(BankError, match="is damaged: restore it from a backup"):
            use()
