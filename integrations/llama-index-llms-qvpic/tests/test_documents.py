"""Nodes go into the bank, are changed, deleted, kept on disk and found again."""

from __future__ import annotations

import asyncio
import copy
import datetime
import pickle
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.ingestion.pipeline import get_transformation_hash
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters, VectorStoreQuery
from llama_scripted import BADGE, CODE, ScriptedLLM
from qvpic_rag import Bank
from qvpic_rag.errors import BankError, BankNotFoundError, InputError

from llama_index.llms.qvpic import QVPICEmbedding, QVPICTransform, QVPICVectorStore, source_of
from llama_index.llms.qvpic.names import sources_begin


def sources(bank: Path) -> list[str]:
    with Bank.open(bank) as opened:
        return sorted(document.source for document in opened.documents())


def refs(bank: Path) -> set[str]:
    return {source.removeprefix("llamaindex/").partition("#")[0] for source in sources(bank)}


@pytest.fixture
def transform(bank: Path):
    made = QVPICTransform(model="demo", bank=bank)
    yield made
    made.close()


def test_names_cannot_collide() -> None:
    def name(document: str, text: str) -> str:
        source = RelatedNodeInfo(node_id=document)
        return source_of(TextNode(text=text, relationships={NodeRelationship.SOURCE: source}))

    names = [name(*each) for each in (("a#b", "c"), ("a", "b#c"), ("a%23b", "c"), ("a#b", "d"), ("a", "c"))]
    assert len(set(names)) == len(names)
    assert name("a#b", "c") == names[0]
    assert [each.startswith(sources_begin("a")) for each in names] == [False, True, False, False, True]


def test_transform_and_deletions(bank: Path, transform: QVPICTransform, embedding: QVPICEmbedding) -> None:
    store = QVPICVectorStore(bank=bank)
    context = StorageContext.from_defaults(vector_store=store)
    documents = [
        Document(text="The badge code of Rex Moor is AB-12.", doc_id="rex"),
        Document(text="Locker 99 belongs to Una Kerr.", doc_id="una"),
        Document(text="Tea time of Pim Aker: 09:15.", doc_id="pim"),
    ]
    index = VectorStoreIndex.from_documents(
        documents, storage_context=context, embed_model=embedding, transformations=[SentenceSplitter(), transform]
    )
    assert {"rex", "una", "pim"} <= refs(bank)
    index.delete_ref_doc("una", delete_from_docstore=True)
    assert "una" not in refs(bank)
    index.update_ref_doc(Document(text="The badge code of Rex Moor is CD-34.", doc_id="rex"))
    (rex,) = [node for node in store.get_nodes() if node.ref_doc_id == "rex"]
    assert "CD-34" in rex.get_content()
    assert [each for each in sources(bank) if each.startswith("llamaindex/rex#")] == [source_of(rex)]
    index.delete_nodes([rex.node_id])
    assert "rex" not in refs(bank)
    assert [node.ref_doc_id for node in store.get_nodes()] == ["pim"]
    assert "badges.txt" in refs(bank)  # what others put there stays


def test_refresh(bank: Path, transform: QVPICTransform, embedding: QVPICEmbedding) -> None:
    context = StorageContext.from_defaults(vector_store=QVPICVectorStore(bank=bank))
    first = [Document(text="Tea time of Pim Aker: 09:15.", doc_id="pim"), Document(text="Old.", doc_id="old")]
    index = VectorStoreIndex.from_documents(
        first, storage_context=context, embed_model=embedding, transformations=[SentenceSplitter(), transform]
    )
    before = sources(bank)
    changed = [first[0], Document(text="Newer.", doc_id="old"), Document(text="Added.", doc_id="new")]
    assert index.refresh_ref_docs(changed) == [False, True, True]
    after = sources(bank)
    kept = [{each for each in names if each.startswith("llamaindex/pim#")} for names in (before, after)]
    assert kept[0] == kept[1] != set()
    assert len([each for each in after if each.startswith("llamaindex/old#")]) == 1
    assert "new" in refs(bank)


