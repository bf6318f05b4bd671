"""Statistics, verification and garbage collection."""

from __future__ import annotations

import json
import os
import sqlite3
import tracemalloc
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from qvpic_rag.bank import Bank, GcResult
from tests.bank import samples

NOTHING = GcResult(blocks=0, pages=0, orphans=0, temporary=0, bytes=0, dry_run=False)
LONG_AGO = 1_000_000_000.0


def change(bank: Bank, statement: str, *values: object) -> None:
    """Alter the database behind the bank's back."""
    with closing(sqlite3.connect(bank.path / "bank.sqlite")) as connection:
        connection.execute(statement, values)
        connection.commit()


def path_of(bank: Bank, text: str, dpi: int = 72) -> Path:
    digest = samples.block(bank, samples.page(text), dpi).key.digest
    return bank.path / "blocks" / digest[:2] / f"{digest}.safetensors"


def files(bank: Bank) -> set[Path]:
    return {path for path in (bank.path / "blocks").rglob("*") if path.is_file()}


def test_stats(bank: Bank) -> None:
    samples.put(bank, "a.txt", ["one", "shared"])
    samples.put(bank, "b.txt", ["shared"])
    bank.put_block(samples.block(bank, samples.page("three"), shape=(2, 2, 60, 4)))
    stats = bank.stats()
    assert (stats.documents, stats.pages, stats.generation, stats.namespace) == (2, 2, bank.generation, "default")
    assert stats.blocks == {72: 3, 120: 2}
    sizes = {path: path.stat().st_size for path in files(bank)}
    assert sum(stats.block_bytes.values()) == sum(sizes.values())
    assert stats.block_bytes[72] == sum(sizes[path_of(bank, text)] for text in ("one", "shared", "three"))
    assert (stats.unlinked, stats.evicted, stats.damaged, stats.limit) == (1, 0, 0, None)
    assert bank.disk_bytes() == sum(path.stat().st_size for path in bank.path.rglob("*") if path.is_file())
    assert stats.recipe["model"] == "zai-org/Glyph"
    written = json.loads(json.dumps(stats.to_dict()))
    assert written["blocks"] == {"72": 3, "120": 2}
    assert written["path"] == str(bank.path)


def test_stats_and_verify_keep_no_block_in_memory(bank: Bank) -> None:
    block = samples.block(bank, "1" * 64, shape=(8, 2, 4000, 64))
    bank.put_block(block)
    tracemalloc.start()
    try:
        bank.stats()
        bank.verify()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < block.nbytes / 4


def test_a_sound_bank_has_no_problems_and_reports_progress(bank: Bank) -> None:
    samples.put(bank, "a.txt", ["one", "two"])
    seen: list[tuple[int, int]] = []
    assert bank.verify(progress=lambda done, total: seen.append((done, total)), grace_s=0) == []
    assert seen == [(number, 6) for number in range(1, 7)]


def test_verify_finds_every_kind_of_problem(bank: Bank) -> None:
    samples.put(bank, "a.txt", ["one", "two", "three", "four", "five"])
    assert bank.verify(grace_s=0) == []
    path_of(bank, "one").unlink()
    with path_of(bank, "two").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    stored = samples.block(bank, samples.page("three"), 120).key.digest
    change(bank, "UPDATE blocks SET dpi = 72 WHERE digest = ?", stored)
    orphan = bank.path / "blocks" / "ab" / f"ab{'0' * 62}.safetensors"
    temporary = bank.path / "blocks" / "ab" / ".abab-1-2.tmp"
    foreign = bank.path / "blocks" / "notes.txt"
    orphan.parent.mkdir(exist_ok=True)
    for path in (orphan, temporary, foreign):
        path.write_bytes(b"x")
    change(bank, "UPDATE pages SET embedding = x'00' WHERE lines LIKE '%four%'")
    change(bank, "UPDATE pages SET lines = '[\"other\"]' WHERE lines LIKE '%five%'")
    change(bank, "INSERT INTO links VALUES (77, 0, 88)")
    problems = bank.verify(grace_s=0)
    kinds = sorted(problem.kind for problem in problems)
    assert kinds == sorted(
        ["missing", "corrupt", "mismatch", "orphan", "temporary", "unknown", "page", "page", *["database"] * 2]
    )
    assert all(problem.message.endswith(".") and "\n" not in problem.message for problem in problems)
    assert str(problems[0]) == problems[0].message
    assert all(set(problem.to_dict()) == {"kind", "subject", "message"} for problem in problems)
    young = sorted(problem.kind for problem in bank.verify())
    # The damaged block was set aside.
    kinds[kinds.index("corrupt")] = "quarantined"
    assert young == sorted(kind for kind in kinds if kind not in ("orphan", "temporary"))


