"""Texts of stored pages in a prompt that somebody else put together.

Applications hand a language model one string with the retrieved texts in it. Where such a text is, word for word, what
stored pages show, the pages' caches can stand for it. Only whole pages are recognised, and short ones only where they
begin and end a line, so that a page that says "yes" is not found in every sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from qvpic_rag.records import Page

__all__ = ["KnownTexts", "Recognised"]

_HEAD = 4  # words that are looked up; a page of fewer is looked up whole
_SURE = 8  # words of neighbouring pages that stand nowhere by chance: they need not begin or end a line
_WORD = re.compile(r"\S+")
_Words = tuple[str, ...]


@dataclass(frozen=True)
class Recognised:
    """A prompt without the texts of stored pages.

    Attributes
    ----------
    text : str
        The prompt, :attr:`PLACEHOLDER` in place of every run of pages.
    pages : tuple[Page, ...]
        In the order of their texts.
    """

    PLACEHOLDER: ClassVar[str] = "[pages]"

    text: str
    pages: tuple[Page, ...]


class KnownTexts:
    """What stored pages say, ready to be found.

    Parameters
    ----------
    pages : Iterable[Page]
        All pages.
    """

    def __init__(self, pages: Iterable[Page]) -> None:
        self._by_head: dict[_Words, list[_Known]] = {}
        for page in pages:
            head = tuple(page.text.split(None, _HEAD)[:_HEAD])
            if head:
                self._by_head.setdefault(head, []).append(_Known(page))

    def find(self, prompt: str) -> Recognised:
        """Cut the texts of pages out of a prompt."""
        if not self._by_head:
            return Recognised(prompt, ())
        found = list(_WORD.finditer(prompt))
        words = tuple(match.group() for match in found)
        begins = [not at or "\n" in prompt[found[at - 1].end() : match.start()] for at, match in enumerate(found)]
        pieces: list[str] = []
        pages: list[Page] = []
        at, cut = 0, 0
        while at < len(words):
            run = self._run(words, begins, at)
            if not run:
                at += 1
                continue
            pieces += [prompt[cut : found[at].start()], Recognised.PLACEHOLDER]
            for length, page in run:
                at += length
                pages.append(page)
            cut = found[at - 1].end()
        return Recognised("".join([*pieces, prompt[cut:]]), tuple(pages))

    def _run(self, words: _Words, begins: Sequence[bool], start: int) -> list[tuple[int, Page]]:
        """Pages one after the other from a word on, with their numbers of words.

        They begin and end lines, or are long enough. Of pages that begin alike the longest is taken.
        """
        run: list[tuple[int, Page]] = []
        whole = 0  # pages up to the last one that may stand there
        at = start
        while match := self._match(words, at):
            run.append(match)
            at += match[0]
            if at - start >= _SURE or (begins[start] and (at == len(words) or begins[at])):
                whole = len(run)
        return run[:whole]

    def _match(self, words: _Words, at: int) -> tuple[int, Page] | None:
        for size in range(min(_HEAD, len(words) - at), 0, -1):
            matching = [
                known
                for known in self._by_head.get(words[at : at + size], ())
                if (size == _HEAD or size == len(known.words)) and words[at : at + len(known.words)] == known.words
            ]
            if matching:
                longest = max(matching, key=lambda known: len(known.words))
                return len(longest.words), longest.page
        return None


class _Known:
    """A page, whose words are counted only once something begins like it: a bank may hold many thousands."""

    def __init__(self, page: Page) -> None:
        self.page = page

    @cached_property
    def words(self) -> _Words:
        return tuple(self.page.text.split())
