"""``QVPICVectorStore``: what LangChain's suite does not ask; every change reaches the bank."""

from __future__ import annotations

import copy
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.indexing import InMemoryRecordManager, index
from qvpic_rag import QVPIC
from qvpic_rag import Document as EngineDocument
from qvpic_rag.errors import BankError, ConfigError, DocumentError, InputError, UndrawableError

from langchain_qvpic import QVPICRetriever, QVPICVectorStore

Open = Callable[..., QVPICVectorStore]

A, B, C = "Alpha is one.", "Beta is two.", "Gamma is three."


def in_bank(store: QVPICVectorStore) -> list[str]:
    """Ids of the collection's documents; the bank's names of them also say which embedding they have."""
    sources = [document.source.split("/", 3) for document in store.rag.bank.documents()]
    assert all(each[:2] == ["langchain", "default"] for each in sources)
    return [each[3] for each in sources]


def test_adding_compiles_and_deleting_releases(open_store: Open) -> None:
    store = open_store()
    store.add_texts([A, B], ids=["a", "b"])
    bank = store.rag.bank
    assert in_bank(store) == ["a", "b"]
    assert sum(bank.stats().blocks.values()) == 4  # two pages at two resolutions
    before = bank.page_count()
    store.delete(["a", "unknown"])
    assert in_bank(store) == ["b"]
    assert bank.page_count() == before - 1
    assert len(store) == 1
    assert bank.gc(grace_s=0).blocks == 2
    store.add_texts([C], ids=["b"])
    assert store.get_by_ids(["b"])[0].page_content == C
    assert bank.page_count() == 1


def test_two_documents_with_one_text(open_store: Open) -> None:
    store = open_store()
    store.add_texts([A, A], [{"n": 1}, {"n": 2}], ids=["x", "y"])
    assert store.rag.bank.page_count() == 1
    store.delete(["x"])
    assert [each.metadata for each in store.similarity_search("Alpha")] == [{"n": 2}]
    assert store.rag.bank.page_count() == 1


