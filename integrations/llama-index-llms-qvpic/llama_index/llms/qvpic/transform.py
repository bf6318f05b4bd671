"""``QVPICTransform``: nodes in, nodes out, their pages compiled and stored on the way."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from llama_index.core.bridge.pydantic import Field, model_validator
from llama_index.core.schema import BaseNode, MetadataMode, TransformComponent
from qvpic_rag import Document, RenderProfile, __version__

from llama_index.llms.qvpic.names import is_empty, source_of, text_of
from llama_index.llms.qvpic.options import EngineOptions

__all__ = ["QVPICTransform"]


class QVPICTransform(EngineOptions, TransformComponent):
    """Renders and compiles nodes into the bank, at both resolutions, so that no question waits for it.

    Put it last in an ``IngestionPipeline`` or in an index's ``transformations``. What is stored already is not compiled
    again. The nodes come back unchanged, with embeddings if ``embed`` is set; a node without anything to draw passes
    through. Everything that decides the result is a public field, so a pipeline's cache tells one bank, model or
    profile from another; a cached run compiles nothing, and what is missing then is compiled by the first question that
    needs it.

    Raises
    ------
    qvpic_rag.errors.DocumentError
        A node's text cannot be rendered (``strict``).
    """

    embed: bool = Field(default=False, description="Also set the nodes' embeddings, with the bank's embedder.")
    show_progress: bool = Field(default=False, exclude=True, description="A progress bar on stderr.")
    made_with: str = Field(default="", description="Digest of the engine's version and the render profile; computed.")

    @model_validator(mode="after")
    def _digest(self) -> QVPICTransform:
        profile = self.profile
        if isinstance(profile, str):
            profile = RenderProfile.load(profile)
        described = {"version": __version__, "profile": None if profile is None else profile.to_dict()}
        digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
        if self.made_with != digest:
            self.made_with = digest
        return self

    @classmethod
    def class_name(cls) -> str:
        """The name that LlamaIndex stores."""
        return "QVPICTransform"

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        """Compile and store the nodes' pages."""
        documents = {source_of(node): text_of(node) for node in nodes if not is_empty(node)}
        report = self.rag.ingest(
            [Document(text, source) for source, text in documents.items()],
            progress=bool(kwargs.get("show_progress", self.show_progress)),
        )
        if report.failed:
            raise report.failed[0].error
        if self.embed and nodes:
            texts = [node.get_content(MetadataMode.EMBED) for node in nodes]
            for node, vector in zip(nodes, self.rag.engine.embedder.encode(texts), strict=True):
                node.embedding = [float(number) for number in vector]
        return nodes

    async def acall(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        """As calling it, without blocking the event loop."""
        return await asyncio.to_thread(self.__call__, nodes, **kwargs)
