"""The engine's own path for equivalence tests: compile, link, prefill the question; no bank, no retrieval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image

from qvpic_rag.assemble import LinkedContext, assemble
from qvpic_rag.cache import CACHE_ARGUMENT
from qvpic_rag.compile import compile_pages, compile_text
from qvpic_rag.config import GenerateConfig
from qvpic_rag.generate import Generated, generate, prompt
from qvpic_rag.models import VisionLanguageModel, load_model
from qvpic_rag.records import BlockKey, KVBlock, Message
from qvpic_rag.template import ChatTemplate

KEY = BlockKey("model", "dtype", "prefix", "processor", "profile", "native", 72, "page", "tests")
NEW_TOKENS = 8


@dataclass(frozen=True)
class Served:
    """A loaded model with its prompt parts and prefix cache."""

    model: VisionLanguageModel
    template: ChatTemplate
    prefix: KVBlock

    def compile(self, images: Sequence[Image.Image]) -> list[KVBlock]:
        """One block per picture, each compiled alone."""
        return [block for image in images for block in compile_pages(self.model, self.template, [image], [KEY])]

    def link(self, blocks: Sequence[KVBlock], question: str) -> tuple[LinkedContext, list[int]]:
        """The linked context and the question's token ids."""
        ids = self.template.suffix([Message("user", question)])
        parts = [self.prefix]
        for number, block in enumerate(blocks):
            if number and self.template.separator:
                ids_before = [*self.template.prefix, *self.template.separator]
                parts.append(compile_text(self.model, ids_before, KEY, prefix=len(self.template.prefix)))
            parts.append(block)
        return assemble(self.model, parts, query_tokens=len(ids), new_tokens=NEW_TOKENS), ids

    def logits(self, blocks: Sequence[KVBlock], question: str) -> torch.Tensor:
        """Float32 logits of every question token, ``[question tokens, vocabulary]``."""
        context, ids = self.link(blocks, question)
        request = prompt(self.model, context, ids)
        with torch.no_grad():
            output = self.model.model(
                input_ids=request.token_ids[:, context.tokens :],
                position_ids=self.model.position_argument(request.positions[..., context.tokens :]),
                **{CACHE_ARGUMENT: request.cache},
            )
        return output.logits[0].float()

    def generate(self, blocks: Sequence[KVBlock], question: str) -> Generated:
        """Greedy answer of at most ``NEW_TOKENS`` tokens."""
        context, ids = self.link(blocks, question)
        return generate(self.model, prompt(self.model, context, ids), GenerateConfig(max_new_tokens=NEW_TOKENS))


def serve(folder: Path, *, dtype: str = "float32", device: str = "cpu", system_prompt: str | None = None) -> Served:
    """Load a checkpoint folder through the engine."""
    remote = '"auto_map"' in (folder / "config.json").read_text(encoding="utf-8")
    model = load_model(str(folder), dtype=dtype, device=device, trust_remote_code=remote)
    template = ChatTemplate(model, system_prompt=system_prompt)
    return Served(model, template, compile_text(model, template.prefix, KEY, prefix=0))
