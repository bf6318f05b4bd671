"""How relevant pages are to a question, from embeddings of pages that were made ahead of it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from qvpic_rag.baselines.base import Offline
from qvpic_rag.baselines.subject import Subject
from qvpic_rag.errors import InputError
from qvpic_rag.records import Page

__all__ = ["Ranking"]


class Ranking:
    """Page embeddings by page."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._vectors: dict[str, npt.NDArray[np.float32]] = {}

    def prepare(self, pages: Sequence[Page]) -> Offline:
        """Embed the pages that are not embedded."""
        missing = {page.digest: page for page in pages if page.digest not in self._vectors}
        start = time.perf_counter()
        if missing:
            found = self._subject.embedder.encode([page.text for page in missing.values()])
            self._vectors.update(zip(missing, found, strict=True))
        return Offline(len(missing), time.perf_counter() - start, sum(self._vectors[name].nbytes for name in missing))

    def query(self, text: str) -> npt.NDArray[np.float32]:
        """The embedding of a question, float32 ``[dimension]``."""
        vector: npt.NDArray[np.float32] = self._subject.embedder.encode([text], query=True)[0]
        return vector

    def scores(self, pages: Sequence[Page], query: npt.NDArray[np.float32]) -> list[float]:
        """Cosines of prepared pages with a question, in their order."""
        try:
            return [float(self._vectors[page.digest] @ query) for page in pages]
        except KeyError:
            raise InputError("Pages must be prepared before they are scored; call prepare first.") from None

    def clear(self) -> None:
        """Let go of all embeddings."""
        self._vectors.clear()