@pytest.mark.parametrize("strategy", list(DocstoreStrategy))
def test_pipeline(bank: Path, transform: QVPICTransform, embedding: QVPICEmbedding, strategy: DocstoreStrategy) -> None:
    store = QVPICVectorStore(bank=bank)
    pipeline = IngestionPipeline(
        transformations=[SentenceSplitter(), transform, embedding],
        vector_store=store,
        docstore=SimpleDocumentStore(),
        docstore_strategy=strategy,
    )
    documents = [Document(text="The tea room of Pim Aker is C9.", doc_id="pim"), Document(text="Gone.", doc_id="gone")]
    pipeline.run(documents=documents)
    assert {"pim", "gone"} <= refs(bank)
    assert pipeline.run(documents=documents) == []
    pipeline.run(documents=[Document(text="The tea room of Pim Aker is D8.", doc_id="pim")])
    texts = sorted(node.get_content() for node in store.get_nodes())
    if strategy is DocstoreStrategy.DUPLICATES_ONLY:
        assert len(texts) == 3
    elif strategy is DocstoreStrategy.UPSERTS:
        assert texts == ["Gone.", "The tea room of Pim Aker is D8."]
    else:
        assert texts == ["The tea room of Pim Aker is D8."]
        assert "gone" not in refs(bank)


def test_pipeline_cache_key(bank: Path, transform: QVPICTransform, nodes: list[TextNode]) -> None:
    key = get_transformation_hash(nodes, transform)
    assert get_transformation_hash(nodes, transform.model_copy(update={"show_progress": True})) == key
    for other in (
        {"model": "other"},
        {"bank": "other"},
        {"dpis": (72, 96)},
        {"storage": "int8"},
        {"profile": "glyph"},
        {"page_system_prompt": "x"},
        {"namespace": "n"},
        {"embed": True},
    ):
        changed = QVPICTransform(**{"model": "demo", "bank": bank, **other})
        assert get_transformation_hash(nodes, changed) != key


async def test_transform_async_and_embeddings(bank: Path, nodes: list[TextNode], embedding: QVPICEmbedding) -> None:
    transform = QVPICTransform(model="demo", bank=bank, embed=True)
    out = await transform.acall(nodes)
    assert list(out) == nodes
    expected = await embedding.aget_text_embedding_batch([node.get_content() for node in nodes])
    for node, vector in zip(nodes, expected, strict=True):
        assert node.embedding == pytest.approx(vector, abs=1e-5)
    transform.close()


def test_transform_pickles_without_its_model(transform: QVPICTransform, nodes: list[TextNode]) -> None:
    transform(nodes)
    sent = pickle.dumps(transform)
    assert len(sent) < 10_000
    again = pickle.loads(sent)
    assert again.to_dict() == transform.to_dict()
    assert QVPICTransform.from_dict(transform.to_dict()).to_dict() == transform.to_dict()


def test_a_missing_page_is_compiled_by_the_question(
    tmp_path: Path, nodes: list[TextNode], embedding: QVPICEmbedding
) -> None:
    index = VectorStoreIndex(
        nodes, storage_context=StorageContext.from_defaults(vector_store=QVPICVectorStore()), embed_model=embedding
    )
    llm = ScriptedLLM(model="demo", bank=tmp_path / "empty", max_new_tokens=24)
    engine = llm.as_query_engine(index, similarity_top_k=1)
    first, second = engine.query(BADGE), engine.query(BADGE)
    assert str(first) == str(second) == CODE
    assert first.metadata["qvpic"][0]["compiled"]
    assert second.metadata["qvpic"][0]["compiled"] == []
    llm.close()


