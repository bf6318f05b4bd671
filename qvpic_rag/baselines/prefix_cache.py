"""Exact-prefix caching of the whole context, as serving engines do it: what a request shares with the one before it,
from its beginning on and page by page, is not computed again.

It is exact, and it helps only where the same pages come in the same order. The last request's context is kept, in one
buffer that the next request goes on in: so one is answered at a time, and others wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from PIL import Image
from torch import Tensor

from qvpic_rag.assemble import LinkedContext
from qvpic_rag.baselines.base import Method, Offline, Request
from qvpic_rag.baselines.blocks import TEXT, content, over_name
from qvpic_rag.baselines.finish import check_fits, finish_linked
from qvpic_rag.baselines.full_prefill import empty_cache
from qvpic_rag.baselines.subject import Subject
from qvpic_rag.cache import CACHE_ARGUMENT, BufferCache
from qvpic_rag.clock import Clock
from qvpic_rag.errors import UnsupportedModelError
from qvpic_rag.models import VisionInputs
from qvpic_rag.records import Answer, Page

__all__ = ["PrefixCache"]

_ROOM = 512  # tokens of question and answer that a kept buffer has room for, at least


@dataclass(eq=False)
class _Kept:
    """A context and where its pieces (what stands before the pages, then each page) end.

    ``ends`` counts tokens, ``starts`` holds the positions at which whatever follows each piece starts.
    """

    cache: BufferCache
    token_ids: Tensor
    positions: Tensor
    names: tuple[str, ...]
    ends: list[int]
    starts: list[int]


class PrefixCache(Method):
    """``over`` is a resolution (DPI) or :data:`~qvpic_rag.baselines.blocks.TEXT`.

    Raises
    ------
    UnsupportedModelError
        The model encodes a picture differently beside others, so a longer context does not begin like a shorter one.
    """

    def __init__(self, subject: Subject, over: int) -> None:
        self.name = f"prefix@{over_name(over)}"
        if over != TEXT and subject.vision.counts_pictures:
            raise UnsupportedModelError(
                f"Model {subject.model.checkpoint.name!r} encodes a picture differently when it is not the only one, "
                f"so {self.name} would not be exact; choose prefix@text."
            )
        self._subject, self._over = subject, over
        self._kept: _Kept | None = None
        self._lock = threading.Lock()

    def prepare(self, pages: Sequence[Page], before: str) -> Offline:
        """Draw the pages; caches are filled by questions."""
        if self._over != TEXT:
            for page in pages:
                self._subject.image(page, self._over)
        return Offline(0, 0.0, 0)

    def forget(self) -> None:
        """Let go of the last context."""
        with self._lock:
            self._kept = None

    def answer(self, request: Request) -> Answer:
        """Reuse what is there, prefill the rest.

        Threads take turns; ``timing`` begins with a request's own turn.
        """
        with self._lock:
            return self._answer(request)

    def _answer(self, request: Request) -> Answer:
        model = self._subject.model
        names = (request.before, *(content(page, self._over) for page in request.pages))
        known = self._known(names)
        images = self._images(request, known)
        clock = Clock()
        tail = self._subject.prompts.tail(request.after)
        room = len(tail) + request.generation.max_new_tokens
        rows, vision = self._rest(request, known, images)
        start = 0 if self._kept is None or not known else self._kept.ends[known - 1]
        total = start + sum(map(len, rows))
        check_fits(model, total, len(tail), request.generation)
        kept = self._fill(known, rows, vision, names, total + room)
        clock.lap("assemble")
        context = LinkedContext(
            kept.cache, kept.token_ids, kept.positions, kept.starts[-1], 2 * kept.cache.key_buffer[:, :, :total].nbytes
        )
        return finish_linked(model, context, tail, request.generation, clock)

    def _known(self, names: tuple[str, ...]) -> int:
        """Number of pieces that the kept context begins with, too."""
        if self._kept is None:
            return 0
        same = takewhile(lambda pair: pair[0] == pair[1], zip(names, self._kept.names, strict=False))
        return sum(1 for _ in same)

    def _images(self, request: Request, known: int) -> list[Image.Image]:
        """Pictures of the pages that are to be prefilled; a bank draws them ahead."""
        if self._over == TEXT:
            return []
        return [self._subject.image(page, self._over) for page in request.pages[max(known - 1, 0) :]]

    def _rest(
        self, request: Request, known: int, images: list[Image.Image]
    ) -> tuple[list[list[int]], VisionInputs | None]:
        """Token ids of each piece from number ``known`` on, and their pictures."""
        prompts = self._subject.prompts
        rows = [] if known else [prompts.head(request.before)]
        first = max(known - 1, 0)
        if self._over == TEXT:
            return rows + [prompts.chunk(page) for page in request.pages[first:]], None
        if not images:
            return rows, None
        vision = self._subject.vision.encode_images(images, together=True)
        template = prompts.pictures
        for place, tokens in enumerate(vision.tokens, first):
            rows.append([*(template.separator if place else ()), *template.page(tokens)])
        return rows, vision

    def _fill(
        self, known: int, rows: list[list[int]], vision: VisionInputs | None, names: tuple[str, ...], capacity: int
    ) -> _Kept:
        """The whole context in a cache with room for ``capacity`` tokens; the missing pieces are prefilled at once."""
        model, kept = self._subject.model, self._kept
        if kept is None or not known:
            none = torch.empty(0, dtype=torch.long)
            kept = _Kept(empty_cache(model, capacity + _ROOM), none, none.expand(model.axes, 0), (), [], [])
        start = kept.ends[known - 1] if known else 0
        offset = kept.starts[known - 1] if known else 0
        cache = kept.cache
        if cache.key_buffer.shape[2] < capacity:
            cache = empty_cache(model, capacity + _ROOM)
            cache.key_buffer[:, :, :start] = kept.cache.key_buffer[:, :, :start]
            cache.value_buffer[:, :, :start] = kept.cache.value_buffer[:, :, :start]
        cache.declare(start)
        self._kept = None  # should the model fail, nothing says what is in the buffer
        ends, starts = kept.ends[:known], kept.starts[:known]
        token_ids, positions = kept.token_ids[:start], kept.positions[:, :start]
        row = torch.tensor([[token for part in rows for token in part]], dtype=torch.long, device=model.device)
        # One token more is placed: where what follows starts.
        places = model.positions(torch.nn.functional.pad(row, (0, 1)), vision) + offset
        if row.shape[1]:
            with model.lock, torch.no_grad():
                model.base_model(
                    input_ids=row,
                    position_ids=model.position_argument(places[..., :-1].contiguous()),
                    attention_mask=torch.ones(1, start + row.shape[1], dtype=torch.long, device=model.device),
                    use_cache=True,
                    **{CACHE_ARGUMENT: cache},
                    **(vision.tensors if vision is not None else {}),
                )
        place = 0
        for part in rows:
            place += len(part)
            ends.append(start + place)
            starts.append(int(places[0, 0, place]))
        token_ids = torch.cat([token_ids, row[0].cpu()])
        positions = torch.cat([positions, places[:, 0, :-1].cpu()], dim=1)
        self._kept = _Kept(cache, token_ids, positions, names, ends, starts)
        return self._kept
