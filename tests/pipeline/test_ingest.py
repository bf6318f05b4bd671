"""Ingesting: what is stored, skipped, replaced and reported, and what an interruption leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qvpic_rag import QVPIC, Document
from qvpic_rag.errors import BankNotFoundError, InputError

BADGE = "What is the badge code of Marta Lind?"


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., QVPIC]]:
    """``empty()``: an engine on a new bank."""
    opened: list[QVPIC] = []

    def make(**options: Any) -> QVPIC:
        opened.append(QVPIC.from_pretrained("demo", tmp_path_factory.mktemp("bank") / "bank", **options))
        return opened[-1]

    yield make
    for rag in opened:
        rag.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    handbook = tmp_path / "handbook"
    handbook.mkdir()
    (handbook / "a.txt").write_text("The badge code of Marta Lind is KX-4471.")
    (handbook / "b.md").write_text("The desk room of Omar Reyes is B214.")
    return handbook


def test_files_are_stored_once(empty: Callable[..., QVPIC], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    rag = empty()
    first = rag.ingest(["handbook/"])
    assert first.added == ("handbook/a.txt", "handbook/b.md")
    assert (first.pages, first.compiled) == (2, 4)
    again = rag.ingest("handbook")
    assert (again.added, again.unchanged, again.compiled) == ((), first.added, 0)
    assert rag.ask(BADGE, max_new_tokens=16).text == "KX-4471"
    assert rag.remove("handbook/a.txt")
    assert {page.source for page in rag.ask(BADGE, max_new_tokens=4).route.pages} == {"handbook/b.md"}


def test_a_changed_document_is_replaced(empty: Callable[..., QVPIC]) -> None:
    rag = empty()
    rag.ingest(Document("The badge code of Marta Lind is KX-4471.", "note"))
    report = rag.ingest(Document("The badge code of Marta Lind is TB-209.", "note"))
    assert report.replaced == ("note",)
    answer = rag.ask(BADGE, max_new_tokens=16)
    assert [page.source for page in answer.route.pages] == ["note"]
    assert answer.text == "TB-209"


def test_equal_pages_are_compiled_once(empty: Callable[..., QVPIC]) -> None:
    report = empty().ingest([Document("The desk room of Omar Reyes is B214.", name) for name in "abc"])
    assert (len(report.added), report.compiled) == (3, 2)


def test_good_files_are_stored_and_bad_ones_listed(empty: Callable[..., QVPIC], folder: Path) -> None:
    (folder / "c.txt").write_bytes(b"\x00\x01\x02binary")
    rag = empty()
    report = rag.ingest([folder, folder / "missing.txt"])
    assert len(report.added) == 2
    assert [Path(failure.source).name for failure in report.failed] == ["c.txt", "missing.txt"]
    assert rag.bank.page_count() == 2


def test_two_documents_of_one_name(empty: Callable[..., QVPIC]) -> None:
    with pytest.raises(InputError, match="Two documents are named 'x'"):
        empty().ingest([Document("a", "x"), Document("b", "x")])


def test_an_empty_document_is_a_failure(empty: Callable[..., QVPIC]) -> None:
    report = empty().ingest([Document(" \n", "blank"), Document("text", "full")])
    assert report.added == ("full",)
    assert [failure.source for failure in report.failed] == ["blank"]


def test_strict_refuses_what_no_font_draws(empty: Callable[..., QVPIC]) -> None:
    report = empty(strict=True).ingest([Document("fine", "a"), Document("odd \U0010fffd", "b")])
    assert report.added == ("a",)
    assert "U+10FFFD" in str(report.failed[0].error)


def test_an_interrupted_ingest_goes_on_where_it_stopped(
    empty: Callable[..., QVPIC], monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [Document(f"The desk room of Omar Reyes is B{n}.", f"d{n}") for n in range(100, 180)]
    rag = empty()
    put, stored = rag.bank.put_block, 0

    def interrupted(block: Any, cost_s: float) -> None:
        nonlocal stored
        if stored == 90:
            raise KeyboardInterrupt
        put(block, cost_s=cost_s)
        stored += 1

    monkeypatch.setattr(rag.bank, "put_block", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rag.ingest(documents, progress=False)
    assert rag.bank.page_count() == 32
    monkeypatch.setattr(rag.bank, "put_block", put)
    report = rag.ingest(documents, progress=False)
    assert len(report.unchanged) == 32
    assert report.compiled == 160 - 90
    assert rag.bank.page_count() == 80
    assert rag.bank.verify() == []


def test_progress_counts_pages_up_to_all_of_them(empty: Callable[..., QVPIC]) -> None:
    seen: list[tuple[int, int]] = []
    documents = [Document(f"The desk room of Omar Reyes is B{n}.", f"d{n}") for n in range(40)]
    empty().ingest(documents, progress=lambda done, total, source: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (40, 40)
    assert len(seen) > 4


def test_namespaces_do_not_see_each_other(tmp_path: Path) -> None:
    with (
        QVPIC.from_pretrained("demo", tmp_path / "bank", namespace="red") as red,
        QVPIC.from_pretrained("demo", tmp_path / "bank", namespace="blue") as blue,
    ):
        red.ingest(Document("The badge code of Marta Lind is KX-4471.", "secret"))
        assert blue.ask(BADGE, max_new_tokens=4).route.pages == ()
        assert not blue.remove("secret")
        assert blue.ingest(Document("The badge code of Marta Lind is KX-4471.", "secret")).compiled == 2
        assert red.remove("secret")
        assert len(blue.ask(BADGE, max_new_tokens=4).route.pages) == 1


def test_one_bank_for_several_openings(tmp_path: Path) -> None:
    with QVPIC.from_pretrained("demo", tmp_path / "bank", system_prompt="Answer briefly.") as rag:
        rag.ingest(Document("The desk room of Omar Reyes is B214.", "a"))
        digest = rag.bank.recipe.prefix
    with QVPIC.from_pretrained("demo", tmp_path / "bank") as rag:  # the bank's system prompt is taken
        assert rag.bank.recipe.prefix == digest
        assert rag.engine.template.system_prompt == "Answer briefly."


def test_a_folder_of_something_else_is_not_used_as_a_bank(folder: Path) -> None:
    with pytest.raises((InputError, BankNotFoundError)):
        QVPIC.from_pretrained("demo", folder)
    assert sorted(path.name for path in folder.iterdir()) == ["a.txt", "b.md"]
