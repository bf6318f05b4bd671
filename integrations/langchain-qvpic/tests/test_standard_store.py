"""LangChain's own tests of vector stores and retrievers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests, VectorStoreIntegrationTests

from langchain_qvpic import QVPICRetriever, QVPICVectorStore


class TestOwnEmbedder(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, open_store: Callable[..., QVPICVectorStore]) -> VectorStore:
        return open_store()


class TestGivenEmbedding(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, open_store: Callable[..., QVPICVectorStore]) -> VectorStore:
        return open_store(embedding=self.get_embeddings())


class TestRetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _opened(self, store: QVPICVectorStore) -> None:
        self._store = store

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return QVPICRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"vectorstore": self._store}

    @property
    def retriever_query_example(self) -> str:
        return "What is the badge code of Omar Reyes?"
