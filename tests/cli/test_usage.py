"""Help, version, and command lines that are refused before anything is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from qvpic_rag import __version__
from tests.cli.conftest import Run


def test_version(run: Run) -> None:
    result = run("--version")
    assert (result.code, result.out, result.err) == (0, f"qvpic-rag {__version__}\n", "")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ((), ["Usage: qvpic", "ingest", "ask", "demo", "bank"]),
        (("ingest",), ["Usage: qvpic ingest", "--model", "standard input"]),
        (("ask",), ["Usage: qvpic ask", "--top-k", "--trace", "FILE.html", "--json"]),
        (("demo",), ["Usage: qvpic demo", "--bank"]),
        (("bank",), ["Usage: qvpic bank", "stats", "verify", "gc", "remove", "export", "import"]),
        (("bank", "gc"), ["Usage: qvpic bank gc", "--grace", "--dry-run"]),
        (("bank", "export"), ["Usage: qvpic bank export", "FILE", "SOURCE", "--namespace", "--force", "--json"]),
        (("bank", "import"), ["Usage: qvpic bank import", "FILE", "--namespace", "--json"]),
    ],
)
def test_help(run: Run, command: tuple[str, ...], words: list[str]) -> None:
    result = run(*command, "--help")
    assert (result.code, result.err) == (0, "")
    for word in words:
        assert word in result.out


@pytest.mark.parametrize("command", [(), ("bank",)])
def test_a_command_without_anything_shows_its_help_and_fails(run: Run, command: tuple[str, ...]) -> None:
    result = run(*command)
    assert (result.code, result.out) == (2, "")
    assert "Commands:" in result.err


@pytest.mark.parametrize("command", [(), ("bank",)])
def test_every_summary_fits_its_line(run: Run, command: tuple[str, ...]) -> None:
    assert "..." not in run(*command, "--help").out.split("Commands:")[1]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("frob",), "No such command 'frob'; see: qvpic --help"),
        (("bank", "frob"), "No such command 'frob'; see: qvpic bank --help"),
        (("ask",), "Missing argument 'QUESTION'; see: qvpic ask --help"),
        (("ask", "why"), "Missing option '--bank'; see: qvpic ask --help"),
        (("ask", "why", "--bank", "b", "--topk", "3"), "No such option: --topk"),
        (("ask", "why", "--bank", "b", "--top-k", "x"), "Invalid value for '--top-k'"),
        (("ingest", "--bank", "b"), "Missing argument 'PATH'"),
        (("bank", "gc", "--bank", "b", "--grace", "-1"), "Invalid value for '--grace'"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(run: Run, command: tuple[str, ...], words: str) -> None:
    result = run(*command)
    assert (result.code, result.out) == (2, "")
    assert words in result.error


COMMANDS = [
    ("ask", "why"),
    *(("bank", name) for name in ("stats", "list", "verify", "gc")),
    ("bank", "remove", "a.txt"),
    ("bank", "export", "a.tar"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_missing_bank(run: Run, tmp_path: Path, command: tuple[str, ...]) -> None:
    result = run(*command, "--bank", tmp_path / "none")
    assert (result.code, result.out) == (2, "")
    assert "There is no bank at" in result.error
    assert "qvpic ingest PATH --bank" in result.error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_path_that_is_no_bank(run: Run, note: Path, command: tuple[str, ...]) -> None:
    for path in (note, note.parent):
        result = run(*command, "--bank", path)
        assert (result.code, result.out) == (2, "")
        assert "There is no bank at" in result.error


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_database_that_is_none(run: Run, tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "bank.sqlite").write_bytes(b"no database at all " * 100)
    result = run(*command, "--bank", tmp_path)
    assert (result.code, result.out) == (2, "")
    assert "bank" in result.error


def test_debug_adds_the_traceback_and_keeps_sentence_and_code(run: Run, tmp_path: Path) -> None:
    result = run("ask", "why", "--bank", tmp_path / "none", "--debug")
    assert result.code == 2
    assert result.err.startswith("Traceback (most recent call last):")
    assert result.err.splitlines()[-1].startswith("Error: There is no bank at")


def test_an_unforeseen_error_is_a_sentence_too(run: Run, demo_bank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("qvpic_rag.pipeline.QVPIC.open", fail)
    result = run("ask", "why", "--bank", demo_bank)
    assert result.code == 1
    assert result.error == "RuntimeError: boom. Run again with --debug to see where."
