"""Full prefill as a method: the whole context through the model for every question, as text or as pictures."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from qvpic_rag.baselines.base import Method, Offline, Request
from qvpic_rag.baselines.blocks import TEXT, over_name
from qvpic_rag.baselines.finish import check_fits, finish
from qvpic_rag.baselines.full_prefill import FullPrefill, empty_cache
from qvpic_rag.baselines.subject import Subject
from qvpic_rag.clock import Clock
from qvpic_rag.config import GenerateConfig
from qvpic_rag.generate import Prompt
from qvpic_rag.records import Answer, Page

__all__ = ["Full", "full_text_prompt"]


class Full(Method):
    """``over`` is a resolution (DPI) or :data:`~qvpic_rag.baselines.blocks.TEXT`.

    Pictures are drawn ahead; they are preprocessed and encoded for every question.
    """

    def __init__(self, subject: Subject, over: int) -> None:
        self.name = f"full@{over_name(over)}"
        self._subject, self._over = subject, over

    def prepare(self, pages: Sequence[Page], before: str) -> Offline:
        """Draw the pages; nothing of the model's is kept."""
        if self._over != TEXT:
            for page in pages:
                self._subject.image(page, self._over)
        return Offline(0, 0.0, 0)

    def forget(self) -> None:
        """Nothing is kept."""

    def answer(self, request: Request) -> Answer:
        """Prefill everything."""
        subject = self._subject
        pictures = [] if self._over == TEXT else [subject.image(page, self._over) for page in request.pages]
        clock = Clock()
        tail = subject.prompts.tail(request.after)
        if self._over == TEXT:
            whole = full_text_prompt(subject, request.before, request.pages, tail, request.generation)
        else:
            prefill = FullPrefill(subject.vision, subject.prompts.pictures)
            whole = prefill.prompt(
                tail, pictures, new_tokens=request.generation.max_new_tokens, head=subject.prompts.head(request.before)
            )
            check_fits(subject.model, whole.token_ids.shape[1] - len(tail), len(tail), request.generation)
        return finish(subject.model, whole, request.generation, clock, query_tokens=len(tail))


def full_text_prompt(
    subject: Subject, before: str, pages: Sequence[Page], tail: Sequence[int], config: GenerateConfig
) -> Prompt:
    """A prompt with the pages' text in it, and an empty cache; ``ContextOverflowError`` where it does not fit."""
    model, prompts = subject.model, subject.prompts
    row = prompts.head(before)
    for page in pages:
        row += prompts.chunk(page)
    check_fits(model, len(row), len(tail), config)
    row += tail
    token_ids = torch.tensor([row], device=model.device)
    return Prompt(
        token_ids=token_ids,
        positions=model.positions(token_ids, None),
        cache=empty_cache(model, len(row) + config.max_new_tokens),
        query=str(model.tokenizer.decode(list(tail)[-16:])),
    )
