"""Requests as token ids: cut by the engine's own chat template, with pages as pictures or as text."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from qvpic_rag.models.smolglyph.model import PICTURE_TOKENS
from qvpic_rag.reader.samples import Asked, Context
from qvpic_rag.records import Message
from qvpic_rag.template import ChatTemplate

__all__ = ["ABOUT", "BRIEFLY", "CONTINUE", "REPEAT", "Prompts"]

REPEAT = "Repeat the text."
CONTINUE = "Continue the text."
_RUNNING_TEXT = 0.5  # weight of its tokens in the loss: they outnumber the answers'
BRIEFLY = " Answer briefly."
"""Follows a question about facts: SmolLM2 answers in whole sentences otherwise."""
ABOUT = (
    "What is this about?",
    "Summarize the text in one sentence.",
    "What does the text say?",
    "Give the text a title.",
    "Name three keywords of the text.",
    "Who would read this, and why?",
    "Explain the text in simple words.",
    "Ask a question that the text answers.",
)
"""Requests that SmolLM2 itself answers about a text, to be answered alike about a picture of it."""


class Prompts:
    """Token ids of requests.

    Parameters
    ----------
    tokenizer : Any
        From :func:`qvpic_rag.models.smolglyph.model.build_tokenizer`.

    Attributes
    ----------
    template : ChatTemplate
        Without a system prompt.
    """

    def __init__(self, tokenizer: Any) -> None:
        # What a chat template needs of a model is its tokenizer, its template and its picture token.
        model: Any = SimpleNamespace(
            tokenizer=tokenizer,
            checkpoint=SimpleNamespace(template=tokenizer.chat_template, name="smolglyph"),
            image_token_id=PICTURE_TOKENS["<|image_pad|>"],
        )
        self.tokenizer, self.template = tokenizer, ChatTemplate(model)
        self._end = int(tokenizer.eos_token_id)
        self._gap = self.ids("\n\n")

    def ids(self, text: str) -> list[int]:
        """Token ids of a text alone."""
        found: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    def asked(self, request: str, answer: str) -> Asked:
        """A request and its answer, which ends the turn."""
        return Asked(self._prompt(request), [*self.ids(answer), self._end])

    def repeat(self, text: str) -> Asked:
        """The request to write the pages' text down."""
        return Asked(self._prompt(REPEAT), [*self.ids(text), self._end], _RUNNING_TEXT, copied=True)

    def go_on(self, text: str) -> Asked:
        """The request for what follows the pages' text; it breaks off and does not end the turn."""
        return Asked(self._prompt(CONTINUE), self.ids(text), _RUNNING_TEXT, copied=True)

    def _prompt(self, request: str) -> list[int]:
        return self.template.suffix((Message("user", request),))

    def as_pictures(
        self, pages: Sequence[int], grids: Sequence[tuple[int, int]], asked: Sequence[Asked], *, isolated: bool = False
    ) -> Context:
        """Pages as pictures (indices and grids), then requests."""
        template = self.template
        return Context(template.prefix, template.open, template.close, list(pages), list(grids), list(asked), isolated)

    def as_text(self, texts: Sequence[str], asked: Sequence[Asked]) -> Context:
        """The same pages as words, each followed by an empty line."""
        words = [token for text in texts for token in (*self.ids(text), *self._gap)]
        # A page of words is a picture without visual tokens between the words that open it and the one that closes it.
        return Context(self.template.prefix, words[:-1], words[-1:], [0], [(0, 0)], list(asked))