def test_two_indexes_on_one_bank(
    bank: Path, nodes: list[TextNode], embedding: QVPICEmbedding, llm: ScriptedLLM
) -> None:
    halves = [nodes[:1], nodes[1:]]
    indexes = [
        VectorStoreIndex(
            half,
            storage_context=StorageContext.from_defaults(vector_store=QVPICVectorStore(bank=bank)),
            embed_model=embedding,
        )
        for half in halves
    ]
    first, second = (llm.as_query_engine(index, similarity_top_k=1) for index in indexes)
    assert str(first.query(BADGE)) == CODE
    other = second.query("What is the library room of Ines Falk?")
    assert str(other) == "C17"
    assert other.metadata["qvpic"][0]["compiled"] == []
    indexes[0].delete_ref_doc("badges.txt")
    assert "badges.txt" not in refs(bank)
    assert str(second.query("What is the library room of Ines Falk?")) == "C17"


def test_persist_and_reload_in_a_new_process(index: VectorStoreIndex, bank: Path, tmp_path: Path) -> None:
    folder = tmp_path / "storage"
    index.storage_context.persist(folder)
    program = f"""
import torch; torch.set_num_threads(1)
from llama_index.core import StorageContext, load_index_from_storage
from llama_index.llms.qvpic import QVPICEmbedding, QVPICLLM, QVPICVectorStore
store = QVPICVectorStore.from_persist_dir({str(folder)!r})
context = StorageContext.from_defaults(persist_dir={str(folder)!r}, vector_store=store)
index = load_index_from_storage(context, embed_model=QVPICEmbedding(model_name="demo"))
llm = QVPICLLM(model="demo", bank=store.bank, max_new_tokens=24)
response = llm.as_query_engine(index, similarity_top_k=2).query({BADGE!r})
print(response, response.metadata["qvpic"][0]["compiled"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip().splitlines()[-1:] == [f"{CODE} []"], done.stderr


def test_damaged_stores_are_refused(index: VectorStoreIndex, tmp_path: Path) -> None:
    path = tmp_path / "s" / "store.json"
    store = index.vector_store
    store.persist(str(path))
    store.persist(str(path))
    (vectors,) = path.parent.glob("*.vectors")  # the old ones are gone
    again = QVPICVectorStore.from_persist_path(path)
    assert [node.to_dict() for node in again.get_nodes()] == [node.to_dict() for node in store.get_nodes()]
    vectors.write_bytes(vectors.read_bytes()[:-1])
    with pytest.raises(BankError):
        QVPICVectorStore.from_persist_path(path)
    path.write_text("{}")
    with pytest.raises(BankError, match="vector store"):
        QVPICVectorStore.from_persist_path(path)
    with pytest.raises(BankError, match="read"):
        QVPICVectorStore.from_persist_path(tmp_path / "none.json")


def make_store() -> QVPICVectorStore:
    store = QVPICVectorStore()
    vectors = [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]
    nodes = [
        TextNode(text=str(at), id_=str(at), metadata={"year": 2000 + at}, embedding=vector)
        for at, vector in enumerate(vectors)
    ]
    assert store.add(nodes) == ["0", "1", "2"]
    return store


def ids(store: QVPICVectorStore, **query: object) -> list[str]:
    return store.query(VectorStoreQuery(query_embedding=[1.0, 0.0], **{"similarity_top_k": 3, **query})).ids


def test_filters() -> None:
    store = make_store()
    assert ids(store) == ["0", "1", "2"]
    assert ids(store, similarity_top_k=1) == ["0"]
    late = MetadataFilter(key="year", value=2001, operator=FilterOperator.GTE)
    assert ids(store, filters=MetadataFilters(filters=[late]), similarity_top_k=1) == ["1"]
    not_last = MetadataFilter(key="year", value=2002, operator=FilterOperator.NE)
    nested = MetadataFilters(filters=[MetadataFilters(filters=[late]), not_last])
    assert ids(store, filters=nested) == ["1"]
    assert ids(store, filters=MetadataFilters(filters=[late], condition="not")) == ["0"]
    assert ids(store, node_ids=["2", "0"]) == ["0", "2"]
    assert ids(store, doc_ids=["2"]) == ["2"]
    store.delete_nodes(filters=MetadataFilters(filters=[late]))
    assert ids(store) == ["0"]


def test_ids_are_never_given_twice() -> None:
    store = make_store()
    store.delete("2")  # a node without a document is its own
    store.add([TextNode(text="new", id_="3", embedding=[0.6, 0.8])])
    store.add([TextNode(text="again", id_="0", embedding=[0.0, 1.0])])
    assert ids(store) == ["1", "3", "0"]
    assert [node.text for node in store.get_nodes(["0"])] == ["again"]
    assert len(store.get_nodes()) == 3


def test_results_are_copies() -> None:
    store = make_store()
    store.get_nodes(["0"])[0].metadata["year"] = 1
    assert store.get_nodes(["0"])[0].metadata == {"year": 2000}


def test_an_empty_store_is_used() -> None:
    store = QVPICVectorStore()
    assert StorageContext.from_defaults(vector_store=store).vector_store is store


def test_wrong_use_of_the_store() -> None:
    with pytest.raises(InputError, match="mode"):
        ids(make_store(), mode="sparse")
    with pytest.raises(InputError, match="embedding"):
        make_store().query(VectorStoreQuery())


def test_a_store_that_is_not_given_is_missed(index: VectorStoreIndex, tmp_path: Path) -> None:
    index.storage_context.persist(str(tmp_path / "index"))
    with pytest.raises(ValueError, match=r".") as raised:
        StorageContext.from_defaults(persist_dir=str(tmp_path / "index"))
    said = "".join(traceback.format_exception(raised.value))
    assert "QVPICVectorStore.from_persist_dir" in said


def test_a_store_is_one_object() -> None:
    for make in (copy.copy, copy.deepcopy):
        with pytest.raises(InputError, match="same object"):
            make(make_store())


def test_metadata_that_come_back_as_text(bank: Path, transform: QVPICTransform, tmp_path: Path) -> None:
    """What a node is called in the bank outlives the node's own way through a file."""
    day = datetime.datetime(2031, 3, 14, tzinfo=datetime.timezone.utc)
    node = TextNode(text="Parcel day.", id_="n", metadata={"day": day}, embedding=[1.0])
    transform([node])
    store = QVPICVectorStore(bank=bank)
    store.add([node])
    store.persist(str(tmp_path / "store.json"))
    del store
    again = QVPICVectorStore.from_persist_path(tmp_path / "store.json")
    assert source_of(node) in sources(bank)
    again.delete_nodes(["n"])
    assert source_of(node) not in sources(bank)