def test_opened_again(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    store.add_texts([A, B + "\n\n  " + C + "\n"], [{"n": [1, {"x": None}]}, {}], ids=["a", "../b\u00e4"])
    expected = store.similarity_search_with_score("Beta", k=5)
    store.close()
    again = open_store()
    assert again.similarity_search_with_score("Beta", k=5) == expected
    assert again.get_by_ids(["../b\u00e4"])[0].page_content == B + "\n\n  " + C + "\n"
    assert not list(tmp_path.rglob("*.pkl"))


def test_opened_in_another_process(bank: Path) -> None:
    code = (
        "import sys; from langchain_qvpic import QVPICVectorStore\n"
        "s = QVPICVectorStore(model='demo', bank=sys.argv[1])\n"
        "print(len(s), s.similarity_search('badge code', k=1)[0].id); s.delete(['badges.txt'])"
    )
    with QVPICVectorStore(model="demo", bank=bank) as store:
        assert len(store) == 7
        run = subprocess.run([sys.executable, "-c", code, str(bank)], capture_output=True, text=True, check=True)
        assert run.stdout.split() == ["7", "badges.txt"]
        assert len(store) == 6  # seen without opening again
        assert store.get_by_ids(["badges.txt"]) == []


def test_what_is_handed_out_is_a_copy(open_store: Open) -> None:
    store = open_store()
    store.add_texts([A], [{"tags": ["x"]}], ids=["a"])
    for found in (store.get_by_ids(["a"])[0], store.similarity_search("Alpha")[0]):
        found.metadata["tags"].append("y")
        found.page_content = "changed"
    assert store.get_by_ids(["a"]) == [Document(A, id="a", metadata={"tags": ["x"]})]


def test_filters(open_store: Open) -> None:
    store = open_store()
    store.add_texts([A, B, C], [{"n": 1}, {"n": 2}, {}], ids=["a", "b", "c"])

    def ids(**options: object) -> set[str | None]:
        return {each.id for each in store.similarity_search("Alpha", k=1, **options)}  # type: ignore[arg-type]

    assert ids(filter={"n": 2}) == {"b"}
    assert ids(filter={"n": [2, 3]}) == {"b"}
    assert ids(filter={"n": 3}) == set()
    assert ids(filter=lambda document: not document.metadata) == {"c"}
    assert ids(filter={}) == {"a"}
    for wrong in ({"n": {"$gt": 1}}, {"$and": []}, "n = 2"):
        with pytest.raises(InputError):
            ids(filter=wrong)


def test_scores_and_vectors(open_store: Open) -> None:
    store = open_store(embedding=DeterministicFakeEmbedding(size=8))
    store.add_texts([A, B, C], ids=["a", "b", "c"])
    scored = store.similarity_search_with_score(A, k=3)
    assert scored[0][0].id == "a"
    assert scored[0][1] == pytest.approx(1, abs=1e-6)
    assert [score for _, score in scored] == sorted((score for _, score in scored), reverse=True)
    assert all(0 <= score <= 1 for _, score in store.similarity_search_with_relevance_scores(A, k=3))
    vector = [7 * each for each in DeterministicFakeEmbedding(size=8).embed_query(B)]
    assert store.similarity_search_by_vector(vector, k=1)[0].id == "b"
    assert store.max_marginal_relevance_search_by_vector(vector, k=1)[0].id == "b"
    for wrong in ([0.0] * 8, [float("nan")] * 8, [1.0] * 7):
        with pytest.raises(InputError):
            store.similarity_search_by_vector(wrong)


def test_mmr_prefers_what_is_different(open_store: Open) -> None:
    store = open_store()
    store.add_texts(["Alpha is one.", "Alpha is one!", "The garden opens in May."], ids=["a", "same", "other"])
    assert [each.id for each in store.similarity_search("Alpha is one.", k=2)] == ["a", "same"]
    diverse = store.max_marginal_relevance_search("Alpha is one.", k=2, lambda_mult=0.1)
    assert [each.id for each in diverse] == ["a", "other"]
    as_retriever = store.as_retriever(search_type="mmr", search_kwargs={"k": 2, "lambda_mult": 0.1})
    assert as_retriever.invoke("Alpha is one.") == diverse
    assert open_store(collection="none").max_marginal_relevance_search("Alpha") == []


def test_collections_and_other_documents(open_store: Open) -> None:
    one, two = open_store(), open_store(collection="two")
    one.add_texts([A], ids=["x"])
    two.add_texts([B], ids=["x"])
    one.rag.ingest([EngineDocument(C, "c")], progress=False)
    assert [each.page_content for each in one.similarity_search("?", k=9)] == [A]
    two.delete(["x"])
    assert len(one) == 1
    assert len(two) == 0
    assert len(open_store(namespace="other")) == 0


def test_another_embedding_is_refused(open_store: Open) -> None:
    store = open_store()
    store.add_texts([A], ids=["a"])
    with pytest.raises(ConfigError, match="embedding"):
        open_store(embedding=DeterministicFakeEmbedding(size=384))
    store.delete(["a"])
    other = open_store(embedding=DeterministicFakeEmbedding(size=8))
    other.add_texts([B], ids=["b"])
    with pytest.raises(ConfigError, match="embedding"):
        store.add_texts([C])
    assert [each.id for each in other.similarity_search("?")] == ["b"]


def test_somebody_elses_document_is_refused(open_store: Open, tmp_path: Path) -> None:
    with QVPIC.from_pretrained("demo", tmp_path / "empty") as rag:
        rag.ingest([EngineDocument(A, "langchain/default/a", {"langchain-qvpic": 1})], progress=False)
    with pytest.raises(BankError, match="remove"):
        open_store()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"texts": [A], "ids": ["a", "b"]}, InputError),
        ({"texts": [A, B], "ids": ["a", "a"]}, InputError),
        ({"texts": [A], "metadatas": []}, InputError),
        ({"texts": [A], "ids": [5]}, InputError),
        ({"texts": A}, InputError),
        ({"texts": None}, InputError),
        ({"texts": [A], "ids": "a"}, InputError),
        ({"texts": [A, " \n"]}, DocumentError),
        ({"texts": [A, 5]}, DocumentError),
        ({"texts": [A], "metadatas": [["a"]]}, InputError),
        ({"texts": [A, B], "metadatas": [{}, {"x": (1, 2)}], "batch_size": 1}, InputError),
        ({"texts": [A], "metadatas": [{"x": (1, 2)}]}, InputError),
        ({"texts": [A], "metadatas": [{1: 2}]}, InputError),
        ({"texts": [A], "metadatas": [{"x": float("nan")}]}, InputError),
        ({"texts": [A], "metadatas": [{"x": object()}]}, InputError),
        ({"texts": [A], "batch_size": 0}, ConfigError),
        ({"texts": [A], "idz": ["a"]}, ConfigError),
    ],
)
def test_wrong_input_stores_nothing(open_store: Open, arguments: dict, error: type[Exception]) -> None:  # type: ignore[type-arg]
    store = open_store()
    with pytest.raises(error):
        store.add_texts(**arguments)
    assert in_bank(store) == []


