"""A paginator for tests: pages of so many words, and an embedder that counts words."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from qvpic_rag.records import Page

__all__ = ["WordCounts", "Words"]


class WordCounts:
    """Vectors of hashed word counts."""

    name, digest, dimension = "words", "", 512

    def encode(self, texts: Sequence[str], *, query: bool = False) -> NDArray[np.float32]:
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            for word in text.lower().split():
                row[zlib.crc32(word.strip("?.,").encode()) % self.dimension] += 1
            row /= max(1.0, float(np.linalg.norm(row)))
        return vectors


@dataclass
class Words:
    """``size`` words make a page; ``asked`` are the calls, ``(source, literal)``."""

    size: int = 20
    embedder: WordCounts | None = field(default_factory=WordCounts)
    asked: list[tuple[str, bool]] = field(default_factory=list)

    def pages(self, text: str, source: str, *, literal: bool = False) -> list[Page]:
        self.asked.append((source, literal))
        words = text.split()
        parts = [" ".join(words[at : at + self.size]) for at in range(0, len(words), self.size)]
        mark = "\\n" if literal else ""
        return [Page((part + mark,), part, source, number) for number, part in enumerate(parts)]

    def fits_one(self, text: str) -> bool:
        return 0 < len(text.split()) <= self.size

    def cut(self, text: str, tokens: int) -> tuple[str, bool]:
        words = text.split(" ")
        if len(words) <= tokens:
            return text, False
        return " ".join(words[: tokens // 2] + words[len(words) - (tokens - tokens // 2) :]), True
