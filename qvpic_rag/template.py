"""The model's own chat template, cut into the parts that a linked request is made of.

A prompt with pages is ``prefix (open picture close) separator (open picture close) ... suffix``. None of these is
written here: the template is rendered with one, two and three pictures, tokenised, and cut where the placeholders are.
The prefix h conditions every page when it is compiled; everything in the suffix (question, per-request system text,
chat history, generation prompt) is prefilled online.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qvpic_rag.errors import InputError, TemplateError
from qvpic_rag.models import VisionLanguageModel
from qvpic_rag.records import Message, stable_digest, well_formed

__all__ = ["ChatTemplate"]

_PROBE = "Which one?"


class ChatTemplate:
    """Token ids of a model's prompt parts.

    Parameters
    ----------
    model : VisionLanguageModel
        Its tokenizer and template are used.
    system_prompt : str, optional
        Part of the prefix, so of every block key. None leaves the template's own default.

    Attributes
    ----------
    prefix, open, close, separator : tuple[int, ...]
        Token ids before the first page, around each picture, and between pages.
    digest : str
        SHA-256 (hex) of these ids.

    Raises
    ------
    TemplateError
        The template takes no pictures, or treats a picture differently depending on its place (numbered pictures),
        so a page cannot be compiled independently of its position.
    """

    def __init__(self, model: VisionLanguageModel, *, system_prompt: str | None = None) -> None:
        self._tokenizer = model.tokenizer
        self._template = model.checkpoint.template
        self._image = model.image_token_id
        self._name = model.checkpoint.name
        self.system_prompt = system_prompt
        self._parts = True
        # Some templates want every turn as a list of parts; others print such a list as Python would.
        self._parts = "'type'" not in self._render([Message("user", _PROBE), Message("assistant", _PROBE)], 0)
        if system_prompt is not None and system_prompt.strip() not in self._render([Message("user", _PROBE)], 0):
            raise TemplateError(
                f"The chat template of {self._name!r} drops the system prompt; ask with system= instead."
            )
        one, two, three = (self._pieces([Message("user", _PROBE)], pictures) for pictures in (1, 2, 3))
        self.prefix, self.open, self.close, self.separator = _cut(one, two, self._name)
        joint = [*self.close, *self.separator, *self.open]
        if three != [one[0], joint, joint, one[1]]:
            raise TemplateError(
                f"The chat template of {self._name!r} writes each picture differently depending on its place, so pages "
                "cannot be compiled once and linked in any order; give the model folder a template without numbering."
            )
        self.digest = stable_digest(
            {"prefix": self.prefix, "open": self.open, "close": self.close, "separator": self.separator}
        )

    def page(self, visual_tokens: int) -> list[int]:
        """Token ids of one page: its wrapper and ``visual_tokens`` placeholders."""
        return [*self.open, *[self._image] * visual_tokens, *self.close]

    def suffix(self, messages: Sequence[Message]) -> list[int]:
        """Token ids after the last page: the chat ``messages``, with the pages at the head of the first user turn.

        Raises
        ------
        InputError
            No user turn, or a text that contains the model's picture placeholder.
        """
        before, after = self._pieces(messages, 1)
        if before != [*self.prefix, *self.open] or after[: len(self.close)] != list(self.close):
            raise TemplateError(
                f"The chat template of {self._name!r} changes what stands before the pages with the messages; this "
                "conversation cannot use compiled pages."
            )
        return after[len(self.close) :]

    def without_pages(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of the whole prompt of a request that has no pages."""
        return self._pieces(messages, 0)[0]

    def _pieces(self, messages: Sequence[Message], pictures: int) -> list[list[int]]:
        """The rendered prompt's token ids, cut at its pictures."""
        text = self._render(messages, pictures)
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        pieces: list[list[int]] = [[]]
        for token in ids:
            if token == self._image:
                pieces.append([])
            else:
                pieces[-1].append(token)
        if len(pieces) != pictures + 1:
            if len(pieces) == 1:
                raise TemplateError(
                    f"The chat template of {self._name!r} drops pictures; give the model folder the template of its "
                    "vision-language processor (chat_template.jinja)."
                )
            token = self._tokenizer.convert_ids_to_tokens(self._image)
            raise InputError(f"The text contains the model's picture placeholder {token}; remove it and ask again.")
        return pieces

    def _render(self, messages: Sequence[Message], pictures: int) -> str:
        system = [] if self.system_prompt is None else [Message("system", self.system_prompt)]
        turns: list[dict[str, Any]] = []
        placed = False
        for message in [*system, *messages]:
            content = well_formed(message.content)
            text = [{"type": "text", "text": content}]
            if message.role == "user":
                images = [] if placed else [{"type": "image"}] * pictures
                turns.append({"role": "user", "content": images + text})
                placed = True
            else:
                turns.append({"role": message.role, "content": text if self._parts else content})
        if not placed:
            raise InputError("The conversation has no user turn; add one with the question.")
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    turns, chat_template=self._template, tokenize=False, add_generation_prompt=True
                )
            )
        except Exception as error:  # Jinja code of the model raises anything, so what it says is passed on
            raise TemplateError(f"The chat template of {self._name!r} failed ({error}).") from error


def _cut(one: list[list[int]], two: list[list[int]], name: str) -> tuple[tuple[int, ...], ...]:
    """Prefix, open, close, separator from the pieces of a prompt with one and with two pictures."""
    before, after = one
    first, middle, last = two
    if first != before or last != after:
        raise TemplateError(
            f"The chat template of {name!r} changes the text around the pictures with their number; give the model "
            "folder a template that writes every picture alike."
        )
    close = _common(middle, after)
    rest = middle[close:]
    opened = _common(rest[::-1], before[::-1])
    split = len(before) - opened
    separator = rest[: len(rest) - opened]
    return tuple(before[:split]), tuple(before[split:]), tuple(middle[:close]), tuple(separator)


def _common(left: list[int], right: list[int]) -> int:
    """Length of the common head of two lists."""
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return count
