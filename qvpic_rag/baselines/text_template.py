"""A text model's chat template, cut where the context stands; the text-only sibling of ``ChatTemplate``."""

from __future__ import annotations

from collections.abc import Sequence

from qvpic_rag.errors import InputError, TemplateError
from qvpic_rag.models import LanguageModel
from qvpic_rag.records import Message, well_formed

__all__ = ["TextTemplate"]

_HERE = "\ue000\ue001context\ue001\ue000"  # private-use characters, which no template strips or rewrites


class TextTemplate:
    """Token ids before and after the context, which stands at the head of the first user turn.

    Parameters
    ----------
    model : LanguageModel
        Its tokenizer and template are used.
    system_prompt : str, optional
        None leaves the template's own default.

    Attributes
    ----------
    prefix, separator : tuple[int, ...]
        Token ids before the context, and between its chunks (none).

    Raises
    ------
    TemplateError
        The template does not print what a user says exactly once.
    """

    separator: tuple[int, ...] = ()

    def __init__(self, model: LanguageModel, *, system_prompt: str | None = None) -> None:
        self._tokenizer, self._name = model.tokenizer, model.checkpoint.name
        self._template = model.checkpoint.template
        self._system = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
        self.prefix = tuple(self._ids(self._cut([Message("user", "Which one?")])[0]))

    def suffix(self, messages: Sequence[Message]) -> list[int]:
        """Token ids after the context.

        Raises
        ------
        InputError
            No user turn.
        """
        return self._ids(self._cut(messages)[1])

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _cut(self, messages: Sequence[Message]) -> tuple[str, str]:
        turns, placed = list(self._system), False
        for message in messages:
            content = well_formed(message.content)
            if message.role == "user" and not placed:
                content, placed = _HERE + content, True
            turns.append({"role": message.role, "content": content})
        if not placed:
            raise InputError("The conversation has no user turn; add one with the question.")
        try:
            text = self._tokenizer.apply_chat_template(
                turns, chat_template=self._template, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # Jinja code of the model raises anything, so what it says is passed on
            raise TemplateError(f"The chat template of {self._name!r} failed ({error}).") from error
        parts = str(text).split(_HERE)
        if len(parts) != 2:
            raise TemplateError(f"The chat template of {self._name!r} does not print the user's turn exactly once.")
        return parts[0], parts[1]
