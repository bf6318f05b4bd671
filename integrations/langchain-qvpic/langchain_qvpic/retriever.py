"""``QVPICRetriever``: the nearest documents of a store."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict, Field
from qvpic_rag.errors import ConfigError

from langchain_qvpic.vectorstore import QVPICVectorStore

__all__ = ["QVPICRetriever"]


class QVPICRetriever(BaseRetriever):
    """Finds the ``k`` nearest documents of a store, best first; ``k`` and ``filter`` can be given per call, too.

    ``filter`` is that of :meth:`~langchain_qvpic.QVPICVectorStore.similarity_search`.
    """

    model_config = ConfigDict(extra="forbid")

    vectorstore: QVPICVectorStore
    k: int = Field(default=4, ge=1)
    filter: Any = None

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return self.vectorstore.similarity_search(query, **self._search(kwargs))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return await self.vectorstore.asimilarity_search(query, **self._search(kwargs))

    def _search(self, given: dict[str, Any]) -> dict[str, Any]:
        unknown = sorted(set(given) - {"k", "filter"})
        if unknown:
            raise ConfigError(f"QVPICRetriever has no option {unknown[0]!r}; there are k and filter.")
        return {"k": self.k, "filter": self.filter, **given}
