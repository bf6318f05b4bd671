"""EPIC-k: position-independent caching in which the first k tokens of every chunk are computed again online.

Chunks are compiled prefix-free and linked. Then the first k tokens of each (all of a shorter one) go through the model
once more, at their places in the request, and attend to everything before them, as far as it is recomputed in its new
form and else as it was cached (EPIC, arXiv 2410.15332, its LegoLink). With k no less than the longest chunk this is
full prefill.

Decoder inputs of those tokens are kept from compiling: a picture's come out of the vision encoder, which does not run
online.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qvpic_rag.assemble import LinkedContext, assemble
from qvpic_rag.baselines.base import Method, Offline, Request
from qvpic_rag.baselines.blocks import Blocks, content, over_name
from qvpic_rag.baselines.finish import check_fits, finish_linked
from qvpic_rag.baselines.scatter import ScatterCache, rows_mask
from qvpic_rag.baselines.subject import Subject
from qvpic_rag.cache import CACHE_ARGUMENT
from qvpic_rag.clock import Clock
from qvpic_rag.errors import InputError
from qvpic_rag.models import LanguageModel
from qvpic_rag.records import Answer, Page

__all__ = ["Epic"]


@dataclass(frozen=True, eq=False)
class _Inputs:
    """What goes into the decoder for the first tokens of one page.

    ``embeddings`` is ``[tokens, hidden]``. ``visual`` (bool ``[tokens]``) and ``deepstack`` (per layer, ``[visual
    tokens, hidden]``) are there where the model adds vision features at several layers.
    """

    embeddings: Tensor
    visual: Tensor | None
    deepstack: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        return int(self.embeddings.nbytes + sum(part.nbytes for part in self.deepstack))


class Epic(Method):
    """``tokens`` is k; ``over`` a resolution (DPI) or :data:`~qvpic_rag.baselines.blocks.TEXT`."""

    def __init__(self, subject: Subject, tokens: int, over: int) -> None:
        self.name = f"epic{tokens}@{over_name(over)}"
        self._subject, self._tokens, self._over = subject, tokens, over
        self._blocks = Blocks(subject)
        self._inputs: dict[str, _Inputs] = {}

    def prepare(self, pages: Sequence[Page], before: str) -> Offline:
        """Compile the pages, and keep the decoder's inputs of their first tokens."""
        self._blocks.prepare_head(self._subject.prompts, before, self._over)
        model, names = self._subject.model, {content(page, self._over): page for page in pages}
        missing = {name: page for name, page in names.items() if name not in self._inputs}
        parts = []
        for name, page in missing.items():  # one by one, so that every forward pass is one page's
            with model.lock, _decoder_inputs(model) as seen:
                parts.append(self._blocks.prepare([page], self._over, ()))
            self._inputs[name] = _first(model, seen[0], self._tokens)
        kept = sum(self._inputs[name].nbytes for name in missing)
        return Offline(len(missing), sum(part.seconds for part in parts), kept + sum(part.nbytes for part in parts))

    def forget(self) -> None:
        """Let go of blocks and inputs."""
        self._blocks.clear()
        self._inputs.clear()

    def answer(self, request: Request) -> Answer:
        """Link, compute the first tokens of the chunks again, and prefill the question."""
        model, clock = self._subject.model, Clock()
        prompts = self._subject.prompts
        overs = [self._over] * len(request.pages)
        blocks = self._blocks.link(prompts, request.before, request.pages, overs, ())
        tail = prompts.tail(request.after)
        check_fits(model, sum(block.tokens for block in blocks), len(tail), request.generation)
        context = assemble(model, blocks, query_tokens=len(tail), new_tokens=request.generation.max_new_tokens)
        pages = {id(self._blocks.get(page, self._over, ())): page for page in request.pages}
        head = len(prompts.head(request.before))
        places, inputs, start = [], [], head
        for block in blocks[bool(head) :]:  # what is no page separates two, and belongs to the one behind it
            page = pages.get(id(block))
            kept = _text_inputs(model, block.token_ids) if page is None else self._input(page)
            places.append(torch.arange(start, start + len(kept.embeddings)))
            inputs.append(kept)
            start += block.tokens
        clock.lap("assemble")
        if inputs:
            _recompute(model, context, torch.cat(places), inputs)
        return finish_linked(model, context, tail, request.generation, clock)

    def _input(self, page: Page) -> _Inputs:
        try:
            return self._inputs[content(page, self._over)]
        except KeyError:
            raise InputError(f"Page {page.number} of {page.source!r} is not prepared; call prepare first.") from None


def _recompute(model: LanguageModel, context: LinkedContext, places: Tensor, inputs: Sequence[_Inputs]) -> None:
    """Run the tokens at ``places`` (ascending) through the decoder; their new keys and values replace the old."""
    device = model.device
    embeddings = torch.cat([part.embeddings for part in inputs])[None].to(device)
    extra: dict[str, Any] = {}
    stacks = [part.deepstack for part in inputs if part.deepstack]
    if stacks:
        none = torch.zeros(embeddings.shape[1], dtype=torch.bool)
        masks = [none[: len(part.embeddings)] if part.visual is None else part.visual for part in inputs]
        extra["visual_pos_masks"] = torch.cat(masks)[None].to(device)
        extra["deepstack_visual_embeds"] = [torch.cat(parts).to(device) for parts in zip(*stacks, strict=True)]
    positions = context.positions[:, None, places].to(device)
    with model.lock, torch.no_grad():
        model.text_model(
            inputs_embeds=embeddings,
            position_ids=model.position_argument(positions),
            attention_mask=rows_mask(places, context.tokens, model.dtype, device),
            use_cache=True,
            **{CACHE_ARGUMENT: ScatterCache(context.cache, places, context.tokens)},
            **extra,
        )


@contextmanager
def _decoder_inputs(model: LanguageModel) -> Iterator[list[dict[str, Any]]]:
    """Collect the keyword arguments of every forward pass of the decoder."""
    seen: list[dict[str, Any]] = []
    handle = model.text_model.register_forward_pre_hook(
        lambda _module, _args, kwargs: seen.append(kwargs), with_kwargs=True
    )
    try:
        yield seen
    finally:
        handle.remove()


def _first(model: LanguageModel, kwargs: dict[str, Any], tokens: int) -> _Inputs:
    """The first ``tokens`` of what the decoder was called with."""
    if kwargs.get("inputs_embeds") is None:
        return _text_inputs(model, kwargs["input_ids"][0, :tokens])
    embeddings = kwargs["inputs_embeds"][0, :tokens].cpu().clone()
    mask, stack = kwargs.get("visual_pos_masks"), kwargs.get("deepstack_visual_embeds")
    if mask is None or not stack:
        return _Inputs(embeddings, None, ())
    visual = mask[0, :tokens].cpu().clone()
    return _Inputs(embeddings, visual, tuple(part[: int(visual.sum())].cpu().clone() for part in stack))


def _text_inputs(model: LanguageModel, token_ids: Tensor) -> _Inputs:
    with torch.no_grad():
        return _Inputs(model.model.get_input_embeddings()(token_ids.to(model.device)).cpu(), None, ())