def test_a_bank_that_has_moved(index: VectorStoreIndex, bank: Path, tmp_path: Path) -> None:
    index.vector_store.persist(str(tmp_path / "store.json"))
    moved = bank.rename(tmp_path / "moved")
    with pytest.raises(BankNotFoundError, match="bank="):
        QVPICVectorStore.from_persist_path(tmp_path / "store.json")
    again = QVPICVectorStore.from_persist_path(tmp_path / "store.json", bank=moved)
    assert "badges.txt" in refs(moved)
    index.vector_store.clear()  # of the old place, where there is nothing
    again.delete("badges.txt")
    assert "badges.txt" not in refs(moved)


def test_metadata_that_no_file_can_hold(tmp_path: Path) -> None:
    store = QVPICVectorStore()
    store.add([TextNode(text="a", id_="a", metadata={"x": object()}, embedding=[1.0])])
    with pytest.raises(InputError, match="'a'"):
        store.persist(str(tmp_path / "store.json"))


def test_filters_of_another_kind_than_the_value() -> None:
    wanted = MetadataFilters(filters=[MetadataFilter(key="year", value="x", operator=FilterOperator.GT)])
    with pytest.raises(InputError, match="year"):
        ids(make_store(), filters=wanted)


def test_other_programs_documents_are_left_alone(bank: Path) -> None:
    """Whatever a document is called here, what another package keeps in the same bank is called otherwise."""
    with Bank.open(bank) as opened:
        page = next(iter(opened.pages())).page
        vector = opened.embeddings([page.digest])[page.digest]
        opened.put_document("langchain/default/x#1", "d", [page], vector[None], {})
    QVPICVectorStore(bank=bank).delete("langchain/default/x")
    assert "langchain/default/x#1" in sources(bank)


