"""Documents from one bank to another through one file: everything arrives as it was, or nothing does."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from qvpic_rag.bank import Bank, archive_write, export_bank, import_archive
from qvpic_rag.bank.archive import ArchiveReport
from qvpic_rag.errors import (
    ArchiveError,
    BankError,
    BankMismatchError,
    BankNotFoundError,
    ConfigError,
    DocumentError,
    QVPICError,
)
from qvpic_rag.records import Page
from tests.bank import archives, samples

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden" / "archive-v1.tar"
ODD = {
    "lone surrogate \udcff.txt": "\udcff and \ud800",
    "two\nlines\r\n\t.txt": "line\u2028separator\x85",
    "nul\x00.txt": "nul \x00 in it",
    "../../etc/passwd": "{}[]\\\"'",
    "zoë 🔑 " + "long " * 2000: "word " * 20_000,
}


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[Bank]:
    with archives.sample_bank(tmp_path / "origin") as bank:
        yield bank


def moved(origin: Bank, folder: Path, namespace: str = "default", sources: list[str] | None = None) -> ArchiveReport:
    target = folder.with_suffix(".tar")
    export_bank(origin, target, sources)
    return import_archive(target, folder, namespace)


@pytest.mark.parametrize("namespace", ["default", "other ü"])
def test_everything_arrives_bit_by_bit(origin: Bank, tmp_path: Path, namespace: str) -> None:
    report = moved(origin, tmp_path / "there", namespace)
    size = (tmp_path / "there.tar").stat().st_size
    assert (report.documents, report.pages, report.blocks, report.stored) == (2, 3, 6, 6)
    assert (report.path, report.namespace, report.bytes) == (str(tmp_path / "there.tar"), namespace, size)
    assert (report.added, report.replaced, report.unchanged) == (("a.txt", "b/ü.txt"), (), ())
    with Bank.open(tmp_path / "there", namespace) as there:
        assert there.recipe == origin.recipe
        assert archives.content(there) == archives.content(origin)
        assert [each.source for each in there.documents()] == [each.source for each in origin.documents()]
        assert there.verify(grace_s=0) == []
        assert there.gc(grace_s=0).bytes == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["origin", "there", "there.tar"]


def test_what_an_export_tells(origin: Bank, tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    report = export_bank(origin, tmp_path / "x.tar", progress=lambda *state: seen.append(state))
    size = (tmp_path / "x.tar").stat().st_size
    assert report == ArchiveReport(str(tmp_path / "x.tar"), "default", documents=2, pages=3, blocks=6, bytes=size)
    assert report.to_dict()["blocks"] == 6
    assert seen == [(done, 6, "writing") for done in range(1, 7)]
    seen.clear()
    import_archive(tmp_path / "x.tar", tmp_path / "there", progress=lambda *state: seen.append(state))
    assert [state[0] for state in seen] == [2, 4, 6, *range(7, 13)]
    assert {state[1:] for state in seen} == {(12, "checking"), (12, "storing")}


def test_any_tar_lists_it_and_blocks_are_as_stored(origin: Bank, tmp_path: Path) -> None:
    export_bank(origin, tmp_path / "x.tar")
    with tarfile.open(tmp_path / "x.tar", "r:") as tar:
        names = tar.getnames()
        assert names[:3] == list(archives.NAMES)
        assert names[-1] == "end.json"
        for name in names[3:-1]:
            digest = name.removeprefix("blocks/").removesuffix(".safetensors")
            stored = origin.path / "blocks" / digest[:2] / f"{digest}.safetensors"
            assert tar.extractfile(name).read() == stored.read_bytes()  # type: ignore[union-attr]
    assert len(names) == len(set(names)) == 10, "a shared page and its blocks are there once"


def test_the_same_documents_give_the_same_bytes(origin: Bank, tmp_path: Path) -> None:
    export_bank(origin, tmp_path / "x.tar")
    moved(origin, tmp_path / "there")
    with Bank.open(tmp_path / "there") as there:
        export_bank(there, tmp_path / "y.tar")
    assert (tmp_path / "x.tar").read_bytes() == (tmp_path / "y.tar").read_bytes()


def test_some_documents_only(origin: Bank, tmp_path: Path) -> None:
    report = moved(origin, tmp_path / "there", sources=["b/ü.txt", "b/ü.txt"])
    assert (report.added, report.pages, report.blocks) == (("b/ü.txt",), 3, 6)
    report = moved(origin, tmp_path / "fewer", sources=["a.txt"])
    assert (report.added, report.pages, report.blocks) == (("a.txt",), 2, 4)
    with Bank.open(tmp_path / "fewer") as there:
        assert archives.content(there) == {"a.txt": archives.content(origin)["a.txt"]}
        assert there.verify(grace_s=0) == []


def test_into_an_existing_bank(origin: Bank, tmp_path: Path) -> None:
    with Bank.create(tmp_path / "there", samples.recipe()) as there:
        samples.put(there, "own.txt", ["shared", "own"])
        samples.put(there, "a.txt", ["before", "shared"])
        report = moved(origin, tmp_path / "there")
        assert (report.added, report.replaced, report.unchanged) == (("b/ü.txt",), ("a.txt",), ())
        assert report.stored == 4, "the blocks of the shared page were there"
        found = archives.content(there)
        assert {name: found[name] for name in ("a.txt", "b/ü.txt")} == archives.content(origin)
        assert [page.lines[0] for page in there.document_pages("own.txt")] == ["shared", "own"]
        generation = there.generation
        report = import_archive(tmp_path / "there.tar", tmp_path / "there")
        assert (report.added, report.replaced, report.unchanged, report.stored) == ((), (), ("a.txt", "b/ü.txt"), 0)
        assert there.generation == generation
        assert there.verify(grace_s=0) == []


def test_an_import_repairs_blocks(origin: Bank, tmp_path: Path) -> None:
    moved(origin, tmp_path / "there")
    gone, damaged = sorted((tmp_path / "there" / "blocks").rglob("*.safetensors"))[:2]
    gone.unlink()
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\xff")
    report = import_archive(tmp_path / "there.tar", tmp_path / "there")
    assert (report.unchanged, report.stored) == (("a.txt", "b/ü.txt"), 2)
    with Bank.open(tmp_path / "there") as there:
        assert archives.content(there) == archives.content(origin)
        assert there.verify(grace_s=0) == []


def test_blocks_that_a_collection_took_meanwhile_come_again(
    origin: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = Bank.keep_blocks

    def collected(bank: Bank, keys: Any) -> list[bool]:
        bank.gc(grace_s=0)  # takes what no document holds
        return keep(bank, keys)

    monkeypatch.setattr(Bank, "keep_blocks", collected)
    report = moved(origin, tmp_path / "there")
    assert report.stored > 6
    with Bank.open(tmp_path / "there") as there:
        assert archives.content(there) == archives.content(origin)


@pytest.mark.parametrize(
    ("change", "field"),
    [({"fingerprint": "f" * 64}, "model"), ({"dpis": (72, 96)}, "dpis"), ({"dimension": 4}, "dimension")],
)
def test_a_bank_of_another_recipe(origin: Bank, tmp_path: Path, change: dict[str, Any], field: str) -> None:
    with Bank.create(tmp_path / "there", samples.recipe(**change)) as there:
        with pytest.raises(BankMismatchError) as caught:
            moved(origin, tmp_path / "there")
        assert caught.value.field == field
        assert (there.documents(), there.stats().blocks) == ([], {})


def test_odd_names_and_texts(tmp_path: Path) -> None:
    with Bank.create(tmp_path / "origin", samples.recipe()) as bank:
        for source, text in ODD.items():
            page = Page((text, ""), text, source, 0)
            for dpi in bank.recipe.dpis:
                bank.put_block(samples.block(bank, page, dpi))
            _, vectors = samples.document(source, ["x"])
            bank.put_document(
                source, source.encode("utf-8", "replace").decode(), [page], vectors, {text: [1.5, None, {}]}
            )
        bank.put_document("no pages", "d", [], [], {})
        moved(bank, tmp_path / "there")
        with Bank.open(tmp_path / "there") as there:
            assert archives.content(there) == archives.content(bank)
            assert set(archives.content(there)) == {*ODD, "no pages"}
            assert there.verify(grace_s=0) == []
    assert not (tmp_path.parent / "etc").exists()


# ---------------------------------------------------------------------- what an export refuses


def test_an_existing_target(origin: Bank, tmp_path: Path) -> None:
    target = tmp_path / "x.tar"
    target.write_bytes(b"precious")
    with pytest.raises(ArchiveError, match=r"exists: .*--force"):
        export_bank(origin, target)
    assert target.read_bytes() == b"precious"
    export_bank(origin, target, force=True)
    assert import_archive(target, tmp_path / "there").stored == 6
    with pytest.raises(ArchiveError, match="is there and is no file"):
        export_bank(origin, tmp_path, force=True)
    with pytest.raises(ArchiveError, match="There is no folder"):
        export_bank(origin, tmp_path / "none" / "x.tar")
    (tmp_path / "device").symlink_to("/dev/null")
    with pytest.raises(ArchiveError, match="is no file"):
        export_bank(origin, tmp_path / "device", force=True)


@pytest.mark.parametrize(
    ("sources", "kind", "words"),
    [
        (["a.txt", "c.txt"], DocumentError, "holds no document 'c.txt'"),
        ([], BankNotFoundError, "nothing to export from namespace 'default'"),
    ],
)
def test_documents_that_are_not_there(
    origin: Bank, tmp_path: Path, sources: list[str], kind: type[QVPICError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        export_bank(origin, tmp_path / "x.tar", sources)
    with Bank.open(origin.path, "empty") as empty, pytest.raises(BankNotFoundError, match="namespace 'empty'"):
        export_bank(empty, tmp_path / "x.tar")
    assert not (tmp_path / "x.tar").exists()


def test_missing_and_damaged_blocks(origin: Bank, tmp_path: Path) -> None:
    files = sorted((origin.path / "blocks").rglob("*.safetensors"))
    kept = [path.read_bytes() for path in files]
    for path in files[:2]:
        path.unlink()
    with pytest.raises(BankError, match=r"2 of the 6 blocks to export are not in the bank .*qvpic ingest"):
        export_bank(origin, tmp_path / "x.tar")
    for path, data in zip(files, kept, strict=True):
        path.write_bytes(data)
    for path in files[-3:]:
        path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(BankError, match=r"3 of the 6 blocks to export are damaged .*qvpic bank verify"):
        export_bank(origin, tmp_path / "x.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["origin"]


def test_a_bank_that_changes_during_the_export(origin: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = Bank.find_page

    def changing(bank: Bank, digest: str) -> Page | None:
        samples.put(bank, "new.txt", ["new"])
        return find(bank, digest)

    with monkeypatch.context() as patch:
        patch.setattr(Bank, "find_page", changing)
        with pytest.raises(BankError, match=r"changed the bank .* run the same command again"):
            export_bank(origin, tmp_path / "x.tar")
        patch.setattr(Bank, "find_page", lambda bank, digest: None)
        with pytest.raises(BankError, match="changed the bank"):
            export_bank(origin, tmp_path / "x.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["origin"]
    assert export_bank(origin, tmp_path / "x.tar").documents == 3


def test_more_than_the_format_holds(origin: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit in (("LONGEST_LINE", 100), ("LARGEST_MEMBER", 1000)):
        with monkeypatch.context() as patch:
            patch.setattr(f"qvpic_rag.bank.archive.{name}", limit)
            with pytest.raises(ArchiveError, match=r"cannot be written, .* bytes: export fewer"):
                export_bank(origin, tmp_path / "x.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["origin"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EIO])
def test_a_target_that_cannot_be_written(
    origin: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(archive_write.os, "fsync", fail)
        with pytest.raises(BankError, match=f"cannot be written .{os.strerror(number)}.: free some space") as caught:
            export_bank(origin, tmp_path / "x.tar")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["origin"]


def test_a_bank_that_cannot_be_written_is_exported_all_the_same(origin: Bank, tmp_path: Path) -> None:
    origin._database.writable = False
    assert export_bank(origin, tmp_path / "x.tar").blocks == 6


# ---------------------------------------------------------------------- what an import survives


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_bank_that_cannot_be_written(
    origin: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(path: Path, *arguments: object, **options: object) -> Any:
        if path.name.endswith(".tmp"):
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, *arguments, **options)  # type: ignore[arg-type]

    export_bank(origin, tmp_path / "x.tar")
    opened = Path.open
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", fail)
        with pytest.raises(BankError, match=r"is full|no permission"):
            import_archive(tmp_path / "x.tar", tmp_path / "there")
    with Bank.open(tmp_path / "there") as there:
        assert (there.documents(), there.verify(grace_s=0)) == ([], [])
    assert import_archive(tmp_path / "x.tar", tmp_path / "there").stored == 6


def test_a_read_only_bank_and_places_for_none(origin: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export_bank(origin, tmp_path / "x.tar")
    Bank.create(tmp_path / "there", samples.recipe()).close()
    with monkeypatch.context() as patch:
        patch.setattr("qvpic_rag.bank.index_db.os.access", lambda *args, **options: False)
        with pytest.raises(BankError, match="is read-only here"):
            import_archive(tmp_path / "x.tar", tmp_path / "there")
    for path in (tmp_path / "x.tar", tmp_path):
        with pytest.raises(BankNotFoundError):
            import_archive(tmp_path / "x.tar", path)
    with pytest.raises(ConfigError):
        import_archive(tmp_path / "x.tar", tmp_path / "new", "")
    assert not (tmp_path / "new").exists()


def test_an_import_that_is_killed_goes_on_when_it_is_run_again(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.bank.archive_worker", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 15


def test_memory_is_one_block_at_a_time(tmp_path: Path) -> None:
    """Neither direction holds more than pieces: what a block needs is the system's page cache."""
    import tracemalloc

    with Bank.create(tmp_path / "origin", samples.recipe()) as bank:
        pages, vectors = samples.document("a.txt", ["one", "two"])
        blocks = [samples.block(bank, page, dpi, shape=(8, 2, 4000, 64)) for page in pages for dpi in (72, 120)]
        for block in blocks:
            bank.put_block(block)
        bank.put_document("a.txt", "d", pages, vectors, {})
        tracemalloc.start()
        try:
            moved(bank, tmp_path / "there")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < blocks[0].nbytes / 2


