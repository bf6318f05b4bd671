"""``QVPICEmbedding``: the engine's text embedder as an embedding model of LlamaIndex."""

from __future__ import annotations

import asyncio
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import ConfigDict, Field
from qvpic_rag import shared_embedder

__all__ = ["QVPICEmbedding"]


class QVPICEmbedding(BaseEmbedding):
    """Sentence embeddings, L2-normalised; one model in memory with the engines that route by it.

    ``QVPICEmbedding(model_name="BAAI/bge-m3")``; ``demo`` is a small one that works offline. The model is loaded when
    it is first used and never pickled.
    """

    # An unknown option, such as ``model``, must not leave the default model in its place.
    model_config = ConfigDict(extra="forbid", protected_namespaces=(), arbitrary_types_allowed=True)

    model_name: str = Field(default="BAAI/bge-m3", description="`demo`, a folder, or a hub id.")
    device: str | None = Field(default=None, description="The first CUDA device by default, else the CPU.")

    @classmethod
    def class_name(cls) -> str:
        """The name that LlamaIndex stores."""
        return "QVPICEmbedding"

    def _encode(self, texts: list[str], *, query: bool = False) -> list[list[float]]:
        vectors = _loaded(self.model_name, self.device).encode(texts, query=query)
        return [[float(number) for number in vector] for vector in vectors]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._encode([query], query=True)[0]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._encode([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._encode(texts) if texts else []

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)


_kept: dict[tuple[str, str | None], Any] = {}  # the engine keeps an embedder only as long as somebody uses it


def _loaded(name: str, device: str | None) -> Any:
    found = _kept.get((name, device))
    if found is None:
        found = _kept[name, device] = shared_embedder(name, device=device)
    return found
