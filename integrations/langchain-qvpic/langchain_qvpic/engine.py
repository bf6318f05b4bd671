"""The options of an engine."""

from __future__ import annotations

import os
from typing import Any

from qvpic_rag import RenderProfile
from typing_extensions import TypedDict, Unpack

__all__ = ["BankOptions", "EngineOptions", "engine_options"]


class BankOptions(TypedDict, total=False):
    """The options of :meth:`qvpic_rag.QVPIC.from_pretrained` that decide what is compiled, and with what.

    What is left out or None has the engine's default. The engine's ``profile`` is ``render_profile`` here, because a
    LangChain chat model's ``profile`` is something else. There is no ``top_k``: LangChain's retrievers retrieve.
    """

    embedder: str | None
    router: str | None
    render_profile: str | RenderProfile | None
    dpis: tuple[int, int] | None
    storage: str | tuple[str, str] | None
    system_prompt: str | None
    device: str | None
    dtype: str | None
    trust_remote_code: bool | None
    revision: str | None
    namespace: str | None
    batch_size: int | None
    strict: bool | None
    ram_bytes: int | None
    remote: str | None


class EngineOptions(BankOptions, total=False):
    """Those and the ones that decide how questions are answered."""

    alpha: float | None
    budget: int | None
    token_budget: int | None
    max_context_tokens: int | None
    overflow: str | None
    on_miss: str | None
    max_waiting: int | None


def engine_options(model: str, bank: str | os.PathLike[str], **options: Unpack[EngineOptions]) -> dict[str, Any]:
    """Keyword arguments of :meth:`qvpic_rag.QVPIC.from_pretrained`."""
    given = {("profile" if name == "render_profile" else name): v for name, v in options.items() if v is not None}
    return {"model": model, "bank": bank, **given}
