"""``QVPICLLM``: the engine as a language model of LlamaIndex."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from typing import Any, TypeVar

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
)
from llama_index.core.bridge.pydantic import Field, model_validator
from llama_index.core.chat_engine.types import BaseChatEngine, ChatMode
from llama_index.core.indices.base import BaseIndex
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.llm import LLM
from qvpic_rag import AnswerStream, GenerateConfig, Message, RequestConfig, RouteConfig
from qvpic_rag.errors import ConfigError, InputError
from qvpic_rag.models import context_length
from typing_extensions import Self

from llama_index.llms.qvpic.conversation import Request, request_of, turns_of
from llama_index.llms.qvpic.options import EngineOptions
from llama_index.llms.qvpic.responses import as_chat, as_completion, begun, noted
from llama_index.llms.qvpic.tickets import TICKETS

__all__ = ["QVPICLLM"]

R = TypeVar("R", CompletionResponse, ChatResponse)


class QVPICLLM(EngineOptions, LLM):
    """A language model that reads retrieved nodes from their page caches.

    Use it like any other (``Settings.llm = QVPICLLM(model="demo", bank="./bank")``). Nodes that come through
    :class:`QVPICNodePostprocessor` are read from the bank, compiled now where they are missing; other text that equals
    stored pages is read from the bank too, and all else is prefilled.

    ``response.raw`` says what was read and how long it took; responses of the engines that :meth:`as_query_engine` and
    :meth:`as_chat_engine` make list it in ``metadata["qvpic"]``. Options of one call: ``max_new_tokens``,
    ``temperature``, ``top_p``, ``seed``, ``stop``.

    Raises
    ------
    qvpic_rag.errors.ConfigError
        An option is out of range.
    qvpic_rag.errors.InputError
        When it is first used: its subclasses say what is wrong with the model or the bank.
    qvpic_rag.errors.QueueFullError
        More than ``max_waiting`` questions wait for the model.
    """

    alpha: float = Field(default=0.65, description="Share of the relevance that is read at high resolution.")
    budget: int = Field(default=4, description="Pages read at high resolution at most.")
    token_budget: int | None = Field(
        default=None, description="Tokens that high resolutions may add at most, in place of `budget`."
    )
    max_context_tokens: int | None = Field(default=None, description="Limit below the model's own context length.")
    overflow: str = Field(default="drop", description="What happens to pages that do not fit: `drop` or `error`.")
    on_miss: str = Field(
        default="compile", description="What happens to pages that are not stored: `compile`, `low`, `error`."
    )
    max_waiting: int = Field(default=1024, description="Questions that may wait for the model.")
    max_new_tokens: int = Field(default=256, description="Longest answer, tokens.")
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: list[str] = Field(default_factory=list, description="Strings that end an answer.")

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        """Refuse wrong numbers here; models and banks are looked at when they are first used."""
        RouteConfig(self.alpha, self.budget, self.token_budget, self.router)
        RequestConfig(
            max_context_tokens=self.max_context_tokens,
            overflow=self.overflow,
            on_miss=self.on_miss,
            max_waiting=self.max_waiting,
        )
        GenerateConfig(**self._settings())
        return self

    def _engine_options(self) -> dict[str, Any]:
        return {
            **super()._engine_options(),
            "alpha": self.alpha,
            "budget": self.budget,
            "token_budget": self.token_budget,
            "max_context_tokens": self.max_context_tokens,
            "overflow": self.overflow,
            "on_miss": self.on_miss,
            "max_waiting": self.max_waiting,
        }

    @classmethod
    def class_name(cls) -> str:
        """The name that LlamaIndex stores."""
        return "QVPICLLM"

    @property
    def metadata(self) -> LLMMetadata:
        """The model's real context length, or ``max_context_tokens``.

        LlamaIndex asks for it in the event loop, so the model is not loaded for it.
        """
        context = context_length(self.model, trust_remote_code=self.trust_remote_code, revision=self.revision)
        return LLMMetadata(
            context_window=min(context, self.max_context_tokens or context),
            num_output=self.max_new_tokens,
            is_chat_model=True,
            model_name=self.model,
        )

    def token_ids(self, text: str) -> list[int]:
        """The model's own tokens, for whoever counts them, such as a chat memory; loads the model."""
        return list(self.rag.engine.model.tokenizer(text, add_special_tokens=False)["input_ids"])

    # ------------------------------------------------------------------ query and chat engines

    def as_query_engine(self, index: BaseIndex[Any], **options: Any) -> BaseQueryEngine:
        """As ``index.as_query_engine(llm=self, **options)``, with the nodes read from their caches."""
        from llama_index.llms.qvpic.engines import query_engine

        return query_engine(self, index, options)

    def as_chat_engine(
        self, index: BaseIndex[Any], chat_mode: ChatMode | str = ChatMode.CONTEXT, **options: Any
    ) -> BaseChatEngine:
        """As ``index.as_chat_engine(chat_mode, llm=self, **options)``, with the nodes read from their caches."""
        from llama_index.llms.qvpic.engines import CHAT_MODES, chat_engine

        try:
            mode = ChatMode(chat_mode)
        except ValueError:
            raise InputError(f"There is no chat mode {chat_mode!r}; choose {CHAT_MODES}.") from None
        return chat_engine(self, index, mode, options)

    # ------------------------------------------------------------------ what the engine is asked

    def _request(self, turns: Sequence[Message]) -> Request:
        return request_of(turns, TICKETS.find, self.rag.read)

    def _prompt(self, prompt: str, formatted: bool) -> list[Message]:
        if not isinstance(prompt, str):
            raise InputError(f"A prompt is a string, not {type(prompt).__name__}.")
        if not formatted and self.completion_to_prompt is not None:
            prompt = self.completion_to_prompt(prompt)
        return [Message("user", prompt)]

    def _stream(self, request: Request, options: dict[str, Any]) -> AnswerStream:
        unknown = sorted(set(options) - set(self._settings()))
        if unknown:
            raise ConfigError(f"A call has no option {unknown[0]!r}; there are {', '.join(self._settings())}.")
        return self.rag.stream(**vars(request.asked), **{**self._settings(), **options})

    def _settings(self) -> dict[str, Any]:
        return {
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "stop": tuple(self.stop),
        }

    def _answer(self, turns: Sequence[Message], options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        record = begun()
        request = self._request(turns)
        with self._stream(request, options) as stream:
            for _ in stream:
                pass
            answer = stream.answer
        return answer.text, noted(record, request, answer)

    def _pieces(
        self, turns: Sequence[Message], options: dict[str, Any], made: Callable[..., R]
    ) -> Generator[R, None, None]:
        """Responses piece by piece; the last one brings the record and no text."""
        record = begun()  # now, not when the first piece is asked for
        request = self._request(turns)
        stream = self._stream(request, options)

        def pieces() -> Generator[R, None, None]:
            with stream:
                text = ""
                for piece in stream:
                    text += piece
                    yield made(text, piece)
                yield made(stream.answer.text, "", noted(record, request, stream.answer))

        return pieces()

    async def _aanswer(self, turns: Sequence[Message], options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        record = begun()
        request = await asyncio.to_thread(self._request, turns)
        async with await asyncio.to_thread(self._stream, request, options) as stream:
            async for _ in stream:
                pass
        return stream.answer.text, noted(record, request, stream.answer)

    async def _apieces(
        self, turns: Sequence[Message], options: dict[str, Any], made: Callable[..., R]
    ) -> AsyncGenerator[R, None]:
        record = begun()
        request = await asyncio.to_thread(self._request, turns)
        stream = await asyncio.to_thread(self._stream, request, options)

        async def pieces() -> AsyncGenerator[R, None]:
            async with stream:
                text = ""
                async for piece in stream:
                    text += piece
                    yield made(text, piece)
                yield made(stream.answer.text, "", noted(record, request, stream.answer))

        return pieces()

    # ------------------------------------------------------------------ LlamaIndex's eight methods

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Answer a prompt."""
        text, raw = self._answer(self._prompt(prompt, formatted), kwargs)
        return as_completion(text, raw=raw)

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """Answer a prompt piece by piece."""
        return self._pieces(self._prompt(prompt, formatted), kwargs, as_completion)

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answer a conversation."""
        text, raw = self._answer(turns_of(messages), kwargs)
        return as_chat(text, raw=raw)

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """Answer a conversation piece by piece."""
        return self._pieces(turns_of(messages), kwargs, as_chat)

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """As :meth:`complete` without blocking the event loop; cancelling the task ends generation."""
        text, raw = await self._aanswer(self._prompt(prompt, formatted), kwargs)
        return as_completion(text, raw=raw)

    @llm_completion_callback()
    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        """As :meth:`stream_complete` without blocking the event loop."""
        return await self._apieces(self._prompt(prompt, formatted), kwargs, as_completion)

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """As :meth:`chat` without blocking the event loop; cancelling the task ends generation."""
        text, raw = await self._aanswer(turns_of(messages), kwargs)
        return as_chat(text, raw=raw)

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        """As :meth:`stream_chat` without blocking the event loop."""
        return await self._apieces(turns_of(messages), kwargs, as_chat)
