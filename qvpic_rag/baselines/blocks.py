"""Compiled pages in memory, each compiled once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import groupby

from qvpic_rag.baselines.base import Offline
from qvpic_rag.baselines.subject import Prompts, Subject
from qvpic_rag.compile import compile_pages, compile_text
from qvpic_rag.errors import InputError
from qvpic_rag.records import BlockKey, KVBlock, Page

__all__ = ["TEXT", "Blocks", "content", "over_name"]

TEXT = 0
"""In place of a resolution: the page's text itself."""

_KEY = BlockKey("in memory", "", "", "", "", "", 0, "", "")  # these are never stored, so nothing has to tell them apart
_Name = tuple[str, int, tuple[int, ...]]


def over_name(over: int) -> str:
    """``text``, or a resolution as it is."""
    return "text" if over == TEXT else str(over)


def content(page: Page, over: int) -> str:
    """What tells pages apart: their texts where text is read, else what is drawn, which may be alike for two texts."""
    return page.text if over == TEXT else page.digest


class Blocks:
    """Blocks by :func:`content`, resolution (or :data:`TEXT`) and the token ids that they were compiled under."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._blocks: dict[_Name, KVBlock] = {}
        self._texts: dict[tuple[int, ...], KVBlock] = {}

    def prepare(self, pages: Iterable[Page], over: int, condition: tuple[int, ...]) -> Offline:
        """Compile what is missing. Pictures are drawn before the time is taken; a bank draws them once for all."""
        names = {content(page, over): page for page in pages}
        missing = {name: page for name, page in names.items() if (name, over, condition) not in self._blocks}
        if not missing:
            return Offline(0, 0.0, 0)
        if over != TEXT:
            for page in missing.values():
                self._subject.image(page, over)
        start = time.perf_counter()
        if over == TEXT:
            found = self._compile_texts(missing, condition)
        else:
            found = self._compile_pictures(missing, over, condition)
        seconds = time.perf_counter() - start
        self._blocks.update({(name, over, condition): block for name, block in found.items()})
        return Offline(len(found), seconds, sum(block.nbytes for block in found.values()))

    def get(self, page: Page, over: int, condition: tuple[int, ...]) -> KVBlock:
        """A block that was prepared."""
        try:
            return self._blocks[content(page, over), over, condition]
        except KeyError:
            raise InputError(
                f"Page {page.number} of {page.source!r} is not prepared as {over_name(over)} for this prompt; call "
                "prepare first."
            ) from None

    def prepare_head(self, prompts: Prompts, before: str, over: int) -> None:
        """Compile what stands before and between pages, one of each for all requests with these words ``before``."""
        head = prompts.head(before)
        if head:
            self._text(head, 0)
        if over != TEXT and prompts.template.separator:
            self._text([*head, *prompts.template.separator], len(head))

    def link(
        self, prompts: Prompts, before: str, pages: Sequence[Page], overs: Sequence[int], condition: tuple[int, ...]
    ) -> list[KVBlock]:
        """A request's blocks in order: its head, and the pages, each as text or at a resolution of its own."""
        head = prompts.head(before)
        found = [self._text(head, 0)] if head else []
        for place, (page, over) in enumerate(zip(pages, overs, strict=True)):
            if place and over != TEXT and prompts.template.separator:
                found.append(self._text([*head, *prompts.template.separator], len(head)))
            found.append(self.get(page, over, condition))
        return found

    def _text(self, token_ids: Sequence[int], prefix: int) -> KVBlock:
        ids = tuple(token_ids)
        if ids not in self._texts:
            self._texts[ids] = compile_text(self._subject.model, ids, _KEY, prefix=prefix)
        return self._texts[ids]

    def clear(self) -> None:
        """Let go of all blocks."""
        self._blocks.clear()
        self._texts.clear()

    def _compile_texts(self, pages: dict[str, Page], condition: tuple[int, ...]) -> dict[str, KVBlock]:
        prompts = self._subject.prompts
        return {
            name: compile_text(self._subject.model, [*condition, *prompts.chunk(page)], _KEY, prefix=len(condition))
            for name, page in pages.items()
        }

    def _compile_pictures(self, pages: dict[str, Page], dpi: int, condition: tuple[int, ...]) -> dict[str, KVBlock]:
        model, template = self._subject.vision, self._subject.prompts.pictures
        drawn = [(name, self._subject.image(page, dpi)) for name, page in pages.items()]
        found: dict[str, KVBlock] = {}
        for _, same in groupby(sorted(drawn, key=lambda item: item[1].size), key=lambda item: item[1].size):
            group = list(same)
            for start in range(0, len(group), self._subject.batch_size):
                names, images = zip(*group[start : start + self._subject.batch_size], strict=True)
                blocks = compile_pages(model, template, images, [_KEY] * len(images), prefix=condition)
                found.update(zip(names, blocks, strict=True))
        return found