@pytest.mark.parametrize("nothing", ["\ufeff", "\u200b", "\0", "\u00ad \f\u2060", "\u200d", "\u3000\ufe0f"])
def test_a_text_that_shows_nothing_is_as_an_empty_one(open_store: Open, nothing: str) -> None:
    store = open_store()
    assert not store.rag.engine.renderer.pages(nothing, "")
    texts = [*(f"Number {n} is here." for n in range(3)), nothing]
    messages = set()
    for last in (nothing, ""):
        with pytest.raises(DocumentError) as failure:
            store.add_texts([*texts[:-1], last], batch_size=1)
        messages.add(str(failure.value))
    assert len(messages) == 1
    assert in_bank(store) == []
    store.add_texts([A + nothing])  # beside something that shows it is no matter
    assert len(store) == 1


def test_a_text_that_strict_rendering_refuses(open_store: Open) -> None:
    store = open_store(strict=True)
    with pytest.raises(UndrawableError, match="'b'"):
        store.add_texts([A, B + "\U0010fffd"], ids=["a", "b"])
    assert in_bank(store) == []


class _Wrong(DeterministicFakeEmbedding):
    """Gives ``given`` whatever the texts are."""

    given: Any = None

    def embed_documents(self, texts: list[str]) -> Any:
        return self.given

    def embed_query(self, text: str) -> Any:
        return self.given


@pytest.mark.parametrize("given", [None, [], 1.0, [[1.0, 2.0]] * 2, [[1.0], [1.0, 2.0]], [["x"]], [[[1.0]]]])
def test_what_is_no_embedding_is_refused(open_store: Open, given: object) -> None:
    store = open_store(embedding=_Wrong(size=2, given=given))
    with pytest.raises(InputError, match="embedding model"):
        store.add_texts([A])
    with pytest.raises(InputError, match="embedding model"):
        store.similarity_search(A)
    assert in_bank(store) == []


def test_wrong_settings(open_store: Open) -> None:
    with pytest.raises(ConfigError, match="embedding"):
        open_store(embedding="x")
    with pytest.raises(ConfigError, match="collection"):
        open_store(collection="a/b")
    with pytest.raises(ConfigError, match="topk"):
        open_store(topk=3)
    store = open_store()
    for wrong in (None, "a"):
        with pytest.raises(InputError, match="ids"):
            store.delete(wrong)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="ids"):
            store.get_by_ids(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="filter"):
        store.delete(["a"], filter={})
    with pytest.raises(InputError):
        store.similarity_search("?", k=0)
    with pytest.raises(ConfigError):
        store.similarity_search("?", top=1)
    with pytest.raises(ConfigError, match="bank"):
        QVPICVectorStore.from_texts([A])
    retriever = QVPICRetriever(vectorstore=store)
    with pytest.raises(ConfigError, match="top"):
        retriever.invoke("?", top=1)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_store_is_not_copied(open_store: Open, copied: Callable[[object], object]) -> None:
    with pytest.raises(InputError, match="another store"):
        copied(open_store())