def test_embedding_options() -> None:
    with pytest.raises(ValueError, match="model"):
        QVPICEmbedding(model="demo")  # model_name; the default model must not come instead


def test_embedding_batches(embedding: QVPICEmbedding) -> None:
    texts = ["one text", "another one"]
    batch = embedding.get_text_embedding_batch(texts)
    assert batch[1] == pytest.approx(embedding.get_text_embedding(texts[1]), abs=1e-5)
    assert asyncio.run(embedding.aget_query_embedding("q")) == pytest.approx(embedding.get_query_embedding("q"))
    assert sum(number**2 for number in batch[0]) == pytest.approx(1, abs=1e-4)


def test_ingesting_the_same_again_adds_nothing(bank: Path, transform: QVPICTransform) -> None:
    """Splitters draw new node ids each time."""
    documents = [Document(text="Tea time of Pim Aker: 09:15.", doc_id="pim")]
    for _ in range(2):
        transform(SentenceSplitter()(documents))
    assert len([each for each in sources(bank) if each.startswith("llamaindex/pim#")]) == 1


def test_deleting_releases_what_the_store_never_saw(bank: Path, transform: QVPICTransform) -> None:
    """As after an ingestion that failed between the transform and the store, or in a store that was made anew."""
    transform(SentenceSplitter()([Document(text="Tea time of Pim Aker: 09:15.", doc_id="pim")]))
    QVPICVectorStore(bank=bank).delete("pim")
    assert "pim" not in refs(bank)
    assert "badges.txt" in refs(bank)


def test_what_another_node_needs_stays(bank: Path, transform: QVPICTransform) -> None:
    def node(name: str) -> TextNode:
        source = RelatedNodeInfo(node_id="pim")
        text = "Tea time of Pim Aker: 09:15."
        return TextNode(text=text, id_=name, relationships={NodeRelationship.SOURCE: source}, embedding=[1.0, 0.0])

    first, second = QVPICVectorStore(bank=bank), QVPICVectorStore(bank=bank)
    first.add(list(transform([node("a"), node("b")])))
    second.add([node("c")])
    first.delete_nodes(["a"])
    assert "pim" in refs(bank)
    first.delete_nodes(["b"])
    assert "pim" in refs(bank)
    first.delete("pim")
    assert "pim" in refs(bank)
    second.delete("pim")
    assert "pim" not in refs(bank)


def test_a_relative_bank_is_found_from_anywhere(
    bank: Path, transform: QVPICTransform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transform(SentenceSplitter()([Document(text="Tea time of Pim Aker: 09:15.", doc_id="pim")]))
    monkeypatch.chdir(bank.parent)
    store = QVPICVectorStore(bank=bank.name)
    monkeypatch.chdir("/")
    store.delete("pim")
    assert "pim" not in refs(bank)


def test_a_store_is_persisted_not_pickled() -> None:
    with pytest.raises(InputError, match="persist"):
        pickle.dumps(QVPICVectorStore())


def test_embeddings_of_two_models_are_refused() -> None:
    store = QVPICVectorStore()
    with pytest.raises(InputError, match="lengths"):
        store.add([TextNode(text="a", embedding=[1.0]), TextNode(text="b", embedding=[1.0, 0.0])])
    assert store.get_nodes() == []
