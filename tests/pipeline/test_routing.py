"""Hybrid routing and the token budget through the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qvpic_rag import QVPIC, Document
from qvpic_rag.embed import load_embedder
from qvpic_rag.embed.encoder import TextEncoder
from qvpic_rag.errors import ConfigError
from qvpic_rag.relevance import fused
from tests.embed.small import save_bge
from tests.matrix import families, row
from tests.pipeline.test_families import DOCUMENTS, PROFILE

BADGE = "What is the badge code of Omar Reyes?"
QUESTION = "w1 w9 w30"
WORDED = [Document("w1 w2 w3 w4 w5", "one"), Document("w9 w8 w30 w7", "two"), Document("w1 w9 w1 w30", "three")]


@pytest.fixture(scope="module")
def bge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bge(tmp_path_factory.mktemp("bge"))


@pytest.fixture
def opened(bge: Path, tmp_path: Path) -> Iterator[Callable[..., QVPIC]]:
    """``opened(**options)``: an engine on this test's bank, made with the small BGE-M3."""
    engines: list[QVPIC] = []

    def rag(**options: Any) -> QVPIC:
        engines.append(QVPIC.from_pretrained("demo", tmp_path / "bank", embedder=str(bge), **options))
        return engines[-1]

    yield rag
    for each in engines:
        each.close()


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The texts that signals were made of, in this test."""
    calls: list[list[str]] = []
    signals = TextEncoder.signals

    def counted(self: TextEncoder, texts: Any, *, query: bool = False) -> Any:
        calls.append(list(texts))
        return signals(self, texts, query=query)

    monkeypatch.setattr(TextEncoder, "signals", counted)
    return calls


def test_scores_are_fused_and_no_page_is_embedded_online(
    opened: Callable[..., QVPIC], bge: Path, embedded: list[list[str]]
) -> None:
    rag = opened(router="hybrid")
    rag.ingest(WORDED, progress=False)
    embedded.clear()
    route = rag.ask(QUESTION, max_new_tokens=2).route
    assert embedded == [[QUESTION]]
    assert route.note == ""
    embedder = load_embedder(str(bge))
    question, [asked] = embedder.signals([QUESTION], query=True)
    for page in route.pages:
        vector, [said] = embedder.signals([rag.page(page.page_id).text])
        assert page.score == pytest.approx(fused(float(question[0] @ vector[0]), asked, said), abs=2e-3)
    by_rank = sorted(route.pages, key=lambda page: page.rank)
    assert [page.score for page in by_rank] == sorted((page.score for page in route.pages), reverse=True)
    dense = opened().ask(QUESTION, max_new_tokens=2).route
    assert [page.page_id for page in dense.pages] == [page.page_id for page in route.pages], "retrieval stays dense"
    assert [page.score for page in dense.pages] != [page.score for page in route.pages]


def test_a_bank_that_was_ingested_for_the_dense_router(opened: Callable[..., QVPIC], embedded: list[list[str]]) -> None:
    opened().ingest(WORDED, progress=False)
    assert embedded == []
    rag = opened(router="hybrid")
    first = rag.ask(QUESTION, max_new_tokens=2)
    assert first.route.note.startswith("What hybrid routing needs of 3 page(s) is not stored")
    embedded.clear()
    assert rag.ask(QUESTION, max_new_tokens=2).route == first.route
    assert embedded == [[QUESTION]], "what one request made is remembered"
    report = rag.ingest(WORDED, progress=False)
    assert len(report.unchanged) == 3
    embedded.clear()
    again = opened(router="hybrid").ask(QUESTION, max_new_tokens=2)
    assert embedded[1:] == [[QUESTION]], "after the probe of an engine that opens"
    assert again.route.note == ""
    assert again.route.pages == first.route.pages, "a page's signals are the same, stored or not"
    rag.ingest(WORDED, progress=False)
    assert embedded[2:] == [], "nothing is made twice"


def test_signals_follow_the_documents(opened: Callable[..., QVPIC]) -> None:
    rag = opened(router="hybrid")
    done: list[tuple[int, int, str]] = []
    rag.ingest(WORDED, progress=lambda *step: done.append(step))
    assert done[-1] == (6, 6, ""), "three pages compiled, three embedded"
    folder = rag.bank.index_path.with_suffix(".signals")
    assert len(list(folder.iterdir())) == 3
    rag.remove("two")
    rag.ingest([Document("w1 w2 w6", "one")], progress=False)
    assert len(list(folder.iterdir())) == 2
    assert rag.ask(QUESTION, max_new_tokens=2).route.note == ""
    rag.remove("one")
    assert rag.bank.gc(grace_s=0).orphans == 1


def test_a_damaged_file_is_made_again_for_the_request(opened: Callable[..., QVPIC]) -> None:
    rag = opened(router="hybrid")
    rag.ingest(WORDED, progress=False)
    before = rag.ask(QUESTION, max_new_tokens=2).route
    for path in rag.bank.index_path.with_suffix(".signals").iterdir():
        path.write_bytes(b"damaged")
    after = rag.ask(QUESTION, max_new_tokens=2).route
    assert after.pages == before.pages
    assert "3 page(s)" in after.note


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_ingesting_again_repairs_damaged_files(
    opened: Callable[..., QVPIC], embedded: list[list[str]], damage: str
) -> None:
    rag = opened(router="hybrid")
    rag.ingest(WORDED, progress=False)
    before = rag.ask(QUESTION, max_new_tokens=2).route
    folder = rag.bank.index_path.with_suffix(".signals")
    sound = {path.name: path.read_bytes() for path in folder.iterdir()}
    name = min(sound)
    data = sound[name]
    (folder / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if damage == "flip" else data[:100])
    (folder / "README").write_text("not ours")
    embedded.clear()
    rag.ingest(WORDED, progress=False)
    assert [len(texts) for texts in embedded] == [1], "the sound ones are not made again"
    assert rag.ask(QUESTION, max_new_tokens=2).route == before
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {**sound, "README": b"not ours"}


def test_a_folder_where_a_file_belongs(opened: Callable[..., QVPIC], caplog: pytest.LogCaptureFixture) -> None:
    rag = opened(router="hybrid")
    rag.ingest(WORDED, progress=False)
    before = rag.ask(QUESTION, max_new_tokens=2).route
    folder = rag.bank.index_path.with_suffix(".signals")
    first, second, _ = sorted(folder.iterdir())
    for path in (first, second):
        path.unlink()
    first.mkdir()
    (folder / "other").mkdir()
    rag.ingest(WORDED, progress=False)
    assert caplog.text.count(f"{first}, where their file belongs, is none: move it away and ingest again") == 1
    assert second.is_file()
    after = rag.ask(QUESTION, max_new_tokens=2).route
    assert after.pages == before.pages
    assert "1 page(s)" in after.note
    first.rmdir()
    rag.ingest(WORDED, progress=False)
    assert rag.ask(QUESTION, max_new_tokens=2).route == before
    assert (folder / "other").is_dir()


def test_texts_that_the_caller_brings(opened: Callable[..., QVPIC], bge: Path) -> None:
    rag = opened(router="hybrid")
    rag.ingest(WORDED[:1], progress=False)
    route = rag.ask(QUESTION, context=WORDED, max_new_tokens=2).route
    assert [page.source for page in route.pages] == ["one", "two", "three"]
    embedder = load_embedder(str(bge))
    question, [asked] = embedder.signals([QUESTION], query=True)
    vectors, said = embedder.signals([document.text for document in WORDED])
    expected = [fused(float(question[0] @ v), asked, s) for v, s in zip(vectors, said, strict=True)]
    np.testing.assert_allclose([page.score for page in route.pages], expected, atol=2e-3)


def test_an_embedder_without_heads_is_refused(demo_bank: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^The embedder 'demo' has no .* use router='dense'.*BAAI/bge-m3'\.$"):
        QVPIC.open(demo_bank, router="hybrid")
    with pytest.raises(ConfigError, match="has no lexical"):
        QVPIC.from_pretrained("demo", tmp_path / "none", router="hybrid")
    assert not (tmp_path / "none").exists()


def test_the_dense_router_is_the_default_and_makes_no_signals(rag: QVPIC, embedded: list[list[str]]) -> None:
    with QVPIC.open(rag.bank.path, router="dense", token_budget=None) as same:
        assert same.ask(BADGE, max_new_tokens=8).route == rag.ask(BADGE, max_new_tokens=8).route
    assert embedded == []


@pytest.mark.parametrize("tokens", [0, 50, 200, 10**6])
def test_promoted_pages_stay_within_the_tokens(demo_bank: Path, rag: QVPIC, tokens: int) -> None:
    low = {page.page_id: page.tokens for page in _pages(demo_bank, budget=0)}
    found = _pages(demo_bank, token_budget=tokens, alpha=1.0)
    extra = {page.page_id: page.tokens - low[page.page_id] for page in found}
    assert sum(extra.values()) <= tokens
    for page in found:
        assert (page.dpi == rag.engine.high) == page.promoted
        needed = rag.engine.extra_tokens(rag.page(page.page_id))
        assert extra[page.page_id] == (needed if page.promoted else 0)
        assert page.promoted or page.score <= 0 or needed > tokens - sum(extra.values())
    assert any(page.promoted for page in found) == (tokens > 0)


def _pages(bank: Path, **options: Any) -> tuple[Any, ...]:
    with QVPIC.open(bank, **options) as engine:
        return engine.ask(BADGE, max_new_tokens=2).route.pages


def test_pages_that_are_not_stored_count_the_same(open_rag: Callable[..., QVPIC]) -> None:
    rag = open_rag(token_budget=90, alpha=1.0, ram_bytes=0)
    before = rag.ask(BADGE, max_new_tokens=2).route
    counts = [rag.engine.extra_tokens(rag.page(page.page_id)) for page in before.pages]
    for path in (rag.bank.path / "blocks").rglob("*.safetensors"):
        path.unlink()
    rag.engine.extra_tokens.cache_clear()
    assert [rag.engine.extra_tokens(rag.page(page.page_id)) for page in before.pages] == counts
    after = rag.ask(BADGE, max_new_tokens=2).route
    assert after.pages == before.pages
    assert len(after.compiled) == len(after.pages)


@families()
def test_tokens_counted_from_pictures_are_those_of_the_blocks(
    family: str, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    with QVPIC.from_pretrained(
        str(tiny_folder(family)),
        tmp_path / "bank",
        embedder="demo",
        profile=PROFILE,
        dpis=(48, 72),
        dtype="float32",
        trust_remote_code=row(family).remote,
    ) as rag:
        engine = rag.engine
        [page, *_] = engine.layout(DOCUMENTS[0].text)
        counted = engine.extra_tokens(page)
        low, high = sorted(engine.compile([(page, dpi) for dpi in engine.dpis]), key=lambda block: block.key.dpi)
        assert counted == high.tokens - low.tokens > 0
