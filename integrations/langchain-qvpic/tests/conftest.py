"""Shared fixtures: the bundled reader and its documents in a bank, copied for tests that write."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # read by transformers when it is imported
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from langchain_core.documents import Document
from qvpic_rag.demo import demo_documents

from langchain_qvpic import ChatQVPIC, QVPICVectorStore

torch.set_num_threads(1)  # a model this small is slower on two


def the_documents() -> list[Document]:
    """The bundled documents, as a loader would give them; ids are their names."""
    return [Document(each.text, id=each.source, metadata={"source": each.source}) for each in demo_documents()]


@pytest.fixture
def documents() -> list[Document]:
    return the_documents()


@pytest.fixture(scope="session")
def full_bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bank that holds the documents in a store. Read it, never change it."""
    folder = tmp_path_factory.mktemp("full") / "bank"
    with QVPICVectorStore(model="demo", bank=folder) as store:
        store.add_documents(the_documents())
    return folder


@pytest.fixture(scope="session")
def llm(full_bank: Path) -> Iterator[ChatQVPIC]:
    """A chat model on the full bank."""
    with ChatQVPIC(model="demo", bank=full_bank, max_tokens=24) as model:
        yield model


@pytest.fixture(scope="session")
def store(full_bank: Path) -> Iterator[QVPICVectorStore]:
    """The store of the full bank, for tests that change nothing."""
    with QVPICVectorStore(model="demo", bank=full_bank) as opened:
        yield opened


@pytest.fixture
def bank(full_bank: Path, tmp_path: Path) -> Path:
    """This test's own copy of the full bank."""
    return Path(shutil.copytree(full_bank, tmp_path / "copy"))


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Callable[..., QVPICVectorStore]]:
    """``open_store(**options)``: a store on this test's own bank, empty at first."""
    opened: list[QVPICVectorStore] = []

    def make(bank: Path = tmp_path / "empty", **options: Any) -> QVPICVectorStore:
        opened.append(QVPICVectorStore(model="demo", bank=bank, **options))
        return opened[-1]

    yield make
    for each in opened:
        each.close()
