"""Long contexts cut in the middle, as LongBench does: beginnings and ends say most."""

from __future__ import annotations

from typing import Any

from qvpic_rag.errors import ConfigError, UnsupportedModelError

__all__ = ["cut_middle"]


def cut_middle(tokenizer: Any, text: str, tokens: int) -> tuple[str, bool]:
    """The first ``tokens // 2`` and the last ``tokens - tokens // 2`` tokens of a text that has more than ``tokens``.

    Both halves are slices of the text, never decoded tokens, so no character changes. A character that the cut would
    split is left out. Where the halves meet, words may join to other tokens than before; should the result have more
    tokens than asked for, it is cut further until it has not.

    Parameters
    ----------
    tokenizer : Any
        A fast tokenizer of transformers; special tokens are not counted.
    text : str
        Any text.
    tokens : int
        At least 1.

    Returns
    -------
    tuple[str, bool]
        The text, and whether it was cut.

    Raises
    ------
    ConfigError
        ``tokens`` is below 1.
    UnsupportedModelError
        The tokenizer does not say which characters its tokens stand for.
    """
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise ConfigError(f"A context is cut to a whole number of at least 1 token, not {tokens!r}.")
    if not getattr(tokenizer, "is_fast", False):
        raise UnsupportedModelError(
            "Contexts cannot be cut with this model's tokenizer, which does not say where its tokens stand in a text; "
            "use a model with a fast tokenizer (tokenizer.json), or leave contexts as they are."
        )
    offsets = _offsets(tokenizer, text)
    if len(offsets) <= tokens:
        return text, False
    keep = tokens
    while True:
        shorter = _without_middle(text, offsets, keep)
        excess = len(_offsets(tokenizer, shorter)) - tokens
        if excess <= 0:
            return shorter, True
        keep = max(0, keep - excess)


def _offsets(tokenizer: Any, text: str) -> list[tuple[int, int]]:
    """Each token's characters, ``(start, end)``."""
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False)
    return list(found["offset_mapping"])


def _without_middle(text: str, offsets: list[tuple[int, int]], keep: int) -> str:
    """Text of the first and last ``keep`` tokens together; there are more than that."""
    head = keep // 2
    tail = len(offsets) - (keep - head)
    # Tokens that are parts of one character have its place: neither half may take it, for the other part is left out.
    end = min(offsets[head - 1][1], offsets[head][0]) if head else 0
    start = offsets[tail - 1][1] if keep else len(text)
    return text[:end] + text[start:]
