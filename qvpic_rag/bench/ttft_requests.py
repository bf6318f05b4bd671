"""What is done ahead of questions and the requests that are timed, through the package's own stages."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from PIL import Image

from qvpic_rag.assemble import LinkedContext, assemble
from qvpic_rag.baselines import FullPrefill
from qvpic_rag.cache import BufferCache
from qvpic_rag.compile import compile_pages, compile_text
from qvpic_rag.config import GenerateConfig, RouteConfig
from qvpic_rag.generate import Prompt, generate, prompt
from qvpic_rag.models import VisionLanguageModel
from qvpic_rag.packing import Packed
from qvpic_rag.records import BlockKey, KVBlock, Message
from qvpic_rag.route import route
from qvpic_rag.template import ChatTemplate

__all__ = ["Clock", "First", "Requests"]

_QUESTION = "Which village near the harbour did the letter of that winter come from?"
_FIRST = GenerateConfig(max_new_tokens=1)
_KEY = BlockKey("bench", "", "", "", "", "native", 0, "", "default")  # nothing is looked up by it


class Clock:
    """Milliseconds per stage; the device has finished a stage when its lap is taken."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.stages: dict[str, float] = {}
        self._wait()
        self._last = time.perf_counter()

    def lap(self, stage: str, until: float | None = None) -> None:
        """End a stage now, or at ``until`` in ``time.perf_counter`` seconds."""
        self._wait()
        now = time.perf_counter() if until is None else until
        self.stages[stage] = (now - self._last) * 1000
        self._last = now

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class First(NamedTuple):
    """The first token of an answer, and how many tokens of context it was generated from."""

    token: int
    context: int


