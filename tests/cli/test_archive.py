"""``qvpic bank export|import``, and ``remove --json``."""

from __future__ import annotations

from pathlib import Path

import pytest

from qvpic_rag import QVPIC, Bank
from tests.cli.conftest import Run
from tests.cli.test_ask import QUESTION


def test_a_bank_answers_elsewhere_and_nothing_is_compiled(run: Run, demo_bank: Path, tmp_path: Path) -> None:
    file, there = tmp_path / "demo.tar", tmp_path / "there"
    result = run("bank", "export", file, "--bank", demo_bank)
    size = f"{file.stat().st_size / 1e6:.1f} MB"
    assert (result.code, result.err) == (0, "")
    assert result.out == f"7 documents, 13 pages, 26 blocks written to {file}, {size}.\n"
    result = run("bank", "import", file, "--bank", there)
    assert (result.code, result.err) == (0, "")
    assert result.out == f"7 added: 7 documents, 13 pages, 26 blocks, 26 of them new here, {size}.\n"
    assert run("bank", "verify", "--bank", there).code == 0
    with QVPIC.open(demo_bank, on_miss="error") as here, QVPIC.open(there, on_miss="error") as moved:
        expected, answer = here.ask(QUESTION), moved.ask(QUESTION)
    assert answer.text == expected.text
    assert answer.route == expected.route
    assert answer.route.compiled == ()
    again = run("bank", "import", file, "--bank", there)
    assert again.out == f"7 unchanged: 7 documents, 13 pages, 26 blocks, 0 of them new here, {size}.\n"


def test_some_documents_into_a_namespace(run: Run, demo_bank: Path, tmp_path: Path) -> None:
    file, there = tmp_path / "two.tar", tmp_path / "there"
    written = run("bank", "export", file, "./badges.txt", "garden.txt", "--bank", demo_bank, "--json").json
    assert (written["documents"], written["bytes"]) == (2, file.stat().st_size)
    stored = run("bank", "import", file, "--bank", there, "--namespace", "guest", "--json").json
    assert (stored["namespace"], stored["added"], stored["stored"]) == ("guest", ["badges.txt", "garden.txt"], 8)
    with Bank.open(there) as default, Bank.open(there, "guest") as guest:
        assert default.documents() == []
        assert [document.source for document in guest.documents()] == ["badges.txt", "garden.txt"]
    with QVPIC.open(there, namespace="guest", on_miss="error") as rag:
        assert rag.ask("What is the garden key of Ines Falk?").route.compiled == ()


def test_what_export_refuses(run: Run, demo_bank: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.tar"
    result = run("bank", "export", file, "badge.txt", "--bank", demo_bank)
    assert (result.code, result.out) == (2, "")
    assert "no document 'badge.txt', and nothing was exported; did you mean 'badges.txt'?" in result.error
    assert "nothing to export" in run("bank", "export", file, "--bank", demo_bank, "--namespace", "none").error
    assert not file.exists()
    file.write_bytes(b"precious")
    assert "--force" in run("bank", "export", file, "--bank", demo_bank).error
    assert file.read_bytes() == b"precious"
    assert run("bank", "export", file, "badges.txt", "--bank", demo_bank, "--force").code == 0


def test_what_import_refuses(run: Run, demo_bank: Path, tmp_path: Path) -> None:
    file, there = tmp_path / "x.tar", tmp_path / "there"
    assert "cannot be read (No such file" in run("bank", "import", file, "--bank", there).error
    run("bank", "export", file, "badges.txt", "--bank", demo_bank)
    file.write_bytes(file.read_bytes()[:-5000])
    result = run("bank", "import", file, "--bank", there)
    assert (result.code, result.out) == (2, "")
    assert "it is cut off: copy it here again" in result.error
    assert not there.exists()


@pytest.mark.parametrize("name", ["export", "import"])
def test_a_bar_is_drawn_on_a_terminal(
    run: Run, demo_bank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    run("bank", "export", tmp_path / "x.tar", "badges.txt", "--bank", demo_bank)
    monkeypatch.setenv("FORCE_COLOR", "1")
    where = ("--bank", demo_bank, "--force") if name == "export" else ("--bank", tmp_path / "there")
    result = run("bank", name, tmp_path / "x.tar", *where)
    assert result.code == 0
    assert f"{name.title()}ing" in result.err
    quiet = run("bank", name, tmp_path / "x.tar", *where, "--json")
    assert quiet.json["documents"] == (7 if name == "export" else 1)


def test_remove_tells_what_it_removed(run: Run, bank: Path) -> None:
    removed = run("bank", "remove", "./badges.txt", "garden.txt", "badges.txt", "--bank", bank, "--json").json
    assert removed == {"removed": ["badges.txt", "garden.txt"], "pages": 4}
    assert run("bank", "stats", "--bank", bank, "--json").json["documents"] == 5
