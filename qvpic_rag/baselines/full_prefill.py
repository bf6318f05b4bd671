"""Full prefill: the usual way, every page through the vision encoder and the decoder for every question."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image

from qvpic_rag.baselines.finish import finish
from qvpic_rag.cache import BufferCache
from qvpic_rag.clock import Clock
from qvpic_rag.config import GenerateConfig
from qvpic_rag.generate import Prompt
from qvpic_rag.models import LanguageModel, VisionLanguageModel
from qvpic_rag.records import Answer, Message, Route
from qvpic_rag.template import ChatTemplate

__all__ = ["FullPrefill", "empty_cache"]


class FullPrefill:
    """Answers from page pictures that are rendered already.

    For one page this is what QV-PIC computes too; for several, pages here also attend to the pages before them.
    """

    def __init__(self, model: VisionLanguageModel, template: ChatTemplate) -> None:
        self._model, self._template = model, template

    def prompt(
        self,
        suffix: Sequence[int],
        images: Sequence[Image.Image],
        *,
        new_tokens: int,
        head: Sequence[int] | None = None,
    ) -> Prompt:
        """The whole prompt with its pictures, and an empty cache with room for ``new_tokens`` more.

        ``suffix`` holds the token ids after the last page, from :meth:`ChatTemplate.suffix`; ``head`` those before the
        first one, the template's prefix by default.
        """
        model, template = self._model, self._template
        vision = model.encode_images(images, together=True) if images else None
        row = list(template.prefix if head is None else head)
        for number, tokens in enumerate(vision.tokens if vision is not None else ()):
            row += [*(template.separator if number else ()), *template.page(tokens)]
        row += suffix
        token_ids = torch.tensor([row], device=model.device)
        return Prompt(
            token_ids=token_ids,
            positions=model.positions(token_ids, vision),
            cache=empty_cache(model, len(row) + new_tokens),
            query=str(model.tokenizer.decode(suffix[-16:])),
            extra=vision.tensors if vision is not None else {},
        )

    def answer(self, messages: Sequence[Message], images: Sequence[Image.Image], config: GenerateConfig) -> Answer:
        """Answer; ``timing.ttft`` runs from before the pictures are preprocessed to the first token."""
        clock = Clock()
        suffix = self._template.suffix(messages)
        request = self.prompt(suffix, images, new_tokens=config.max_new_tokens)
        route = Route(note="Full prefill uses no stored pages.")
        return finish(self._model, request, config, clock, query_tokens=len(suffix), route=route)


def empty_cache(model: LanguageModel, capacity: int) -> BufferCache:
    """A cache for one request of at most ``capacity`` tokens."""
    return BufferCache(model.layers, model.kv_heads, capacity, model.head_dim, dtype=model.dtype, device=model.device)
