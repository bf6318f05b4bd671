"""Answers and ingests while blocks are evicted, and from which tier blocks come."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from qvpic_rag import QVPIC
from qvpic_rag.errors import BankFullError, MissingBlockError
from qvpic_rag.records import Document

BADGE = "What is the badge code of Omar Reyes?"


def evict(rag: QVPIC, kept: float) -> None:
    """Evict all but this share of the bank's block bytes, and have no limit afterwards."""
    size = sum(rag.bank.stats().block_bytes.values())
    rag.bank.set_max_bytes(max(1, int(size * kept)))
    rag.bank.set_max_bytes(None)


def test_blocks_come_from_the_disk_once_and_then_from_memory(open_rag: Callable[..., QVPIC]) -> None:
    rag = open_rag()
    first, second = (rag.ask(BADGE, max_new_tokens=32) for _ in range(2))
    assert first.text == second.text == "TB-209"
    assert first.timing.tiers == {"disk": 8}
    assert second.timing.tiers == {"ram": 8}
    assert second.to_dict()["tiers"] == {"ram": 8}
    assert open_rag(ram_bytes=0).ask(BADGE, max_new_tokens=32).timing.tiers == {"disk": 8}


def test_an_evicted_page_is_compiled_again_when_it_is_needed(open_rag: Callable[..., QVPIC]) -> None:
    rag = open_rag(ram_bytes=0)
    before = rag.ask(BADGE, max_new_tokens=32)
    evict(rag, 0.0)
    assert rag.bank.stats().blocks == {}
    during = rag.ask(BADGE, max_new_tokens=32)
    assert during.text == before.text
    assert sorted(during.route.compiled) == sorted(page.page_id for page in before.route.pages)
    assert during.timing.tiers == {}
    assert rag.ask(BADGE, max_new_tokens=32).timing.tiers == {"disk": 8}


def test_the_low_resolution_can_stand_in(open_rag: Callable[..., QVPIC]) -> None:
    rag = open_rag(ram_bytes=0, on_miss="low")
    before = rag.ask(BADGE, max_new_tokens=32)
    assert before.route.note == ""
    stats = rag.bank.stats()
    evict(rag, stats.block_bytes[72] / sum(stats.block_bytes.values()))
    assert rag.bank.stats().blocks == {72: 13}, "the high resolution goes first"
    during = rag.ask(BADGE, max_new_tokens=32)
    promoted = sum(page.promoted for page in before.route.pages)
    assert promoted >= 1
    assert during.route.compiled == ()
    assert {page.dpi for page in during.route.pages} == {72}
    assert [page.promoted for page in during.route.pages] == [page.promoted for page in before.route.pages]
    assert during.route.note == f"The high resolution of {promoted} page(s) is not stored; the low one was read."
    evict(rag, 0.0)
    compiled = rag.ask(BADGE, max_new_tokens=32)
    assert compiled.text == before.text, "what has neither is compiled as it was routed"
    assert [page.dpi for page in compiled.route.pages] == [page.dpi for page in before.route.pages]


def test_an_evicted_page_can_be_an_error(open_rag: Callable[..., QVPIC]) -> None:
    rag = open_rag(ram_bytes=0, on_miss="error")
    evict(rag, 0.5)
    with pytest.raises(MissingBlockError):
        rag.ask(BADGE)


def test_a_request_that_fills_the_limit_answers(open_rag: Callable[..., QVPIC]) -> None:
    """Its own pages are in use; what it compiles and cannot store, it answers from all the same."""
    rag = open_rag(ram_bytes=0)
    before = rag.ask(BADGE, max_new_tokens=32)
    evict(rag, 0.0)
    rag.bank.set_max_bytes(400_000)
    during = rag.ask(BADGE, max_new_tokens=32)
    assert during.text == before.text
    assert len(during.route.compiled) == 8
    assert sum(rag.bank.stats().block_bytes.values()) <= 400_000


