"""``ChatQVPIC``: a chat model that answers from precompiled pages."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import get_config_list
from pydantic import ConfigDict, PrivateAttr
from qvpic_rag import QVPIC, Answer, AnswerStream, GenerateConfig, LazyEngine, RenderProfile, RequestConfig
from qvpic_rag.errors import ConfigError, InputError
from typing_extensions import Self

from langchain_qvpic.engine import EngineOptions, engine_options
from langchain_qvpic.messages import turns_and_documents

__all__ = ["ChatQVPIC"]

_AT_A_TIME = 32  # calls of a batch; more gain nothing, because the model answers one question
_PER_CALL = ("max_tokens", "temperature", "top_p", "seed")


class ChatQVPIC(BaseChatModel):
    """A chat model whose documents are KV caches of pages.

    >>> llm = ChatQVPIC(model="demo", bank="./bank")                          # doctest: +SKIP
    >>> llm.invoke("What is the badge code of Omar Reyes?").content           # doctest: +SKIP

    It answers from the documents in its messages: text-plain content blocks of
    :func:`~langchain_qvpic.docs_to_qvpic_messages`, or the texts of stored pages in a filled prompt template. It
    retrieves nothing itself. ``response_metadata`` holds ``route`` and ``timing`` (milliseconds) as plain values;
    of the input tokens, those from the bank are ``cache_read``, those of pages compiled now ``cache_creation``.

    ``model``, ``bank`` and the options below ``streaming`` are those of :meth:`qvpic_rag.QVPIC.from_pretrained`;
    ``render_profile`` is its ``profile``. The engine is opened on construction.

    Attributes
    ----------
    max_tokens : int
        Longest answer, tokens.
    temperature, top_p, seed
        Sampling; greedy by default. These and ``max_tokens`` can be given per call, too.
    stop : str or list[str]
        Texts that end the answer; those given per call take their place.
    """

    model_config = ConfigDict(extra="forbid")

    model: str
    bank: str | os.PathLike[str]
    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: str | list[str] | None = None
    streaming: bool = False
    embedder: str | None = None
    router: str | None = None
    render_profile: str | RenderProfile | None = None
    dpis: tuple[int, int] | None = None
    storage: str | tuple[str, str] | None = None
    system_prompt: str | None = None
    alpha: float | None = None
    budget: int | None = None
    token_budget: int | None = None
    max_context_tokens: int | None = None
    overflow: str | None = None
    on_miss: str | None = None
    max_waiting: int | None = None
    device: str | None = None
    dtype: str | None = None
    trust_remote_code: bool | None = None
    revision: str | None = None
    namespace: str | None = None
    batch_size: int | None = None
    strict: bool | None = None
    ram_bytes: int | None = None
    remote: str | None = None

    _lazy: LazyEngine = PrivateAttr(default_factory=LazyEngine)

    def model_post_init(self, context: Any, /) -> None:
        """Check the settings and open the engine."""
        super().model_post_init(context)
        self._generation(None, {})
        _ = self.rag

    @property
    def rag(self) -> QVPIC:
        """The engine, for its bank's statistics and whatever else LangChain has no name for."""
        options: EngineOptions = {name: getattr(self, name) for name in EngineOptions.__annotations__}  # type: ignore[assignment]
        return self._lazy.get(engine_options(self.model, self.bank, **options))

    def close(self) -> None:
        """Close the bank; it is opened again when it is needed."""
        self._lazy.close()

    def __copy__(self) -> Self:
        """Another chat model, with an engine of its own; pydantic would share this one's."""
        copied = super().__copy__()
        copied._lazy = LazyEngine()
        return copied

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def get_token_ids(self, text: str) -> list[int]:
        """The model's own tokens, for whoever counts them, such as ``trim_messages``."""
        return list(self.rag.engine.model.tokenizer(text, add_special_tokens=False)["input_ids"])

    # LangChain's own four ways to run a batch; only how many calls they make at a time is decided here.

    def batch(
        self,
        inputs: list[LanguageModelInput],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        **kwargs: Any,
    ) -> list[AIMessage]:
        return super().batch(inputs, self._configs(config, len(inputs)), **kwargs)

    def batch_as_completed(
        self,
        inputs: Sequence[LanguageModelInput],
        config: RunnableConfig | Sequence[RunnableConfig] | None = None,
        **kwargs: Any,
    ) -> Iterator[tuple[int, Any]]:
        return super().batch_as_completed(inputs, self._configs(config, len(inputs)), **kwargs)

    async def abatch(
        self,
        inputs: list[LanguageModelInput],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        **kwargs: Any,
    ) -> list[AIMessage]:
        return await super().abatch(inputs, self._configs(config, len(inputs)), **kwargs)

    def abatch_as_completed(
        self,
        inputs: Sequence[LanguageModelInput],
        config: RunnableConfig | Sequence[RunnableConfig] | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[tuple[int, Any]]:
        return super().abatch_as_completed(inputs, self._configs(config, len(inputs)), **kwargs)

    def _configs(self, config: RunnableConfig | Sequence[RunnableConfig] | None, count: int) -> list[RunnableConfig]:
        """A batch's settings, with a ``max_concurrency`` of no more than may wait and the one that is answered."""
        waiting = RequestConfig().max_waiting if self.max_waiting is None else self.max_waiting
        return [
            RunnableConfig(**{**each, "max_concurrency": min(each.get("max_concurrency") or _AT_A_TIME, waiting + 1)})
            for each in get_config_list(config, count)
        ]

    @property
    def _llm_type(self) -> str:
        return "qvpic"

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        """What answers depend on; part of the key of LangChain's cache of answers."""
        names = ("model", "bank", *_PER_CALL, "stop", *EngineOptions.__annotations__)
        return {name: str(value) for name in names if (value := getattr(self, name)) is not None}

    def _generation(self, stop: list[str] | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Options of a request, checked.

        Raises
        ------
        ConfigError
            An unknown option, or one that is out of range.
        """
        given = {name: value for name, value in kwargs.items() if name != "stream"}  # LangChain's own, for its routing
        if given.get("model", self.model) != self.model:
            raise ConfigError("A bank belongs to one model; make another ChatQVPIC with a bank of its own.")
        given.pop("model", None)
        unknown = sorted(set(given) - set(_PER_CALL))
        if unknown:
            raise ConfigError(
                f"ChatQVPIC has no option {unknown[0]!r} per call; there are {', '.join(_PER_CALL)}, stop."
            )
        values = {name: given.get(name, getattr(self, name)) for name in _PER_CALL}
        values["max_new_tokens"] = values.pop("max_tokens")
        ends = self.stop if stop is None else stop
        values["stop"] = (ends,) if isinstance(ends, str) else tuple(ends or ())
        GenerateConfig(**values)
        return values

    def _asked(self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Arguments of the engine's ``ask`` and ``stream``."""
        options = self._generation(stop, kwargs)
        asked = self.rag.read(*turns_and_documents(messages))
        if not asked.query:
            raise InputError("The last message holds no question; add one after its documents.")
        return {**vars(asked), **options}

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return self._result(self.rag.ask(**self._asked(messages, stop, kwargs)))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        asked = await asyncio.to_thread(self._asked, messages, stop, kwargs)
        return self._result(await self.rag.aask(**asked))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        # Closed also when the consumer stops reading: the model is free for the next question.
        with self.rag.stream(**self._asked(messages, stop, kwargs)) as stream:
            for piece in stream:
                yield ChatGenerationChunk(message=AIMessageChunk(content=piece))
            yield self._last(stream)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        asked = await asyncio.to_thread(self._asked, messages, stop, kwargs)
        async with self.rag.stream(**asked) as stream:
            async for piece in stream:
                yield ChatGenerationChunk(message=AIMessageChunk(content=piece))
            yield self._last(stream)

    def _result(self, answer: Answer) -> ChatResult:
        message = AIMessage(
            content=answer.text,
            response_metadata=self._metadata(answer),
            usage_metadata=_usage(answer),
            additional_kwargs=_reasoning(answer),
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _last(self, stream: AnswerStream) -> ChatGenerationChunk:
        answer = stream.answer
        return ChatGenerationChunk(
            message=AIMessageChunk(
                content="",
                response_metadata=self._metadata(answer),
                usage_metadata=_usage(answer),
                additional_kwargs=_reasoning(answer),
                chunk_position="last",
            )
        )

    def _metadata(self, answer: Answer) -> dict[str, Any]:
        """Plain values, so that messages can be stored and sent."""
        record = answer.to_dict()
        return {
            "model_name": self.model,
            "model_provider": "qvpic",
            "finish_reason": answer.finish_reason,
            "route": {name: record[name] for name in ("pages", "dropped", "compiled", "note")},
            "timing": record["timing"],
        }


def _reasoning(answer: Answer) -> dict[str, Any]:
    return {"reasoning_content": answer.reasoning} if answer.reasoning else {}


def _usage(answer: Answer) -> UsageMetadata:
    compiled = sum(page.tokens for page in answer.route.pages if page.page_id in answer.route.compiled)
    read = sum(page.tokens for page in answer.route.pages) - compiled
    given = answer.usage.context_tokens + answer.usage.query_tokens
    usage: UsageMetadata = {
        "input_tokens": given,
        "output_tokens": answer.usage.output_tokens,
        "total_tokens": given + answer.usage.output_tokens,
        "input_token_details": {"cache_read": read, "cache_creation": compiled},
        "output_token_details": {},
    }
    return usage