def test_verify_reads_a_damaged_database(bank: Bank) -> None:
    samples.put(bank, "a.txt", [f"line {number}" for number in range(200)], blocks=False)
    bank.close()
    path = bank.path / "bank.sqlite"
    raw = bytearray(path.read_bytes())
    for start in range(8 * 4096, len(raw) - 4096, 4096):
        raw[start : start + 40] = b"\xff" * 40
    path.write_bytes(raw)
    with Bank.open(bank.path) as damaged:
        problems = damaged.verify()
    assert {problem.kind for problem in problems} == {"database"}
    assert "from a backup" in problems[0].message


def test_gc_leaves_a_sound_bank_alone(bank: Bank) -> None:
    samples.put(bank, "a.txt", ["one", "two"])
    before = files(bank)
    assert bank.gc(grace_s=0) == NOTHING
    assert files(bank) == before


def test_gc_removes_what_no_document_holds_after_the_grace_period(bank: Bank) -> None:
    samples.put(bank, "a.txt", ["one", "shared"])
    samples.put(bank, "b.txt", ["shared"])
    bank.remove_document("a.txt")
    assert len(files(bank)) == 4, "removing a document leaves the blocks to gc"
    assert bank.gc() == NOTHING
    size = path_of(bank, "one").stat().st_size + path_of(bank, "one", 120).stat().st_size
    would = bank.gc(dry_run=True, grace_s=0)
    assert would == replace(NOTHING, blocks=2, bytes=size, dry_run=True)
    assert str(would).startswith("2 block(s) and 0 page(s) that no document holds")
    assert len(files(bank)) == 4
    assert bank.gc(grace_s=0) == replace(would, dry_run=False)
    assert files(bank) == {path_of(bank, "shared"), path_of(bank, "shared", 120)}
    assert bank.gc(grace_s=0) == NOTHING
    assert bank.verify(grace_s=0) == []


def test_a_block_whose_document_is_still_to_come_survives(bank: Bank) -> None:
    block = samples.block(bank, samples.page("one"))
    bank.put_block(block)
    assert bank.gc() == NOTHING
    change(bank, "UPDATE blocks SET created = ?1, used = ?1", LONG_AGO)
    bank.put_block(block)  # puts it again, without writing: another grace period
    assert bank.gc() == NOTHING
    assert bank.has_block(block.key)
    change(bank, "UPDATE blocks SET created = ?1, used = ?1", 3 * LONG_AGO)  # the clock was set back since
    assert bank.gc().blocks == 1
    assert not bank.has_block(block.key)


def test_kept_blocks_survive_until_their_document_comes(bank: Bank) -> None:
    one, two = (samples.block(bank, samples.page(text)) for text in ("one", "two"))
    lost, absent, other = (samples.block(bank, samples.page(text)) for text in ("lost", "absent", "one"))
    for block in (one, two, lost):
        bank.put_block(block)
    path_of(bank, "lost").unlink()
    change(bank, "UPDATE blocks SET created = ?1, used = ?1", LONG_AGO)
    foreign = replace(other.key, namespace="other")
    assert bank.keep_blocks([]) == []
    assert bank.keep_blocks([absent.key, two.key, lost.key, foreign, two.key]) == [False, True, False, False, True]
    with Bank.open(bank.path) as elsewhere:
        assert elsewhere.gc().blocks == 2
    assert [bank.has_block(block.key) for block in (one, two, lost)] == [False, True, False]


