"""QV-PIC: retrieval-augmented generation on vision-language models from precompiled page KV caches.

>>> from qvpic_rag import QVPIC                                   # doctest: +SKIP
>>> rag = QVPIC.from_pretrained("demo", bank="./bank")            # doctest: +SKIP
>>> rag.ingest(["handbook/"])                                     # doctest: +SKIP
>>> rag.ask("What is the badge code of Marta Lind?").text         # doctest: +SKIP

Importing the package is quick: models, torch and transformers are imported when :class:`QVPIC` is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qvpic_rag.config import GenerateConfig, RenderProfile, RequestConfig, RouteConfig
from qvpic_rag.errors import QVPICError
from qvpic_rag.records import Answer, Document, Message, Page, Route, RoutedPage, Timing, Usage

if TYPE_CHECKING:
    from qvpic_rag.bank import Bank
    from qvpic_rag.index import PageIndex
    from qvpic_rag.pipeline import QVPIC, AnswerStream, Asked, IngestReport, LazyEngine, Recognised, shared_embedder

__version__ = "0.1.0"

__all__ = [
    "QVPIC",
    "Answer",
    "AnswerStream",
    "Asked",
    "Bank",
    "Document",
    "GenerateConfig",
    "IngestReport",
    "LazyEngine",
    "Message",
    "Page",
    "PageIndex",
    "QVPICError",
    "Recognised",
    "RenderProfile",
    "RequestConfig",
    "Route",
    "RouteConfig",
    "RoutedPage",
    "Timing",
    "Usage",
    "__version__",
    "shared_embedder",
]

_LAZY = {
    "QVPIC": "qvpic_rag.pipeline",
    "AnswerStream": "qvpic_rag.pipeline",
    "Asked": "qvpic_rag.pipeline",
    "IngestReport": "qvpic_rag.pipeline",
    "LazyEngine": "qvpic_rag.pipeline",
    "Bank": "qvpic_rag.bank",
    "PageIndex": "qvpic_rag.index",
    "Recognised": "qvpic_rag.pipeline",
    "shared_embedder": "qvpic_rag.pipeline",
}


def __getattr__(name: str) -> Any:
    """Import what needs torch and transformers on first use."""
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