class Requests:
    """All methods on one model and one set of pages.

    Parameters
    ----------
    model : VisionLanguageModel
        Any.
    low, high : Sequence[Image.Image]
        The pages' pictures at two resolutions.
    promoted : int
        How many pages QV-PIC reads at the high one.
    text_tokens : int
        Text tokens of a page; which ones does not matter.
    say : Callable[[str], None]
        Told what is being compiled.

    Attributes
    ----------
    offline : Mapping[str, float]
        ``low``, ``high``, ``text`` -> seconds of compiling one page, the median.
    question_tokens : int
        What is prefilled after the pages.
    """

    def __init__(
        self,
        model: VisionLanguageModel,
        low: Sequence[Image.Image],
        high: Sequence[Image.Image],
        *,
        promoted: int,
        text_tokens: int,
        say: Callable[[str], None],
    ) -> None:
        self._model = model
        self._template = ChatTemplate(model)
        self._full = FullPrefill(model, self._template)
        self._pictures = {"low": low, "high": high}
        chance = random.Random(0)
        self._texts = [[chance.randrange(256) for _ in range(text_tokens)] for _ in low]  # ids below 256 are bytes
        self._scores = [chance.uniform(0.2, 0.9) for _ in low]
        # Every page has positive mass and all of it is to be covered, so the budget alone decides.
        self._routing = RouteConfig(alpha=1.0, budget=promoted)
        self.question_tokens = len(self._suffix())
        self._blocks: dict[tuple[str, int], KVBlock] = {}
        self.offline = self._compile(say)

    def _compile(self, say: Callable[[str], None]) -> Mapping[str, float]:
        """Fill ``_blocks`` with what the requests read: high resolution for promoted pages alone."""
        prefix = list(self._template.prefix)
        self._prefix = self._kept(compile_text(self._model, prefix, _KEY, prefix=0))
        between = list(self._template.separator)
        self._separator = (
            [self._kept(compile_text(self._model, prefix + between, _KEY, prefix=len(prefix)))] if between else []
        )
        everything = range(len(self._texts))
        promoted = [number for number, page in enumerate(route(self._scores, self._routing)) if page.promoted]
        seconds = {}
        for form, numbers in (("low", everything), ("high", promoted), ("text", everything)):
            times = []
            for number in numbers:
                say(f"compiling page {number + 1}, {form}")
                start = time.perf_counter()
                if form == "text":
                    block = compile_text(self._model, [*prefix, *self._texts[number]], _KEY, prefix=len(prefix))
                else:
                    block = compile_pages(self._model, self._template, [self._pictures[form][number]], [_KEY])[0]
                times.append(time.perf_counter() - start)  # the block is on the host, so the device has finished
                self._blocks[form, number] = self._kept(block)
            if times:
                seconds[form] = statistics.median(times)
        return seconds

    def _kept(self, block: KVBlock) -> KVBlock:
        """As the RAM tier of a bank keeps it: in host memory, pinned where there is an accelerator."""
        return block if self._model.device.type != "cuda" else _mapped(block, torch.Tensor.pin_memory)

    def _suffix(self) -> list[int]:
        """The question and what the template puts around it, token ids."""
        return self._template.suffix([Message("user", _QUESTION)])

    def full_pictures(self, form: str, clock: Clock) -> First:
        """Full prefill of the pictures: ``prepare`` makes patches of them, ``prefill`` runs the whole model."""
        request = self._full.prompt(self._suffix(), self._pictures[form], new_tokens=1)
        clock.lap("prepare")
        return self._first(clock, request)

    def full_text(self, clock: Clock) -> First:
        """Full prefill of the pages' text."""
        model = self._model
        row = [*self._template.prefix, *(token for text in self._texts for token in text), *self._suffix()]
        token_ids = torch.tensor([row], device=model.device)
        cache = BufferCache(
            model.layers, model.kv_heads, len(row) + 1, model.head_dim, dtype=model.dtype, device=model.device
        )
        request = Prompt(token_ids, model.positions(token_ids, None), cache, _QUESTION)
        clock.lap("prepare")
        return self._first(clock, request)

    def pic_text(self, clock: Clock) -> First:
        """Cached text of all pages, linked."""
        query = self._suffix()
        clock.lap("prompt")
        context = self._link([self._prefix, *(self._blocks["text", n] for n in range(len(self._texts)))], query)
        clock.lap("link")
        return self._first(clock, prompt(self._model, context, query))

    def qvpic(self, clock: Clock) -> First:
        """Cached pictures of all pages at the resolutions that routing chooses, linked."""
        blocks = self._routed()
        clock.lap("route")
        query = self._suffix()
        clock.lap("prompt")
        context = self._link(blocks, query)
        clock.lap("link")
        return self._first(clock, prompt(self._model, context, query))

    def transfer(self, clock: Clock) -> None:
        """The halves of QV-PIC's stage ``link`` one after the other: ``load`` to the device, ``anchor`` there."""
        device = self._model.device
        there = [_mapped(block, lambda each: each.to(device, non_blocking=True)) for block in self._routed()]
        clock.lap("load")
        self._link(there, self._suffix())
        clock.lap("anchor")

    def _routed(self) -> list[KVBlock]:
        """Prefix, pages and separators in request order."""
        linked = [self._prefix]
        for number, decision in enumerate(route(self._scores, self._routing)):
            linked += self._separator if number else []
            linked.append(self._blocks["high" if decision.promoted else "low", number])
        return linked

    def _link(self, blocks: Sequence[KVBlock], query: Sequence[int]) -> LinkedContext:
        return assemble(self._model, blocks, query_tokens=len(query), new_tokens=1)

    def _first(self, clock: Clock, request: Prompt) -> First:
        found = generate(self._model, request, _FIRST)
        clock.lap("prefill", until=found.first_token)
        return First(found.token_ids[0], int(request.token_ids.shape[1]) - self.question_tokens)


def _mapped(block: KVBlock, change: Callable[[torch.Tensor], torch.Tensor]) -> KVBlock:
    """The block with its tensors somewhere else."""
    if isinstance(block.keys, Packed) or isinstance(block.values, Packed):
        raise TypeError("Blocks that were just compiled are not packed.")
    return replace(block, keys=change(block.keys), values=change(block.values))
