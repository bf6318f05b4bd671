"""``qvpic ingest``: what it prints, what it refuses, and that nothing is lost when it fails."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from qvpic_rag import Bank
from qvpic_rag.bank import blockfile
from tests.cli.conftest import Run
from tests.embed.small import save_bge

REPORT = {"added", "replaced", "repaired", "unchanged", "failed", "left_out", "pages", "compiled", "seconds"}


def sources(bank: Path) -> list[str]:
    """Documents of a bank, which must be sound."""
    with Bank.open(bank) as store:
        assert store.verify(grace_s=0) == []
        return [document.source for document in store.documents()]


def test_a_new_bank_then_nothing_to_do_then_a_change(run: Run, note: Path) -> None:
    bank = note.parent / "new" / "bank"
    result = run("ingest", note, "--bank", bank, "--model", "demo")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("1 added: 1 page, 2 blocks compiled in ")
    assert result.out.endswith(f"The bank {bank} holds 1 page.\n")
    assert run("ingest", note, "--bank", bank).out.startswith("1 unchanged: 0 pages, 0 blocks compiled")
    note.write_text("The desk room of Omar Reyes is C17.", encoding="utf-8")
    report = run("ingest", note, "--bank", bank, "--json").json
    assert set(report) == REPORT
    assert (report["replaced"], report["added"], report["compiled"]) == ([note.as_posix()], [], 2)


def test_storage_of_a_new_bank(run: Run, note: Path) -> None:
    bank = note.parent / "bank"
    result = run("ingest", note, "--bank", bank, "--model", "demo", "--storage", "int2")
    assert result.code == 2
    assert "storage must be native, int8 or int4" in result.err
    assert not bank.exists()
    assert run("ingest", note, "--bank", bank, "--model", "demo", "--storage", "int4,int8").code == 0
    assert run("bank", "stats", "--bank", bank, "--json").json["recipe"]["storage"] == ["int4", "int8"]
    assert "storage  int4,int8\n" in run("bank", "stats", "--bank", bank).out
    assert run("ingest", note, "--bank", bank).out.startswith("1 unchanged")
    result = run("ingest", note, "--bank", bank, "--storage", "int8")
    assert result.code == 2
    assert "another storage format: it holds int4,int8" in result.err


def test_what_hybrid_routing_needs_is_stored(run: Run, note: Path, tmp_path: Path) -> None:
    bank, embedder = tmp_path / "hybrid", save_bge(tmp_path / "bge")
    hybrid = ("--bank", bank, "--router", "hybrid")
    assert "'demo' has no lexical" in run("ingest", note, *hybrid, "--model", "demo").error
    assert not bank.exists()
    result = run("ingest", note, *hybrid, "--model", "demo", "--embedder", embedder)
    assert (result.code, result.err) == (0, "")
    assert len(list((bank / "index").glob("*.signals/*"))) == 1
    assert run("ask", "Where is Omar Reyes?", *hybrid, "--json").json["note"] == ""
    assert sources(bank) == [note.as_posix()]


def test_a_file_that_is_gone_is_pointed_out(run: Run, note: Path, bank: Path) -> None:
    other = note.with_name("other.txt")
    other.write_text("The desk room of Ines Falk is C17.", encoding="utf-8")
    run("ingest", note.parent, "--bank", bank)
    other.unlink()
    result = run("ingest", note.parent, "--bank", bank)
    assert result.code == 0
    assert f"1 document of the bank not found from here any more, such as {other}" in result.err
    assert run("bank", "remove", other, "--bank", bank).code == 0
    assert run("ingest", note.parent, "--bank", bank).err == ""


def test_nothing_is_said_of_names_that_are_no_files(
    run: Run, note: Path, bank: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(note.parent)
    run("ingest", "-", "--bank", bank, stdin=b"The desk room of Ines Falk is C17.")
    for folder in (".", "..", "./"):
        assert "not found from here" not in run("ingest", folder, "--bank", bank).err


def test_standard_input(run: Run, bank: Path) -> None:
    text = "The desk room of Omar Reyes is B214."
    assert run("ingest", "-", "--bank", bank, "--json", stdin=text.encode()).json["added"] == ["stdin"]
    assert "stdin" in sources(bank)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"", "is empty"),
        ("a.txt", b" \n", "is empty"),
        ("a.txt", b"\x00\x01\x02", "is a binary file"),
        ("a.bin", b"\x00\x01\x02", "is a binary file of type .bin; convert it to one of .txt"),
        ("a.txt", "Zoë".encode("latin-1"), "convert it to UTF-8"),
        ("a.pdf", b"no pdf", "PDF"),
        ("a.json", b"{", "JSON"),
    ],
)
def test_a_bad_file(run: Run, bank: Path, tmp_path: Path, name: str, content: bytes, words: str) -> None:
    before = sources(bank)
    (tmp_path / name).write_bytes(content)
    result = run("ingest", tmp_path / name, "--bank", bank)
    assert result.code == 2
    assert words in result.error
    assert sources(bank) == before


def test_an_empty_folder_and_an_empty_input(run: Run, bank: Path, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    result = run("ingest", tmp_path / "docs", "--bank", bank)
    assert result.code == 2
    assert "holds no file that can be read; supported are .txt" in result.error
    result = run("ingest", "-", "--bank", bank)
    assert result.code == 2
    assert "Standard input is empty" in result.error


def test_a_missing_path_makes_no_bank(run: Run, tmp_path: Path) -> None:
    result = run("ingest", "nowhere.txt", "--bank", tmp_path / "bank", "--model", "demo")
    assert (result.code, result.out) == (2, "")
    assert result.error == "'nowhere.txt' does not exist; check the path."
    assert list(tmp_path.iterdir()) == []


def test_good_files_are_stored_and_bad_ones_listed(run: Run, bank: Path, note: Path) -> None:
    (note.parent / "bad.txt").write_bytes(b"\x00")
    paths = (note, note.parent / "bad.txt", note.parent / "missing.txt")
    result = run("ingest", *paths, "--bank", bank)
    assert result.code == 1
    assert result.out.startswith("1 added, 2 failed")
    assert [line.split(":")[0] for line in result.err.splitlines()] == ["Error", "Error"]
    assert note.as_posix() in sources(bank)
    result = run("ingest", *paths, "--bank", bank, "--json")
    assert result.code == 1
    report = json.loads(result.out)
    assert report["unchanged"] == [note.as_posix()]
    assert [set(failure) for failure in report["failed"]] == [{"source", "error"}] * 2


def test_files_without_a_reader_are_said(run: Run, bank: Path, note: Path) -> None:
    (note.parent / "table.xlsx").write_bytes(b"PK")
    result = run("ingest", note.parent, "--bank", bank)
    assert result.code == 0
    assert "1 file left out" in result.err
    assert ".xlsx" in result.err
    assert json.loads(run("ingest", note.parent, "--bank", bank, "--json").out)["left_out"] == [
        (note.parent / "table.xlsx").as_posix()
    ]


def test_a_file_without_permission(run: Run, bank: Path, note: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_bytes

    def denied(path: Path) -> bytes:
        if path == note:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", denied)
    result = run("ingest", note, "--bank", bank)
    assert result.code == 2
    assert "permission denied; make it readable" in result.error


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "is full"), (errno.EACCES, "no permission"), (errno.EIO, "Input/output error")],
)
def test_a_disk_that_fails(
    run: Run, bank: Path, note: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    before = sources(bank)

    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(blockfile.os, "fsync", fail)
        result = run("ingest", note, "--bank", bank)
    assert (result.code, result.out) == (1, "")
    assert words in result.error
    assert sources(bank) == before
    assert run("ingest", note, "--bank", bank).code == 0
    assert sources(bank) == [*before, note.as_posix()]


def test_an_interrupt(run: Run, bank: Path, note: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(blockfile.os, "fsync", interrupt)
        result = run("ingest", note, "--bank", bank)
    assert (result.code, result.out) == (1, "")
    assert result.err == "Interrupted; what was stored stays, run the same command again to go on.\n"
    assert run("ingest", note, "--bank", bank, "--json").json["added"] == [note.as_posix()]


@pytest.mark.filterwarnings("default")
def test_characters_that_no_font_draws(run: Run, bank: Path, note: Path) -> None:
    note.write_text("odd \U0010fffd", encoding="utf-8")
    result = run("ingest", note, "--bank", bank, "--strict")
    assert result.code == 2
    assert "U+10FFFD" in result.error
    result = run("ingest", note, "--bank", bank)
    assert result.code == 0
    assert result.err.startswith("Warning: ")
    assert "U+10FFFD" in result.err


def test_settings_that_do_not_fit(run: Run, bank: Path, note: Path) -> None:
    for options, words in (
        (("--low-dpi", 72), "Give --low-dpi and --high-dpi together"),
        (("--high-dpi", 72), "Give --low-dpi and --high-dpi together"),
        (("--low-dpi", 120, "--high-dpi", 72), "low below high"),
        (("--low-dpi", 60, "--high-dpi", 90), "dpis"),
        (("--batch-size", 0), "batch_size"),
        (("--profile", "nothing"), "nothing"),
        (("--profile", "glyph"), "profile"),
        (("--dtype", "int7"), "int7"),
        (("--dtype", "bfloat16"), "dtype"),
        (("--device", "abacus"), "abacus"),
        (("--system-prompt", "Be brief."), "system prompt"),
        (("--namespace", ""), "namespace"),
    ):
        result = run("ingest", note, "--bank", bank, *options)
        assert (result.code, result.out) == (2, ""), options
        assert words in result.error


def test_a_model_that_cannot_be_had(run: Run, tmp_path: Path, note: Path) -> None:
    result = run("ingest", note, "--bank", tmp_path / "bank", "--model", tmp_path / "no-model")
    assert (result.code, result.out) == (2, "")
    assert "no-model" in result.error
    assert not (tmp_path / "bank").exists()
    result = run("ingest", note, "--bank", tmp_path / "bank")
    assert result.code == 2
    assert "--model" in result.error


@pytest.mark.parametrize("kind", ["sliding_window", "qwen3_5", "llama", "unknown"])
def test_an_unsupported_architecture(
    run: Run, tmp_path: Path, note: Path, refused_folder: Callable[[str], Path], kind: str
) -> None:
    result = run("ingest", note, "--bank", tmp_path / "bank", "--model", refused_folder(kind))
    assert (result.code, result.out) == (2, "")
    assert "qwen2_5_vl" in result.error
    assert not (tmp_path / "bank").exists()


def test_a_bank_of_another_model(run: Run, bank: Path, note: Path, tiny_folder: Callable[..., Path]) -> None:
    before = sources(bank)
    result = run("ingest", note, "--bank", bank, "--model", tiny_folder("qwen2_vl"))
    assert (result.code, result.out) == (2, "")
    assert "model" in result.error
    assert sources(bank) == before


def test_an_embedder_that_cannot_be_had(run: Run, bank: Path, note: Path) -> None:
    result = run("ingest", note, "--bank", bank, "--embedder", note.parent / "nothing")
    assert (result.code, result.out) == (2, "")
    assert "nothing" in result.error


def test_a_folder_of_other_things_becomes_no_bank(run: Run, note: Path) -> None:
    result = run("ingest", note, "--bank", note.parent, "--model", "demo")
    assert (result.code, result.out) == (2, "")
    assert [path.name for path in note.parent.iterdir()] == ["note.txt"]
