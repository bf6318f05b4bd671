"""What methods are given in tests: pages, pictures, embeddings; and a look at what goes out of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from qvpic_rag.baselines.base import Method, Request
from qvpic_rag.config import GenerateConfig
from qvpic_rag.models import LanguageModel
from qvpic_rag.records import Answer, Page
from tests.tiny import page_image
from tests.tiny.images import HIGH, LOW

__all__ = [
    "BEFORE",
    "PAGES",
    "QUESTION",
    "Drawn",
    "Letters",
    "Uneven",
    "answered",
    "calls",
    "first_logits",
    "page",
    "request",
]

QUESTION = "Which door is the red one?"
BEFORE = "Read these pages."
_TEXTS = ("The red door is in the east.", "A cat sat on the old mat.", "Is one of them tall?", "What a fine day it is.")


def page(number: int, text: str | None = None) -> Page:
    """A page of one line."""
    line = _TEXTS[number % len(_TEXTS)] if text is None else text
    return Page(lines=(line,), text=line, source="a.txt", number=number)


PAGES = tuple(map(page, range(4)))


def request(pages: Sequence[Page] = PAGES, *, before: str = "", after: str = QUESTION, new_tokens: int = 1) -> Request:
    """A greedy request."""
    return Request(tuple(pages), before, after, after, GenerateConfig(max_new_tokens=new_tokens))


class Drawn:
    """Pages by their number: 72 DPI are small pictures, 120 large ones."""

    def __init__(self) -> None:
        self.drawn: list[tuple[int, int]] = []

    def image(self, page: Page, dpi: int) -> Image.Image:
        self.drawn.append((page.number, dpi))
        return page_image(page.number, HIGH if dpi >= 100 else LOW)


class Uneven:
    """Pictures whose size changes from page to page, as last pages of documents have it."""

    def image(self, page: Page, dpi: int) -> Image.Image:
        return page_image(page.number, (LOW, HIGH, (40, 40))[page.number % 3])


class Letters:
    """How often each letter is in a text, normalised; so all scores of ordinary texts are positive."""

    name, digest, dimension, signals_digest = "letters", "letters", 26, ""

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def encode(self, texts: Sequence[str], *, query: bool = False) -> NDArray[np.float32]:
        self.encoded += texts
        counts = [[text.lower().count(chr(97 + letter)) for letter in range(26)] for text in texts]
        rows = np.array(counts, dtype=np.float32).reshape(len(texts), 26)
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)


@contextmanager
def first_logits(model: LanguageModel) -> Iterator[list[torch.Tensor]]:
    """Float32 logits after the last token of every forward pass with the output layer; the first is the prompt's."""
    seen: list[torch.Tensor] = []
    handle = model.model.register_forward_hook(
        lambda _module, _inputs, output: seen.append(output.logits[0, -1].float().clone())
    )
    try:
        yield seen
    finally:
        handle.remove()


def answered(model: LanguageModel, method: Method, asked: Request) -> tuple[Answer, torch.Tensor]:
    """The answer, and the logits of its first token."""
    with first_logits(model) as seen:
        answer = method.answer(asked)
    return answer, seen[0]


@contextmanager
def calls(module: Any) -> Iterator[list[int]]:
    """Tokens (or patches) of every forward pass of a module."""
    seen: list[int] = []

    def note(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        rows = kwargs.get("input_ids")
        rows = kwargs.get("inputs_embeds") if rows is None else rows
        seen.append(int(rows.shape[1]) if rows is not None else len(given[0]))

    handle = module.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()
