"""How relevant pages are to a question, from embeddings of pages that were made ahead of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qvpic_rag.baselines.base import Offline
from qvpic_rag.baselines.subject import Subject
from qvpic_rag.errors import ConfigError, InputError
from qvpic_rag.records import Page, Signals
from qvpic_rag.relevance import fused

__all__ = ["Embedded", "Ranking"]


@dataclass(frozen=True, eq=False)
class Embedded:
    """A text's embedding, float32 ``[dimension]``, and with hybrid ranking its other signals."""

    vector: npt.NDArray[np.float32]
    signals: Signals | None

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        signals = self.signals
        parts = () if signals is None else (signals.token_ids, signals.weights, signals.vectors)
        return self.vector.nbytes + sum(part.nbytes for part in parts)


class Ranking:
    """Embeddings by the text of pages; ``hybrid`` fuses BGE-M3's three signals (:mod:`qvpic_rag.relevance`).

    Raises
    ------
    ConfigError
        ``hybrid`` with an embedder that has no such signals, or with none.
    """

    def __init__(self, subject: Subject, *, hybrid: bool = False) -> None:
        if hybrid and not subject.embedder.signals_digest:
            raise ConfigError(
                f"The embedder {subject.embedder.name!r} has no lexical and multi-vector heads, which router=hybrid "
                "needs; use router=dense or an embedder such as BAAI/bge-m3."
            )
        self._subject, self._hybrid = subject, hybrid
        self._pages: dict[str, Embedded] = {}

    def prepare(self, pages: Sequence[Page]) -> Offline:
        """Embed the pages that are not embedded."""
        missing = list(dict.fromkeys(page.text for page in pages if page.text not in self._pages))
        start = time.perf_counter()
        if missing:
            self._pages.update(zip(missing, self._embed(missing, query=False), strict=True))
        return Offline(len(missing), time.perf_counter() - start, sum(self._pages[text].nbytes for text in missing))

    def query(self, text: str) -> Embedded:
        """A question's embedding."""
        return self._embed([text], query=True)[0]

    def scores(self, pages: Sequence[Page], query: Embedded) -> list[float]:
        """Relevance of prepared pages to a question, in their order: cosines, or the fused scores."""
        try:
            found = [self._pages[page.text] for page in pages]
        except KeyError:
            raise InputError("Pages must be prepared before they are scored; call prepare first.") from None
        return [_score(page, query) for page in found]

    def clear(self) -> None:
        """Let go of all embeddings."""
        self._pages.clear()

    def _embed(self, texts: list[str], *, query: bool) -> list[Embedded]:
        embedder = self._subject.embedder
        if not self._hybrid:
            return [Embedded(vector, None) for vector in embedder.encode(texts, query=query)]
        vectors, signals = embedder.signals(texts, query=query)
        return [Embedded(*each) for each in zip(vectors, signals, strict=True)]


def _score(page: Embedded, query: Embedded) -> float:
    dense = float(page.vector @ query.vector)
    if page.signals is None or query.signals is None:
        return dense
    return fused(dense, query.signals, page.signals)