def test_many_blocks_are_collected_in_batches(bank: Bank) -> None:
    samples.put(bank, "a.txt", [f"line {number}" for number in range(35)])
    bank.remove_document("a.txt")
    assert bank.gc(grace_s=0).blocks == 70
    assert files(bank) == set()


def test_gc_cleans_up_after_stopped_writers(bank: Bank) -> None:
    samples.put(bank, "a.txt", ["one", "two"])
    change(bank, "DELETE FROM blocks WHERE digest = ?", path_of(bank, "one").stem)
    temporary = path_of(bank, "one").with_name(".abab-1-2.tmp")
    temporary.write_bytes(b"half")
    foreign = bank.path / "blocks" / "notes.txt"
    foreign.write_text("not the bank's")
    size = path_of(bank, "one").stat().st_size + 4
    assert bank.gc() == NOTHING
    for path in (temporary, path_of(bank, "one")):
        os.utime(path, (LONG_AGO, LONG_AGO))
    assert bank.gc(dry_run=True) == replace(NOTHING, orphans=1, temporary=1, bytes=size, dry_run=True)
    assert bank.gc() == replace(NOTHING, orphans=1, temporary=1, bytes=size)
    assert files(bank) == {path_of(bank, "one", 120), path_of(bank, "two"), path_of(bank, "two", 120), foreign}
    foreign.unlink()
    assert bank.verify(grace_s=0) == []
    samples.put(bank, "a.txt", ["one", "two"])
    assert bank.stats().blocks == {72: 2, 120: 2}


def test_a_dry_run_counts_what_a_run_removes(bank: Bank) -> None:
    samples.put(bank, "a.txt", ["one", "two"])
    bank.remove_document("a.txt")
    path_of(bank, "one").unlink()
    change(bank, "DELETE FROM blocks WHERE digest = ?", path_of(bank, "two").stem)
    dry = bank.gc(dry_run=True, grace_s=0)
    assert dry == replace(bank.gc(grace_s=0), dry_run=True)
    assert (dry.blocks, dry.orphans) == (3, 1)


def test_gc_removes_pages_without_a_document(bank: Bank) -> None:
    samples.put(bank, "a.txt", ["one", "two"])
    change(bank, "DELETE FROM links WHERE number = 0")
    generation = bank.generation
    assert bank.gc(dry_run=True).pages == 1
    assert bank.gc().pages == 1
    assert bank.page_count() == 1
    assert bank.generation > generation


def test_gc_and_verify_cover_every_namespace(bank: Bank) -> None:
    with Bank.open(bank.path, "other") as other:
        samples.put(other, "a.txt", ["one"])
        assert bank.gc(grace_s=0) == NOTHING
        other.remove_document("a.txt")
        assert bank.gc(grace_s=0).blocks == 2


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_reading_a_large_block_copies_nothing(bank: Bank) -> None:
    block = samples.block(bank, "1" * 64, shape=(16, 2, 8000, 64))
    bank.put_block(block)
    before = resident()
    found = bank.get_block(block.key)
    assert resident() - before < block.nbytes / 4
    assert torch.equal(found.keys, block.keys)


def test_gc_forgets_no_block_whose_file_is_away(bank: Bank) -> None:
    """The disk of the block folder may just not be mounted."""
    samples.put(bank, "a.txt", ["one"])
    (bank.path / "blocks").rename(bank.path / "elsewhere")
    assert {problem.kind for problem in bank.verify()} == {"missing"}
    assert bank.gc(grace_s=0) == NOTHING
    (bank.path / "elsewhere").rename(bank.path / "blocks")
    assert bank.verify(grace_s=0) == []
