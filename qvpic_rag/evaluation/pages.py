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
        self._literal: set[str] = set()

    def pages(self, text: str, source: str, *, literal: bool = False) -> list[Page]:
        """A text's pages; ``literal`` draws newlines as red backslash-n, whatever the profile says."""
        found = self._renderers[literal].pages(text, source)
        if literal:
            self._literal.update(page.digest for page in found)
        return found

    def image(self, page: Page, dpi: int) -> Image.Image:
        """A page of :meth:`pages` as a picture, RGB."""
        return self._renderers[page.digest in self._literal].image(page, dpi)

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
        return self._end(text.strip()) == len(text.strip())

    def cut(self, text: str, tokens: int) -> tuple[str, bool]:
        """See :func:`~qvpic_rag.evaluation.cutting.cut_middle`."""
        return cut_middle(self._tokenizer, text, tokens)

    def _end(self, text: str) -> int:
        """Where the first chunk of a text ends."""
        # No token is longer than this many characters on average in a text that is worth reading; what is behind need
        # not be tokenised again and again.
        head = text[: 16 * self._tokens]
        offsets = self._tokenizer(head, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        if len(offsets) <= self._tokens and len(head) == len(text):
            return len(text)
        last = offsets[min(self._tokens, len(offsets)) - 1][1]
        for mark in ("\n", " "):
            place = head.rfind(mark, last // 2, last)
            if place > 0:
                return place + 1
        return max(int(last), 1)
