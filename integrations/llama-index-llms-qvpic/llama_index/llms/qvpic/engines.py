"""Query and chat engines whose nodes are read from their caches and whose responses say so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.base.response.schema import RESPONSE_TYPE
from llama_index.core.chat_engine import (
    CondensePlusContextChatEngine,
    CondenseQuestionChatEngine,
    ContextChatEngine,
    SimpleChatEngine,
)
from llama_index.core.chat_engine.types import (
    AgentChatResponse,
    BaseChatEngine,
    ChatMode,
    StreamingAgentChatResponse,
)
from llama_index.core.indices.base import BaseIndex
from llama_index.core.memory import Memory
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.response_synthesizers.context_only import ContextOnly
from llama_index.core.response_synthesizers.no_text import NoText
from llama_index.core.schema import NodeWithScore, QueryBundle
from qvpic_rag.errors import InputError

from llama_index.llms.qvpic.postprocessor import QVPICNodePostprocessor
from llama_index.llms.qvpic.responses import recorded, with_calls

if TYPE_CHECKING:
    from llama_index.llms.qvpic.llm import QVPICLLM

__all__ = ["CHAT_MODES", "QVPICQueryEngine", "chat_engine", "query_engine"]

CHAT_MODES = "context, condense_plus_context, condense_question, simple or best"

# What they return is for the caller to read, not for the model.
_UNREAD = (ResponseMode.CONTEXT_ONLY, ResponseMode.NO_TEXT)


class QVPICQueryEngine(RetrieverQueryEngine):
    """A retriever query engine whose responses list the model's calls in ``metadata["qvpic"]``."""

    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        with recorded() as calls:
            return with_calls(super()._query(query_bundle), calls)

    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        with recorded() as calls:
            return with_calls(await super()._aquery(query_bundle), calls)

    def synthesize(self, query_bundle: QueryBundle, nodes: list[NodeWithScore], *args: Any, **kwargs: Any) -> Any:
        """As in the base class."""
        with recorded() as calls:
            return with_calls(super().synthesize(query_bundle, nodes, *args, **kwargs), calls)

    async def asynthesize(
        self, query_bundle: QueryBundle, nodes: list[NodeWithScore], *args: Any, **kwargs: Any
    ) -> Any:
        """As in the base class."""
        with recorded() as calls:
            return with_calls(await super().asynthesize(query_bundle, nodes, *args, **kwargs), calls)


class _RecordedChat(BaseChatEngine):
    """Chat engines whose responses list the model's calls."""

    def chat(self, *args: Any, **kwargs: Any) -> AgentChatResponse:
        with recorded() as calls:
            return with_calls(cast(AgentChatResponse, super().chat(*args, **kwargs)), calls)  # type: ignore[safe-super]

    def stream_chat(self, *args: Any, **kwargs: Any) -> StreamingAgentChatResponse:
        with recorded() as calls:
            return with_calls(super().stream_chat(*args, **kwargs), calls)  # type: ignore[safe-super]

    async def achat(self, *args: Any, **kwargs: Any) -> AgentChatResponse:
        with recorded() as calls:
            return with_calls(cast(AgentChatResponse, await super().achat(*args, **kwargs)), calls)  # type: ignore[safe-super]

    async def astream_chat(self, *args: Any, **kwargs: Any) -> StreamingAgentChatResponse:
        with recorded() as calls:
            return with_calls(await super().astream_chat(*args, **kwargs), calls)  # type: ignore[safe-super]


class _ContextChat(_RecordedChat, ContextChatEngine):
    pass


class _CondensePlusContextChat(_RecordedChat, CondensePlusContextChatEngine):
    pass


class _CondenseQuestionChat(_RecordedChat, CondenseQuestionChatEngine):
    pass


class _SimpleChat(_RecordedChat, SimpleChatEngine):
    pass


def query_engine(llm: QVPICLLM, index: BaseIndex[Any], options: dict[str, Any]) -> BaseQueryEngine:
    """A query engine over an index; see :meth:`QVPICLLM.as_query_engine`."""
    _refuse_llm(options)
    synthesizer = options.get("response_synthesizer")
    used = getattr(synthesizer, "_llm", llm)
    if getattr(used, "llm", used) is not llm:  # a structured LLM wraps one
        raise InputError(
            "The response synthesizer has another language model, which cannot read the nodes' caches; make it with "
            "this QVPICLLM as llm."
        )
    mode = ResponseMode(options.get("response_mode", ResponseMode.COMPACT))
    read = mode not in _UNREAD and not isinstance(synthesizer, ContextOnly | NoText)
    return QVPICQueryEngine.from_args(
        index.as_retriever(**_without(options, "node_postprocessors")),
        llm=llm,
        **{**options, "node_postprocessors": _postprocessors(options) if read else options.get("node_postprocessors")},
    )


def chat_engine(llm: QVPICLLM, index: BaseIndex[Any], mode: ChatMode, options: dict[str, Any]) -> BaseChatEngine:
    """A chat engine over an index; see :meth:`QVPICLLM.as_chat_engine`."""
    _refuse_llm(options)
    options = {**options, "memory": options.get("memory") or _memory(llm, options.get("chat_history"))}
    if mode is ChatMode.SIMPLE:
        return _SimpleChat.from_defaults(llm=llm, **options)
    if mode is ChatMode.CONDENSE_QUESTION:
        engine = query_engine(llm, index, options)
        return _CondenseQuestionChat.from_defaults(query_engine=engine, llm=llm, **options)
    if mode not in (ChatMode.CONTEXT, ChatMode.CONDENSE_PLUS_CONTEXT, ChatMode.BEST):
        raise InputError(f"There is no chat mode {mode.value!r} here; choose {CHAT_MODES}.")
    kind = _ContextChat if mode is ChatMode.CONTEXT else _CondensePlusContextChat
    retriever = index.as_retriever(**_without(options, "node_postprocessors"))
    return kind.from_defaults(
        retriever=retriever, llm=llm, **{**options, "node_postprocessors": _postprocessors(options)}
    )


def _refuse_llm(options: dict[str, Any]) -> None:
    if "llm" in options:
        raise InputError("The engine's language model is this QVPICLLM; leave llm out, or ask the index for an engine.")


def _memory(llm: QVPICLLM, history: list[ChatMessage] | None) -> Memory:
    """A memory that leaves half of the context to pages, which nobody but the model can count, and counts its tokens.

    LlamaIndex's own would fill the context by another model's count.
    """
    limit = max((llm.metadata.context_window - llm.max_new_tokens) // 2, 1)
    return Memory.from_defaults(
        chat_history=history,
        token_limit=limit,
        chat_history_token_ratio=1.0,
        token_flush_size=max(limit // 8, 1),
        tokenizer_fn=llm.token_ids,
    )


def _postprocessors(options: dict[str, Any]) -> list[Any]:
    """The caller's, then the one that mints tickets, once."""
    given = list(options.get("node_postprocessors") or ())
    return [*(each for each in given if not isinstance(each, QVPICNodePostprocessor)), QVPICNodePostprocessor()]


def _without(options: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key != name}
