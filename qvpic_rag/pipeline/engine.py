"""The wired parts of one engine: a model, its prompt parts, a renderer, an embedder and a bank that all agree."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from qvpic_rag.bank import Bank
from qvpic_rag.compile import compile_pages, compile_text, page_tokens
from qvpic_rag.embed import Embedder
from qvpic_rag.errors import BankError
from qvpic_rag.index import PageIndex
from qvpic_rag.models import VisionLanguageModel
from qvpic_rag.packing import pack
from qvpic_rag.pipeline.hybrid import PageSignals
from qvpic_rag.pipeline.recognise import KnownTexts
from qvpic_rag.records import BlockKey, KVBlock, Page, Recipe
from qvpic_rag.render import Renderer
from qvpic_rag.template import ChatTemplate

__all__ = ["CONDITIONING", "Engine", "make_recipe"]

_log = logging.getLogger(__name__)

CONDITIONING = "native"
"""Pages are compiled under the model's own chat-template prefix."""

_LAYOUTS = 4096  # texts whose pages, pages whose embeddings are remembered: some ten megabytes

_Item = TypeVar("_Item")


def make_recipe(
    model: VisionLanguageModel,
    template: ChatTemplate,
    renderer: Renderer,
    embedder: Embedder,
    dpis: tuple[int, int],
    storage: tuple[str, str] = ("native", "native"),
) -> Recipe:
    """What a bank of these parts is made with."""
    return Recipe(
        model=model.checkpoint.name,
        revision=model.checkpoint.revision,
        fingerprint=model.checkpoint.fingerprint,
        dtype=str(model.dtype).removeprefix("torch."),
        system_prompt=template.system_prompt,
        prefix=template.digest,
        processor=model.processor_digest,
        profile=renderer.profile.to_dict(),
        profile_digest=renderer.digest,
        dpis=dpis,
        conditioning=CONDITIONING,
        embedder=embedder.name,
        embedder_digest=embedder.digest,
        dimension=embedder.dimension,
        storage=storage,
    )