def test_from_documents(tmp_path: Path) -> None:
    documents = [Document(A, id="a"), Document(B)]
    with QVPICVectorStore.from_documents(documents, model="demo", bank=tmp_path / "new") as store:
        assert store.get_by_ids(["a"]) == [documents[0]]
        assert len(store) == 2
        assert store
    with QVPICVectorStore.from_texts([A], model="demo", bank=tmp_path / "newer", ids=["x"]) as store:
        assert len(store) == 1


async def test_retriever(store: QVPICVectorStore) -> None:
    retriever = QVPICRetriever(vectorstore=store, k=2)
    question = "What is the badge code of Omar Reyes?"
    assert retriever.invoke(question)[0].id == "badges.txt"
    assert len(await retriever.ainvoke(question)) == 2
    assert len(await retriever.ainvoke(question, k=3)) == 3
    only = {"source": "garden.txt"}
    assert [each.id for each in retriever.invoke(question, filter=only)] == ["garden.txt"]
    filtering = QVPICRetriever(vectorstore=store, filter=only)
    assert [each.id for each in filtering.invoke(question)] == ["garden.txt"]


def test_batches(open_store: Open) -> None:
    store = open_store()
    ids = store.add_texts((f"Number {n} is here." for n in range(5)), batch_size=2)
    assert [each.page_content for each in store.get_by_ids(ids)] == [f"Number {n} is here." for n in range(5)]


@pytest.mark.parametrize("cleanup", ["incremental", "full"])
def test_indexing_api(open_store: Open, cleanup: str) -> None:
    store = open_store()
    records = InMemoryRecordManager("test")
    records.create_schema()

    def run(*documents: Document) -> tuple[int, ...]:
        found = index(
            documents,
            records,
            store,
            cleanup=cleanup,
            source_id_key="source",
            key_encoder="sha256",  # type: ignore[arg-type]
        )
        return tuple(found[key] for key in ("num_added", "num_updated", "num_skipped", "num_deleted"))  # type: ignore[literal-required]

    def texts() -> set[str]:
        pages = {stored.page.text for stored in store.rag.bank.pages()}
        assert pages == {each.page_content for each in store.similarity_search("?", k=9)}
        return pages

    a, b = Document(A, metadata={"source": "a"}), Document(B, metadata={"source": "b"})
    assert run(a, b) == (2, 0, 0, 0)
    assert run(a, b) == (0, 0, 2, 0)
    changed = Document(C, metadata={"source": "a"})
    assert run(changed, b) == (1, 0, 1, 1)
    assert texts() == {B, C}
    if cleanup == "full":
        assert run(b) == (0, 0, 1, 1)
        assert texts() == {B}


def test_vectors_survive_exactly(open_store: Open) -> None:
    store = open_store(embedding=DeterministicFakeEmbedding(size=16))
    store.add_texts([A], ids=["a"])
    before = store._collection.entries()["a"].vector
    again = open_store(embedding=DeterministicFakeEmbedding(size=16))._collection.entries()["a"].vector
    assert np.array_equal(before, again)


def test_a_copied_bank_is_a_store(bank: Path, open_store: Open, tmp_path: Path) -> None:
    moved = shutil.copytree(bank, tmp_path / "moved")
    assert len(open_store(moved)) == 7


class _Remote(DeterministicFakeEmbedding):
    """Vectors from a service; which model makes them is a field."""

    model: str = "ada-002"


def test_another_model_of_the_same_embedding_class_is_refused(open_store: Open) -> None:
    store = open_store(embedding=_Remote(size=8))
    store.add_texts([A], ids=["a"])
    assert open_store(embedding=_Remote(size=8)).similarity_search("x")
    with pytest.raises(ConfigError, match="ada-002"):
        open_store(embedding=_Remote(size=8, model="text-embedding-3-small"))
