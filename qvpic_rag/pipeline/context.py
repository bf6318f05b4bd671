"""The pages that a request is answered from: the nearest ones, or those of texts that the caller brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from qvpic_rag.pipeline.engine import Engine
from qvpic_rag.records import Document, Page

__all__ = ["given", "retrieved", "scored"]


def retrieved(engine: Engine, vector: npt.NDArray[np.float32], top_k: int) -> list[tuple[Page, float]]:
    """The nearest pages and their scores, best first; a page that was removed since the search is left out."""
    ids, scores = engine.search(vector, top_k)
    stored = {found.id: found.page for found in engine.bank.pages(ids)}
    return [(stored[i], score) for i, score in zip(ids, scores, strict=True) if i in stored]


def given(engine: Engine, items: Sequence[Document | Page]) -> dict[str, Page]:
    """Given pages, and the pages of given texts, in their order, each once, by digest.

    Pages are known by what they look like, so a text finds the caches of whatever document it was compiled with.
    """
    pages: dict[str, Page] = {}
    for item in items:
        if isinstance(item, Page):
            pages.setdefault(item.digest, item)
            continue
        for page in engine.layout(item.text):
            pages.setdefault(page.digest, replace(page, source=item.source))
    return pages


def scored(engine: Engine, vector: npt.NDArray[np.float32], pages: Mapping[str, Page]) -> list[tuple[Page, float]]:
    """Pages and their scores, in their order.

    The embeddings of pages that the bank does not hold are computed now, and remembered for a while.
    """
    stored = engine.bank.embeddings(list(pages))
    return [
        (page, float((stored[digest] if digest in stored else engine.embedding(page.text)) @ vector))
        for digest, page in pages.items()
    ]
