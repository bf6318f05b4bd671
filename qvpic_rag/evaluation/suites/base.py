"""What a suite is, and what it gets from whoever runs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from qvpic_rag.errors import ConfigError
from qvpic_rag.evaluation.records import Example
from qvpic_rag.records import Page

if TYPE_CHECKING:
    from qvpic_rag.embed import Embedder

__all__ = ["Paginator", "Suite", "one_of", "some_of", "whole"]


class Paginator(Protocol):
    """Texts to routing units: rendered pages, or chunks where a model reads no pictures."""

    @property
    def embedder(self) -> Embedder | None:
        """What scores pages, where there is one."""

    def pages(self, text: str, source: str, *, literal: bool = False) -> list[Page]:
        """A text's pages; ``literal`` draws newlines as red backslash-n (profile ``glyph-literal``)."""

    def fits_one(self, text: str) -> bool:
        """Whether a text is one page."""

    def cut(self, text: str, tokens: int) -> tuple[str, bool]:
        """A text of at most that many text tokens, and whether its middle was cut out."""


class Suite(Protocol):
    """Questions with known answers about known pages."""

    @property
    def name(self) -> str:
        """What it is opened as."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """JSON-able; with the same settings, and the same page profile, every run has the same examples."""

    def examples(self, reader: Paginator) -> Iterator[Example]:
        """The examples in a fixed order, one after the other; those of a group follow each other.

        Raises
        ------
        InputError
            Data is missing or wrong.
        """


def whole(owner: str, name: str, value: object, low: int, high: int = 10**9) -> int:
    """An option that is a whole number.

    Raises
    ------
    ConfigError
        It is none, or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{owner}.{name} must be a whole number from {low} to {high}, not {value!r}.")
    return value


def one_of(owner: str, name: str, value: object, allowed: Sequence[str]) -> None:
    """An option that is one name of several.

    Raises
    ------
    ConfigError
        It is something else.
    """
    if value not in allowed:
        raise ConfigError(f"{owner}.{name} must be one of {', '.join(allowed)}, not {value!r}.")


def some_of(owner: str, name: str, values: object, allowed: Sequence[str]) -> tuple[str, ...]:
    """An option that is a choice of names, each once.

    Raises
    ------
    ConfigError
        It is empty, or holds something else.
    """
    chosen = tuple(values) if isinstance(values, tuple | list) else ()
    if not chosen or len(set(map(str, chosen))) < len(chosen) or any(value not in allowed for value in chosen):
        raise ConfigError(f"{owner}.{name} must be some of {', '.join(allowed)}, each once, not {values!r}.")
    return chosen
