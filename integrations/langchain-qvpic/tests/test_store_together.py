"""Several threads and several stores on one bank: searches go on, and embeddings never mix."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from qvpic_rag.errors import ConfigError

from langchain_qvpic import QVPICVectorStore

Open = Callable[..., QVPICVectorStore]

A, B = "Alpha is one.", "Beta is two."


def test_searches_go_on_while_documents_are_added(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store()
    store.add_texts([A], ids=["a"])
    compiling, go_on = threading.Event(), threading.Event()
    real = store.rag.ingest

    def slow(*arguments: object, **options: object) -> object:
        compiling.set()
        assert go_on.wait(30)
        return real(*arguments, **options)

    monkeypatch.setattr(store.rag, "ingest", slow)
    adding = threading.Thread(target=store.add_texts, args=([B],), kwargs={"ids": ["b"]})
    adding.start()
    assert compiling.wait(30)
    assert [each.id for each in store.similarity_search("Beta", k=2)] == ["a"]
    go_on.set()
    adding.join(30)
    assert {each.id for each in store.similarity_search("Beta", k=2)} == {"a", "b"}


class _Other(DeterministicFakeEmbedding):
    """The same vectors under another name."""


EMBEDDINGS = [
    (None, DeterministicFakeEmbedding(size=8)),
    (DeterministicFakeEmbedding(size=8), DeterministicFakeEmbedding(size=16)),
    (DeterministicFakeEmbedding(size=8), _Other(size=8)),
]


@pytest.fixture(params=EMBEDDINGS, ids=["engine", "dimension", "name"])
def two(
    request: pytest.FixtureRequest, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[Embeddings | None, QVPICVectorStore]]:
    """Two embeddings and their stores of one collection, which begin to compile at one moment."""
    stores = [(each, open_store(embedding=each)) for each in request.param]
    both = threading.Barrier(2)
    for _, store in stores:

        def together(*arguments: object, real: Callable[..., object] = store.rag.ingest, **options: object) -> object:
            both.wait(30)
            return real(*arguments, **options)

        monkeypatch.setattr(store.rag, "ingest", together)
    return stores


@pytest.mark.parametrize("shared", [False, True], ids=["own ids", "shared ids"])
def test_two_embeddings_at_once(
    two: list[tuple[Embeddings | None, QVPICVectorStore]], open_store: Open, shared: bool
) -> None:
    names = [{"a", "b"}, {"b", "c", "d"} if shared else {"c", "d"}]

    def add(number: int) -> ConfigError | None:
        try:
            two[number][1].add_texts([f"Number {each} is here." for each in names[number]], ids=list(names[number]))
        except ConfigError as error:
            return error
        return None

    with ThreadPoolExecutor(2) as pool:
        errors = list(pool.map(add, range(2)))
    won = errors.index(None)
    (embedding, winner), (_, loser) = two[won], two[1 - won]
    in_bank = {each.source.split("/", 3)[3] for each in winner.rag.bank.documents()}
    assert in_bank == names[won]  # the other's are taken back, and have replaced nothing
    dimension = 384 if embedding is None else len(embedding.embed_query("x"))
    made_with = f"{winner._embedding_name} of {dimension} numbers"
    assert made_with in str(errors[1 - won])
    with pytest.raises(ConfigError, match=re.escape(made_with)):
        loser.add_texts([A])
    for store in (winner, open_store(embedding=embedding)):
        assert len(store) == len(names[won])
        assert {each.id for each in store.similarity_search("?", k=9)} == names[won]
    winner.delete(list(names[won]))
    other = open_store(embedding=two[1 - won][0])  # an empty collection is free again
    other.add_texts([A])
    assert len(other) == 1


def test_what_a_stopped_process_left_is_passed_over(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = open_store(), open_store(embedding=DeterministicFakeEmbedding(size=8))
    real = second.rag.ingest

    def late(*arguments: object, **options: object) -> object:
        first.add_texts([A], ids=["a"])
        real(*arguments, **options)
        assert [each.id for each in first.similarity_search("?")] == ["a"]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(second.rag, "ingest", late)
        with pytest.raises(KeyboardInterrupt):
            second.add_texts([B], ids=["b"])
    assert [each.id for each in open_store().similarity_search("?")] == ["a"]
    first.add_texts([B], ids=["b"])
    assert {each.id for each in first.similarity_search("?")} == {"a", "b"}
