"""From a linked context and a question to an answer, through the model's own ``generate``.

Positions are always explicit: under M-RoPE the next position is not the cache's length, and ``model.rope_deltas`` is
left over from whoever used the model before.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

from qvpic_rag.assemble import LinkedContext
from qvpic_rag.cache import CACHE_ARGUMENT
from qvpic_rag.config import GenerateConfig
from qvpic_rag.detokenize import AnswerText
from qvpic_rag.errors import GenerationError, QVPICError
from qvpic_rag.models import LanguageModel

__all__ = ["Generated", "Prompt", "generate", "prompt"]


@dataclass(frozen=True, eq=False)
class Prompt:
    """What goes into ``generate``.

    Attributes
    ----------
    token_ids : Tensor
        int64 ``[1, tokens]``, context and question.
    positions : Tensor
        int64 ``[axes, 1, tokens]``.
    cache : Any
        The transformers cache; holds the first tokens already, or none of them.
    query : str
        The question's end as text, which tells whether the template opened the model's reasoning.
    extra : Mapping[str, Tensor]
        Further forward arguments, such as pixel values in a full prefill.
    """

    token_ids: Tensor
    positions: Tensor
    cache: Any
    query: str
    extra: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Generated:
    """An answer and when its first token was known (``time.perf_counter`` seconds; None if there was none)."""

    text: str
    reasoning: str
    finish_reason: str
    token_ids: tuple[int, ...]
    first_token: float | None


def prompt(model: LanguageModel, context: LinkedContext, query_ids: list[int]) -> Prompt:
    """Put the question after a linked context."""
    query = torch.tensor(query_ids, dtype=torch.long)
    follow = torch.arange(len(query_ids)) + context.next_position
    positions = torch.cat([context.positions, follow.expand(model.axes, -1)], dim=1)
    return Prompt(
        token_ids=torch.cat([context.token_ids, query])[None].to(model.device),
        positions=positions[:, None].to(model.device),
        cache=context.cache,
        query=str(model.tokenizer.decode(query_ids[-16:])),
    )


def generate(
    model: LanguageModel,
    request: Prompt,
    config: GenerateConfig,
    *,
    on_piece: Callable[[str], None] = lambda piece: None,
    cancelled: threading.Event | None = None,
) -> Generated:
    """Answer one prompt.

    ``on_piece`` is called with every piece of answer text as it becomes certain. Setting ``cancelled`` ends the answer
    at the next token, with finish reason ``cancelled``.

    Raises
    ------
    GenerationError
        The model failed; the cause is chained.
    """
    settings = _settings(model, config)
    text = AnswerText(model.tokenizer, stop=config.stop, reasoning=request.query.rstrip().endswith("<think>"))
    tap = _Tap(text, _end_tokens(settings), on_piece, cancelled or threading.Event())
    with _sampled(config), model.lock, torch.no_grad():
        try:
            model.model.generate(
                input_ids=request.token_ids,
                position_ids=model.position_argument(request.positions),
                attention_mask=torch.ones_like(request.token_ids),
                generation_config=settings,
                stopping_criteria=StoppingCriteriaList([tap]),
                **{CACHE_ARGUMENT: request.cache},
                **request.extra,
            )
        except QVPICError:
            raise
        except Exception as error:
            raise GenerationError(f"The model failed while answering ({type(error).__name__}: {error}).") from error
    rest = text.finish()
    if rest:
        on_piece(rest)
    return Generated(text.text, text.reasoning, tap.reason, tuple(tap.token_ids), tap.first_token)


def _settings(model: LanguageModel, config: GenerateConfig) -> Any:
    """The checkpoint's generation settings with ours on top."""
    settings = copy.deepcopy(model.model.generation_config)
    sampled = config.temperature > 0
    settings.do_sample = sampled
    settings.num_beams = 1
    settings.max_new_tokens = config.max_new_tokens
    settings.max_length = None
    settings.use_cache = True
    settings.cache_implementation = None
    # None would mean the checkpoint's own value, so what greedy decoding does not use is set to what has no effect.
    settings.temperature = float(config.temperature) if sampled else 1.0
    settings.top_p = float(config.top_p) if sampled else 1.0
    if not sampled:
        settings.top_k = 50
    if settings.eos_token_id is None:
        settings.eos_token_id = model.tokenizer.eos_token_id
    if settings.pad_token_id is None:
        ends = _end_tokens(settings)
        settings.pad_token_id = ends[0] if ends else 0
    return settings


def _end_tokens(settings: Any) -> list[int]:
    ends = settings.eos_token_id
    if ends is None:
        return []
    return [int(ends)] if isinstance(ends, int) else [int(end) for end in ends]


_sampling = threading.Lock()


@contextmanager
def _sampled(config: GenerateConfig) -> Iterator[None]:
    """Sampling draws from the process's generators: one model at a time, and a seed puts them back afterwards.

    Entered before the model's lock is taken: greedy requests to a model need not wait for another model's samples.
    """
    if config.temperature == 0:
        yield
        return
    with _sampling:
        if config.seed is None:
            yield
            return
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):  # manual_seed seeds them all
            torch.manual_seed(config.seed)
            yield


class _Tap(StoppingCriteria):  # type: ignore[misc]
    """Sees every new token once it is chosen: hands out text, and ends generation when asked to."""

    def __init__(
        self, text: AnswerText, ends: list[int], on_piece: Callable[[str], None], cancelled: threading.Event
    ) -> None:
        self._text, self._ends, self._on_piece, self._cancelled = text, ends, on_piece, cancelled
        self.token_ids: list[int] = []
        self.first_token: float | None = None
        self.reason = "length"

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        token = int(input_ids[0, -1])  # waits for the device
        if self.first_token is None:
            self.first_token = time.perf_counter()
        self.token_ids.append(token)
        if token in self._ends:
            self.reason = "stop"
        else:
            piece = self._text.push(token)
            if piece:
                self._on_piece(piece)
            if self._text.stopped:
                self.reason = "stop"
            elif self._cancelled.is_set():
                self.reason = "cancelled"
        done = self.reason != "length"
        return torch.full((input_ids.shape[0],), done, device=input_ids.device, dtype=torch.bool)