@dataclass(eq=False)
class Engine:
    """See the module docstring. ``batch_size`` is the number of pages per compiling forward pass."""

    model: VisionLanguageModel
    template: ChatTemplate
    renderer: Renderer
    embedder: Embedder
    bank: Bank
    batch_size: int
    _index: PageIndex | None = None
    _generation: int = -1
    _known: tuple[int, KnownTexts] | None = None
    _index_lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        # Texts that somebody else retrieves come again, and the bank need not hold them.
        self.layout = lru_cache(maxsize=_LAYOUTS)(self._layout)
        self.embedding = lru_cache(maxsize=_LAYOUTS)(self._embedding)
        self.extra_tokens = lru_cache(maxsize=_LAYOUTS)(self._extra_tokens)
        self.signals = PageSignals(self.embedder, self.bank)
        # The prefix's own cache enters every request once; the separator's between pages, where the template has one.
        self.prefix = self._text_block(self.template.prefix, prefix=0)
        self.separator = (
            self._text_block([*self.template.prefix, *self.template.separator], prefix=len(self.template.prefix))
            if self.template.separator
            else None
        )

    def _text_block(self, token_ids: Sequence[int], *, prefix: int) -> KVBlock:
        key = self.bank.recipe.block_key("text", 0, self.bank.namespace)
        return compile_text(self.model, token_ids, key, prefix=prefix)

    def _layout(self, text: str) -> tuple[Page, ...]:
        """The pages of a text that has no source; remembered."""
        return tuple(self.renderer.pages(text, ""))

    def _embedding(self, text: str) -> npt.NDArray[np.float32]:
        """The embedding of a page's text; remembered."""
        found: npt.NDArray[np.float32] = self.embedder.encode([text])[0]
        return found

    def _extra_tokens(self, page: Page) -> int:
        """How many tokens more a page has at high than at low resolution, 0 or above; remembered.

        From the blocks' headers; a block that is not stored is counted from its picture, and not compiled for it.
        """
        low, high = (self._tokens(page, dpi) for dpi in self.dpis)
        return max(high - low, 0)

    def _tokens(self, page: Page, dpi: int) -> int:
        stored = self.bank.blocks.tokens(self.key(page, dpi))
        return page_tokens(self.model, self.template, self.renderer.image(page, dpi)) if stored is None else stored

    @property
    def dpis(self) -> tuple[int, int]:
        """Low and high resolution, dots per inch."""
        return self.bank.recipe.dpis

    @property
    def low(self) -> int:
        """Low resolution, dots per inch."""
        return self.dpis[0]

    @property
    def high(self) -> int:
        """High resolution, dots per inch."""
        return self.dpis[1]

    def key(self, page: Page, dpi: int) -> BlockKey:
        """The key of a page's block."""
        return self.bank.recipe.block_key(page.digest, dpi, self.bank.namespace)

    def link(self, pages: Sequence[KVBlock]) -> list[KVBlock]:
        """Prefix, pages and separators in request order; nothing for a request without pages."""
        if not pages:
            return []
        linked = [self.prefix, pages[0]]
        for block in pages[1:]:
            if self.separator is not None:
                linked.append(self.separator)
            linked.append(block)
        return linked

    def compile(self, wanted: Iterable[tuple[Page, int]]) -> Iterable[KVBlock]:
        """Render and compile ``(page, dpi)`` pairs, batching pictures of one size; yields blocks in any order.

        They have the form that the bank stores, so that an answer does not depend on where a block came from.
        """
        pictures = [(self.renderer.image(page, dpi), self.key(page, dpi)) for page, dpi in wanted]

        def size(item: tuple[Image.Image, BlockKey]) -> tuple[int, int]:
            return item[0].size

        for _, same in groupby(sorted(pictures, key=size), key=size):
            for batch in _batches(list(same), self.batch_size):
                images, keys = zip(*batch, strict=True)
                yield from map(pack, compile_pages(self.model, self.template, images, keys))

    def search(self, vector: np.ndarray, top_k: int) -> tuple[list[int], list[float]]:
        """Ids and scores of the nearest pages, best first."""
        ids, scores = self._current_index().search(vector, top_k)
        return [int(i) for i in ids], [float(s) for s in scores]

    def _current_index(self) -> PageIndex:
        """The index of what the bank holds now; another process may have changed it since the last request."""
        generation = self.bank.generation
        with self._index_lock:
            if self._index is None or self._generation != generation:
                stored = self._stored_index(generation)  # an empty index is one too
                self._index = self._rebuilt_index(generation) if stored is None else stored
                self._generation = generation
            return self._index

    def _stored_index(self, generation: int) -> PageIndex | None:
        if not self.bank.index_path.exists():
            return None
        try:
            index, stored = PageIndex.load(self.bank.index_path)
        except BankError as error:
            _log.warning("the page index is rebuilt: %s", error)
            return None
        return index if stored == generation and index.dimension == self.embedder.dimension else None

    def _rebuilt_index(self, generation: int) -> PageIndex:
        index = PageIndex(self.embedder.dimension)
        index.add(*self.bank.vectors())
        try:
            index.save(self.bank.index_path, generation)
        except BankError as error:  # a bank that may only be read still answers
            _log.info("the page index is kept in memory only: %s", error)
        return index

    def known_texts(self) -> KnownTexts:
        """What the bank's pages say, for finding them in prompts; made once for every state of the bank."""
        generation = self.bank.generation
        with self._index_lock:
            if self._known is None or self._known[0] != generation:
                self._known = generation, KnownTexts(stored.page for stored in self.bank.pages())
            return self._known[1]

    def refresh_index(self) -> None:
        """Bring the index up to date now, so that the next request need not."""
        self._current_index()


def _batches(items: list[_Item], size: int) -> Iterable[list[_Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
