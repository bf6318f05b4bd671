"""Generated token ids to text, piece by piece: whole characters only, stop strings, and reasoning kept apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["AnswerText"]

_REASONING = ("<think>", "</think>")
_WRAPPER = ("<answer>", "</answer>")
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class AnswerText:
    """Collects one answer.

    Parameters
    ----------
    tokenizer
        The model's tokenizer.
    stop : Sequence[str]
        The first of these ends the answer and is not part of it.
    reasoning : bool
        Whether the prompt already opened the model's reasoning (its generation prompt ends with ``<think>``).

    Attributes
    ----------
    stopped : bool
        A stop string was met.
    """

    def __init__(self, tokenizer: Any, *, stop: Sequence[str] = (), reasoning: bool = False) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._ids: list[int] = []
        self._decoded = 0  # ids before this one are in _text for good
        self._context = 0  # decoding starts here, so that the tokenizer sees what precedes a token
        self._text = ""
        self._thinking = reasoning
        self._reasoning = ""
        self._answer = ""
        self._given = 0
        self.stopped = False

    def push(self, token: int) -> str:
        """Add a token; return the answer text that has become certain ("" while reasoning)."""
        self._ids.append(token)
        before = self._decode(self._context, self._decoded)
        after = self._decode(self._context, len(self._ids))
        if after.endswith(_INCOMPLETE) or len(after) <= len(before):
            return ""  # part of a character, or a special token
        self._text += after[len(before) :]
        self._context, self._decoded = self._decoded, len(self._ids)
        self._split(final=False)
        return self._release()

    def finish(self) -> str:
        """Say that no token follows; return the rest of the answer text."""
        if self._decoded < len(self._ids) and not self.stopped:
            before = self._decode(self._context, self._decoded)
            self._text += self._decode(self._context, len(self._ids))[len(before) :]
        self._split(final=True)
        return self._release()

    @property
    def text(self) -> str:
        """The answer so far."""
        return self._answer

    @property
    def reasoning(self) -> str:
        """What the model wrote between its reasoning marks."""
        return self._reasoning.strip()

    def _decode(self, start: int, end: int) -> str:
        return str(self._tokenizer.decode(self._ids[start:end], skip_special_tokens=True))

    def _split(self, *, final: bool) -> None:
        """Reasoning and answer from the whole text; what may still turn into a mark or stop string is held back."""
        text = self._text
        opened, closed = _REASONING
        head = text.lstrip()
        if self._thinking or head.startswith(opened):
            inner = head.removeprefix(opened)
            self._reasoning, mark, text = inner.partition(closed)
            if not mark:
                return
        elif not final and opened.startswith(head):
            return
        text = text.lstrip()
        text = text.removeprefix(_WRAPPER[0]).lstrip() if text.startswith(_WRAPPER[0]) else text
        if not final and text and _WRAPPER[0].startswith(text):
            return
        for stop in (*self._stop, _WRAPPER[1]):
            at = text.find(stop)
            if at >= 0:
                text = text[:at]
                self.stopped = self.stopped or stop != _WRAPPER[1]
        if final or self.stopped:
            self._answer = text.rstrip()
        else:
            self._answer = text[: len(text) - _held(text, (*self._stop, _WRAPPER[1]))]

    def _release(self) -> str:
        piece = self._answer[self._given :]
        self._given = max(self._given, len(self._answer))
        return piece


def _held(text: str, marks: Sequence[str]) -> int:
    """Characters at the end that could be the start of a mark, or white space that a finished answer drops."""
    longest = len(text) - len(text.rstrip())
    for mark in marks:
        for size in range(min(len(mark) - 1, len(text)), longest, -1):
            if text.endswith(mark[:size]):
                longest = size
                break
    # White space before a possible mark would be dropped with it.
    kept = text[: len(text) - longest]
    return longest + len(kept) - len(kept.rstrip())
