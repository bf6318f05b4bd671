"""Engine options as fields of LlamaIndex components, and the engine that they open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llama_index.core.bridge.pydantic import ConfigDict, Field, PrivateAttr, field_validator
from llama_index.core.schema import BaseComponent
from qvpic_rag import QVPIC, LazyEngine, RenderProfile
from typing_extensions import Self

__all__ = ["EngineOptions"]


class EngineOptions(BaseComponent):
    """The options of ``QVPIC.from_pretrained`` that LlamaIndex components take.

    ``system_prompt`` is called ``page_system_prompt`` here, because a language model of LlamaIndex has a
    ``system_prompt`` already, which stands after the pages and recompiles nothing. There is no ``top_k``: LlamaIndex
    retrieves.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, protected_namespaces=())

    model: str = Field(description="`demo`, a model folder, or a hub id.")
    bank: str = Field(description="Folder of the bank; made where there is none.")
    embedder: str | None = Field(default=None, description="What pages are routed by; see QVPIC.from_pretrained.")
    router: str = Field(default="dense", description="What pages are scored by: `dense`, or `hybrid` with BGE-M3.")
    profile: str | RenderProfile | None = Field(default=None, description="How text is rendered.")
    dpis: tuple[int, int] | None = Field(default=None, description="Low and high resolution, dots per inch.")
    storage: str | tuple[str, str] | None = Field(
        default=None, description="How blocks are stored: native, int8 or int4, or a pair (low, high)."
    )
    page_system_prompt: str | None = Field(default=None, description="The system prompt that pages are compiled under.")
    device: str | None = None
    dtype: str | None = None
    trust_remote_code: bool = False
    revision: str | None = None
    namespace: str = "default"
    batch_size: int = Field(default=4, description="Pages per compiling forward pass.")
    strict: bool = Field(default=False, description="Refuse texts with characters that no font draws.")

    ram_bytes: int = Field(default=2**30, description="Bytes of blocks kept in memory.")
    remote: str | None = Field(default=None, description="URL of a remote tier of blocks, such as s3://bucket/folder.")

    _lazy: LazyEngine = PrivateAttr(default_factory=LazyEngine)

    @field_validator("bank", mode="before")
    @classmethod
    def _path(cls, value: object) -> object:
        return str(value) if isinstance(value, Path) else value

    def _engine_options(self) -> dict[str, Any]:
        """Keyword arguments for ``QVPIC.from_pretrained``."""
        return {
            "model": self.model,
            "bank": self.bank,
            "embedder": self.embedder,
            "router": self.router,
            "profile": self.profile,
            "dpis": self.dpis,
            "storage": self.storage,
            "system_prompt": self.page_system_prompt,
            "device": self.device,
            "dtype": self.dtype,
            "trust_remote_code": self.trust_remote_code,
            "revision": self.revision,
            "namespace": self.namespace,
            "batch_size": self.batch_size,
            "strict": self.strict,
            "ram_bytes": self.ram_bytes,
            "remote": self.remote,
        }

    @property
    def rag(self) -> QVPIC:
        """The engine; its model is loaded when this is first asked for, and shared with every engine of the process."""
        return self._lazy.get(self._engine_options())

    def __copy__(self) -> Self:
        """Another component, with an engine of its own; pydantic would share this one's."""
        copied = super().__copy__()
        copied._lazy = LazyEngine()
        return copied

    def close(self) -> None:
        """Close the bank; it is opened again when it is needed."""
        self._lazy.close()
