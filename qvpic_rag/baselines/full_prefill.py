"""Full prefill: the usual way, every page through the vision encoder and the decoder for every question."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from PIL import Image

from qvpic_rag.cache import BufferCache
from qvpic_rag.config import GenerateConfig
from qvpic_rag.generate import Prompt, generate
from qvpic_rag.models import VisionLanguageModel
from qvpic_rag.records import Answer, Message, Route, Timing, Usage
from qvpic_rag.template import ChatTemplate

__all__ = ["FullPrefill"]


class FullPrefill:
    """Answers from page pictures that are rendered already.

    For one page this is what QV-PIC computes too; for several, pages here also attend to the pages before them.
    """

    def __init__(self, model: VisionLanguageModel, template: ChatTemplate) -> None:
        self._model, self._template = model, template

    def prompt(self, suffix: Sequence[int], images: Sequence[Image.Image], *, new_tokens: int) -> Prompt:
        """The whole prompt with its pictures, and an empty cache with room for ``new_tokens`` more.

        ``suffix`` holds the token ids after the last page, from :meth:`ChatTemplate.suffix`.
        """
        model, template = self._model, self._template
        vision = model.encode_images(images, together=True)
        row = list(template.prefix)
        for number, tokens in enumerate(vision.tokens):
            row += [*(template.separator if number else ()), *template.page(tokens)]
        row += suffix
        token_ids = torch.tensor([row], device=model.device)
        cache = BufferCache(
            model.layers,
            model.kv_heads,
            len(row) + new_tokens,
            model.head_dim,
            dtype=model.dtype,
            device=model.device,
        )
        return Prompt(
            token_ids=token_ids,
            positions=model.positions(token_ids, vision),
            cache=cache,
            query=str(model.tokenizer.decode(suffix[-16:])),
            extra=vision.tensors,
        )

    def answer(self, messages: Sequence[Message], images: Sequence[Image.Image], config: GenerateConfig) -> Answer:
        """Answer; ``timing.ttft`` runs from before the pictures are preprocessed to the first token."""
        start = time.perf_counter()
        suffix = self._template.suffix(messages)
        request = self.prompt(suffix, images, new_tokens=config.max_new_tokens)
        generated = generate(self._model, request, config)
        end = time.perf_counter()
        first = generated.first_token or end
        context = request.token_ids.shape[1] - len(suffix)
        used = 2 * request.cache.key_buffer[:, :, :context].nbytes
        return Answer(
            text=generated.text,
            finish_reason=generated.finish_reason,
            reasoning=generated.reasoning,
            route=Route(note="Full prefill uses no stored pages."),
            timing=Timing(
                prefill=(first - start) * 1000,
                ttft=(first - start) * 1000,
                decode=(end - first) * 1000,
                total=(end - start) * 1000,
            ),
            usage=Usage(context, len(suffix), len(generated.token_ids), used),
        )
