"""The demo documents as an index, their bank, and a language model whose words can be scripted."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from llama_index.core import Document, MockEmbedding, Settings, StorageContext, VectorStoreIndex
from llama_index.core.llms import MockLLM
from llama_index.core.schema import TextNode
from llama_scripted import ScriptedLLM, nodes_of
from qvpic_rag.demo import demo_documents

from llama_index.llms.qvpic import QVPICEmbedding, QVPICTransform, QVPICVectorStore

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """No test reaches for OpenAI."""
    Settings.llm, Settings.embed_model = MockLLM(), MockEmbedding(embed_dim=8)
    yield
    Settings.llm, Settings.embed_model = MockLLM(), MockEmbedding(embed_dim=8)


@pytest.fixture(scope="session")
def embedding() -> QVPICEmbedding:
    return QVPICEmbedding(model_name="demo")


@pytest.fixture(scope="session")
def demo_texts() -> dict[str, str]:
    """Three lines a node, as the reader was trained on pages of a few lines."""
    return {document.source: document.text for document in demo_documents()}


@pytest.fixture(scope="session")
def shared_bank(tmp_path_factory: pytest.TempPathFactory, demo_texts: dict[str, str]) -> Path:
    """A bank of the demo documents as nodes ``<name>-node`` of documents ``<name>``. Copy it to write."""
    bank = tmp_path_factory.mktemp("shared") / "bank"
    transform = QVPICTransform(model="demo", bank=bank)
    transform(nodes_of(demo_texts))
    transform.close()
    return bank


@pytest.fixture
def bank(shared_bank: Path, tmp_path: Path) -> Path:
    """This test's own copy of the bank."""
    copy = tmp_path / "bank"
    shutil.copytree(shared_bank, copy)
    return copy


@pytest.fixture
def nodes(demo_texts: dict[str, str]) -> list[TextNode]:
    return nodes_of(demo_texts)


@pytest.fixture
def store(bank: Path) -> QVPICVectorStore:
    return QVPICVectorStore(bank=bank)


@pytest.fixture
def index(nodes: list[TextNode], store: QVPICVectorStore, embedding: QVPICEmbedding) -> VectorStoreIndex:
    """The demo documents."""
    context = StorageContext.from_defaults(vector_store=store)
    return VectorStoreIndex(nodes, storage_context=context, embed_model=embedding)


@pytest.fixture
def make_llm(bank: Path) -> Iterator[Callable[..., ScriptedLLM]]:
    made: list[ScriptedLLM] = []

    def make(**options: Any) -> ScriptedLLM:
        made.append(ScriptedLLM(model="demo", bank=bank, **{"max_new_tokens": 24, **options}))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def llm(make_llm: Callable[..., ScriptedLLM]) -> ScriptedLLM:
    return make_llm()


@pytest.fixture
def document() -> Callable[[str, str], Document]:
    return lambda name, text: Document(text=text, doc_id=name)