# ---------------------------------------------------------------------- format


# To make the file again after a change of the format: a new version number in its name, and
# `export_bank(golden_bank(folder), GOLDEN)`. Files of older versions stay and must keep importing.
def golden_bank(folder: Path) -> Bank:
    bank = Bank.create(folder, samples.recipe(system_prompt="Zoë"), "golden")
    samples.put(bank, "a.txt", ["one", "shared"])
    samples.put(bank, "\udcff\n.txt", ["shared"])
    return bank


def test_a_golden_archive(tmp_path: Path) -> None:
    assert GOLDEN.stat().st_size < 50_000
    with golden_bank(tmp_path / "origin") as bank:
        report = import_archive(GOLDEN, tmp_path / "there", "golden")
        assert (report.documents, report.pages, report.blocks) == (2, 2, 4)
        with Bank.open(tmp_path / "there", "golden") as there:
            assert there.recipe == bank.recipe
            assert archives.content(there) == archives.content(bank)
        export_bank(bank, tmp_path / "x.tar")
    assert (tmp_path / "x.tar").read_bytes() == GOLDEN.read_bytes()


def test_a_newer_archive_says_what_to_do(origin: Bank, tmp_path: Path) -> None:
    export_bank(origin, tmp_path / "x.tar")
    parts = archives.Parts.of(tmp_path / "x.tar").change("qvpic-archive.json", version=2, more=[1, 2])
    newer = parts.write(tmp_path / "newer.tar")
    with pytest.raises(ArchiveError, match=r"has format 2, .* reads up to 1: upgrade qvpic-rag"):
        import_archive(newer, tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_a_damaged_database_is_not_exported(origin: Bank, tmp_path: Path) -> None:
    with closing(sqlite3.connect(origin.path / "bank.sqlite")) as connection:
        connection.execute("UPDATE pages SET embedding = x'00' WHERE id = (SELECT min(id) FROM pages)")
        connection.commit()
    with pytest.raises(BankError, match=r"embedding of page \d+ .* is damaged"):
        export_bank(origin, tmp_path / "x.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["origin"]


def test_an_import_keeps_to_the_limit(tmp_path: Path) -> None:
    with Bank.create(tmp_path / "origin", samples.recipe()) as bank:
        samples.put(bank, "a.txt", ["one", "two", "three"])
        export_bank(bank, tmp_path / "all.tar")
        one = max(path.stat().st_size for path in (bank.path / "blocks").rglob("*.safetensors"))
    with Bank.create(tmp_path / "small", samples.recipe()) as small:
        small.set_max_bytes(3 * one)
        report = import_archive(tmp_path / "all.tar", tmp_path / "small")
        assert report.added == ("a.txt",)
        assert sum(path.stat().st_size for path in (small.path / "blocks").rglob("*") if path.is_file()) <= 3 * one
        assert small.page_count() == 3
        assert small.stats().evicted >= 3
        small.set_max_bytes(one)
        with pytest.raises(BankError, match="raise the limit"):  # the block and its temporary file do not fit
            import_archive(tmp_path / "all.tar", tmp_path / "small", "other")
        assert small.verify(grace_s=0) == []