def test_ingesting_again_does_not_bring_evicted_blocks_back(open_rag: Callable[..., QVPIC]) -> None:
    rag = open_rag(ram_bytes=0)
    documents = [Document("The badge code of Ada Lind is TB-209.", "ada.txt"), Document("Nothing else.", "more.txt")]
    rag.ingest(documents, progress=False)
    size = sum(rag.bank.stats().block_bytes.values())
    rag.bank.set_max_bytes(size // 20)
    assert rag.bank.stats().evicted >= 26
    report = rag.ingest(documents, progress=False)
    assert report.unchanged == ("ada.txt", "more.txt")
    assert report.compiled == 0
    rag.bank.set_max_bytes(10**9)
    assert rag.ingest(documents, progress=False).repaired == ("ada.txt", "more.txt")
    pages = [page for document in documents for page in rag.bank.document_pages(document.source)]
    assert all(rag.bank.has_block(rag.engine.key(page, dpi)) for page in pages for dpi in (72, 120))


def test_an_ingest_larger_than_the_limit_keeps_to_it(open_rag: Callable[..., QVPIC]) -> None:
    rag = open_rag(ram_bytes=0)
    one = max(file.stat().st_size for file in (rag.bank.path / "blocks").rglob("*.safetensors"))
    rag.bank.set_max_bytes(5 * one)
    report = rag.ingest(
        Document("\f".join(f"Locker {n} belongs to Ada Lind." for n in range(12)), "a.txt"), progress=False
    )
    assert report.added == ("a.txt",)
    assert report.compiled == 24, "each once, although most are evicted again"
    assert sum(rag.bank.stats().block_bytes.values()) <= 5 * one
    answer = rag.ask("Which locker belongs to Ada Lind?", max_new_tokens=8)
    assert len(answer.route.pages) == 8
    rag.bank.set_max_bytes(1000)
    with pytest.raises(BankFullError, match="this page's block alone"):
        rag.ingest(Document("One more page.", "b.txt"), progress=False)
    assert rag.bank.document_digest("b.txt") is None


def test_two_machines_share_what_either_compiled(tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}-shared"
    with QVPIC.from_pretrained("demo", tmp_path / "here", remote=url) as here:
        assert here.ingest(Document("The badge code of Ada Lind is TB-209.", "a.txt"), progress=False).compiled == 2
        assert here.bank.flush(20) == 0
        expected = here.ask("What is the badge code of Ada Lind?", max_new_tokens=12)
    with QVPIC.from_pretrained("demo", tmp_path / "there", remote=url) as there:
        assert there.ingest(Document("The badge code of Ada Lind is TB-209.", "b.txt"), progress=False).compiled == 0
        found = there.ask("What is the badge code of Ada Lind?", max_new_tokens=12)
        assert found.text == expected.text == "TB-209"
        there.bank.set_max_bytes(1)
        there.bank.set_max_bytes(None)
    with QVPIC.open(tmp_path / "there", remote=url) as there:
        found = there.ask("What is the badge code of Ada Lind?", max_new_tokens=12)
        assert found.text == expected.text
        assert found.route.compiled == ()
        assert found.timing.tiers == {"remote": 1}


def test_an_ingest_does_not_wait_for_itself_or_for_somebody_stuck(open_rag: Callable[..., QVPIC]) -> None:
    """A progress callback may ask about a page that is just being compiled."""
    rag = open_rag(ram_bytes=0)
    answers: list[str] = []

    def ask(done: int, total: int, source: str) -> None:
        answers.append(rag.ask(BADGE, max_new_tokens=12).text)

    start = time.monotonic()
    rag.ingest(Document("The badge code of Ada Lind is KX-447.", "ada.txt"), progress=ask)
    assert time.monotonic() - start < 30
    assert len(answers) >= 2


def test_a_request_does_not_wait_for_a_compiler_that_is_stuck(
    open_rag: Callable[..., QVPIC], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qvpic_rag.pipeline.loading._PATIENCE_S", 0.2)
    rag, other = open_rag(ram_bytes=0), open_rag(ram_bytes=0)
    before = rag.ask(BADGE, max_new_tokens=32)
    evict(rag, 0.0)
    keys = [rag.engine.key(page.page, dpi) for page in rag.bank.pages() for dpi in (72, 120)]
    with other.bank.blocks.claims.made([key.digest for key in keys]):
        assert rag.ask(BADGE, max_new_tokens=32).text == before.text


def test_an_answer_survives_a_bank_that_cannot_be_written(
    open_rag: Callable[..., QVPIC], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locked for good, blocks lost and damaged: the question is answered from what is compiled now."""
    for name in ("claims._PATIENCE_S", "blocks._PATIENCE_S", "index_db._BUSY_S"):
        monkeypatch.setattr(f"qvpic_rag.bank.{name}", 0.05)
    rag = open_rag(ram_bytes=0)
    before = rag.ask(BADGE, max_new_tokens=32)
    for number, file in enumerate(sorted((rag.bank.path / "blocks").rglob("*.safetensors"))):
        if number % 2:
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:-7])
    rag.bank.blocks.log._written -= 61
    with closing(sqlite3.connect(rag.bank.path / "bank.sqlite", isolation_level=None)) as locked:
        locked.execute("BEGIN IMMEDIATE")
        during = rag.ask(BADGE, max_new_tokens=32)
    assert during.text == before.text
    assert len(during.route.compiled) == 8
    assert "could not be stored" in during.route.note
    assert rag.ask(BADGE, max_new_tokens=32).text == before.text
