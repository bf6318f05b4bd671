"""Answers of the engine as LlamaIndex's responses: text, and route and timing as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse, MessageRole
from qvpic_rag import Answer

from llama_index.llms.qvpic.conversation import Request

__all__ = [
    "Calls",
    "Record",
    "as_chat",
    "as_completion",
    "begun",
    "calls_now",
    "noted",
    "plain",
    "recorded",
    "with_calls",
]

T = TypeVar("T")
Record = dict[str, Any]
Calls = list[Record]

_calls: ContextVar[Calls | None] = ContextVar("qvpic_calls", default=None)


def plain(request: Request, answer: Answer) -> dict[str, Any]:
    """Everything about a call but its text, in JSON-able values.

    Keys are those of ``Answer.to_dict`` (``pages``, ``timing`` in ms, ``usage``, ...), ``query``, and ``nodes``: the
    retrieved nodes in prompt order with the retriever's scores.
    """
    record = answer.to_dict()
    del record["answer"]
    usage = record["usage"]
    usage["prompt_tokens"] = usage["context_tokens"] + usage["query_tokens"]  # where LlamaIndex's token counter looks
    record["query"] = request.asked.query
    record["nodes"] = [
        {"node_id": each.node_id, "ref_doc_id": each.ref_doc_id, "rank": each.rank, "score": each.score}
        for each in request.nodes
    ]
    return record


def as_completion(text: str, delta: str | None = None, raw: dict[str, Any] | None = None) -> CompletionResponse:
    """A response, or with ``delta`` a piece of one."""
    return CompletionResponse(text=text, delta=delta, raw=raw, additional_kwargs=_counts(raw))


def as_chat(text: str, delta: str | None = None, raw: dict[str, Any] | None = None) -> ChatResponse:
    """As :func:`as_completion`, for chats."""
    message = ChatMessage(role=MessageRole.ASSISTANT, content=text)
    return ChatResponse(message=message, delta=delta, raw=raw, additional_kwargs=_counts(raw))


def _counts(raw: dict[str, Any] | None) -> dict[str, int]:
    """Tokens, under the names that other models of LlamaIndex use."""
    if raw is None:
        return {}
    usage = raw["usage"]
    return {
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage["output_tokens"],
        "total_tokens": usage["prompt_tokens"] + usage["output_tokens"],
    }


@contextmanager
def recorded() -> Iterator[Calls]:
    """Collect what :func:`plain` says of every call made inside, and of later ones about nodes retrieved inside.

    Where engines are nested, an outer one collects the calls of the inner ones, too.
    """
    calls: Calls = []
    outer = _calls.get()
    token = _calls.set(calls)
    try:
        yield calls
    finally:
        _calls.reset(token)
        if outer is not None:
            outer += calls


def calls_now() -> Calls | None:
    """Where a call that begins now is recorded, None where nobody asked for it."""
    return _calls.get()


def begun() -> Record | None:
    """The record of a call that begins now, in the order in which calls begin; filled in when it has ended."""
    calls = calls_now()
    if calls is None:
        return None
    calls.append({})
    return calls[-1]


def noted(record: Record | None, request: Request, answer: Answer) -> Record:
    """Fill in a record.

    A stream may be read by a thread that knows nothing of the query engine; its nodes know where to record it.
    """
    if record is None:
        record = {}
        if request.nodes and request.nodes[0].calls is not None:
            request.nodes[0].calls.append(record)
    record.update(plain(request, answer))
    return record


def with_calls(response: T, calls: Calls) -> T:
    """A response of a query or chat engine whose ``metadata["qvpic"]`` lists the model's calls.

    A streamed call is filled in when its stream has been read to the end.
    """
    earlier = getattr(response, "metadata", None) or {}
    setattr(response, "metadata", {**earlier, "qvpic": calls})  # noqa: B010 - streamed chats declare no such field
    return response
