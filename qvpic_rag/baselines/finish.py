"""The last step of every method: the prompt goes into the model, and the answer gets its figures."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from qvpic_rag.assemble import LinkedContext
from qvpic_rag.clock import Clock
from qvpic_rag.config import GenerateConfig
from qvpic_rag.errors import ContextOverflowError
from qvpic_rag.generate import Prompt, generate, prompt
from qvpic_rag.models import LanguageModel
from qvpic_rag.records import Answer, Route, Timing, Usage

__all__ = ["check_fits", "finish", "finish_linked"]


def check_fits(model: LanguageModel, context: int, query: int, config: GenerateConfig) -> None:
    """Raise ``ContextOverflowError`` where context, question and answer exceed what the model takes, tokens."""
    needed = context + query + config.max_new_tokens
    if needed > model.max_context:
        raise ContextOverflowError(
            f"The request needs {needed} tokens ({context} of context, {query} of question, {config.max_new_tokens} "
            f"for the answer) and the model takes {model.max_context}; use fewer or shorter pages."
        )


def finish(
    model: LanguageModel,
    request: Prompt,
    config: GenerateConfig,
    clock: Clock,
    *,
    query_tokens: int,
    route: Route | None = None,
) -> Answer:
    """Answer ``request``, of whose tokens the last ``query_tokens`` are the question."""
    generated = generate(model, request, config)
    end = time.perf_counter()
    first = generated.first_token or end
    context = request.token_ids.shape[1] - query_tokens
    ttft = (first - clock.start) * 1000
    timing = Timing(ttft=ttft, decode=(end - first) * 1000, total=(end - clock.start) * 1000)
    return Answer(
        text=generated.text,
        finish_reason=generated.finish_reason,
        reasoning=generated.reasoning,
        route=route or Route(),
        timing=replace(timing, prefill=ttft - sum(clock.stages.values()), **clock.stages),  # type: ignore[arg-type]
        usage=Usage(
            context, query_tokens, len(generated.token_ids), 2 * request.cache.key_buffer[:, :, :context].nbytes
        ),
    )


def finish_linked(
    model: LanguageModel,
    context: LinkedContext,
    query_ids: Sequence[int],
    config: GenerateConfig,
    clock: Clock,
    route: Route | None = None,
) -> Answer:
    """Answer the question ``query_ids`` over a linked context."""
    request = prompt(model, context, list(query_ids))
    return finish(model, request, config, clock, query_tokens=len(query_ids), route=route)
