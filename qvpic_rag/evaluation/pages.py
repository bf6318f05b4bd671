"""What suites and methods get their pages from: rendered pages, or chunks of text where a model reads no pictures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from PIL import Image

from qvpic_rag.config import RenderProfile
from qvpic_rag.embed import Embedder
from qvpic_rag.evaluation.cutting import cut_middle
from qvpic_rag.records import Page
from qvpic_rag.render import Renderer

__all__ = ["RenderedPages", "TextChunks"]


class RenderedPages:
    """Pages of a render profile, for models with pictures.

    Parameters
    ----------
    profile : RenderProfile
        How pages are drawn.
    tokenizer : Any
        Counts text tokens where contexts are cut.
    embedder : Embedder, optional
        For suites that retrieve.
    """

    def __init__(self, profile: RenderProfile, tokenizer: Any, embedder: Embedder | None) -> None:
        self.embedder = embedder
        self._tokenizer = tokenizer
        self._renderers = {
            literal: Renderer(replace(profile, newline="literal") if literal else profile) for literal in (False, True)
        }

    def pages(self, text: str, source: str, *, literal: bool = False) -> list[Page]:
        """A text's pages; ``literal`` draws newlines as red backslash-n, whatever the profile says."""
        return self._renderers[literal].pages(text, source)

    def image(self, page: Page, dpi: int) -> Image.Image:
        """A page of :meth:`pages` as a picture, RGB; its lines say which newlines are drawn."""
        return self._renderers[False].image(page, dpi)

    def fits_one(self, text: str) -> bool:
        """Whether a text is one page."""
        return len(self._renderers[False].pages(text, "")) == 1

    def cut(self, text: str, tokens: int) -> tuple[str, bool]:
        """See :func:`~qvpic_rag.evaluation.cutting.cut_middle`."""
        return cut_middle(self._tokenizer, text, tokens)


class TextChunks:
    """Chunks of at most ``tokens`` text tokens, cut at the last end of a line, else of a word, that fits."""

    def __init__(self, tokenizer: Any, tokens: int, embedder: Embedder | None) -> None:
        self.embedder = embedder
        self._tokenizer, self._tokens = tokenizer, tokens

    def pages(self, text: str, source: str, *, literal: bool = False) -> list[Page]:
        """A text's chunks in order; ``literal`` changes nothing, for nothing is drawn."""
        chunks, rest = [], text.strip()
        while rest:
            end = self._end(rest)
            chunks.append(rest[:end].strip())
            rest = rest[end:].strip()
        return [
            Page(lines=tuple(chunk.split("\n")), text=chunk, source=source, number=number)
            for number, chunk in enumerate(chunks)
        ]

    def fits_one(self, text: str) -> bool:
        """Whether a text is one chunk."""
        text = text.strip()
        return 0 < len(text) == self._end(text)

    def cut(self, text: str, tokens: int) -> tuple[str, bool]:
        """See :func:`~qvpic_rag.evaluation.cutting.cut_middle`."""
        return cut_middle(self._tokenizer, text, tokens)

    def _end(self, text: str) -> int:
        """Where the first chunk of a text ends."""
        # Few texts have longer tokens than this on average; what is behind need not be tokenised again and again.
        head = text[: 16 * self._tokens]
        ends = self._ends(head)
        if len(ends) <= self._tokens:
            if len(head) == len(text):
                return len(text)
            last = len(head)
        else:
            last = ends[self._tokens - 1]
        end = next((at + 1 for mark in "\n " if (at := head.rfind(mark, last // 2, last)) > 0), last)
        # A character that is several tokens may stand across the limit, and what was cut may have other tokens alone.
        while end > 1 and len(self._ends(head[:end].strip())) > self._tokens:
            end -= 1
        return max(end, 1)

    def _ends(self, text: str) -> list[int]:
        """Where each token's characters end."""
        found = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return [int(end) for _, end in found["offset_mapping"]]
