"""``qvpic_rag_chain``: a question to its answer and the documents it was given from."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from qvpic_rag.errors import InputError

from langchain_qvpic.documents import docs_to_qvpic_messages

__all__ = ["qvpic_rag_chain"]

_KEYS = ("question", "context", "chat_history", "system")


def qvpic_rag_chain(
    retriever: Runnable[str, list[Document]], llm: BaseChatModel
) -> Runnable[str | Mapping[str, Any], dict[str, Any]]:
    """A chain from a question to ``{"answer", "context", "question"}``; it streams.

    Parameters
    ----------
    retriever : Runnable[str, list[Document]]
        Asked with the question, unless documents are given with it.
    llm : BaseChatModel
        :class:`~langchain_qvpic.ChatQVPIC`, bound or configured as you like.

    Its input is the question, or a mapping with ``question`` and, each optional, ``context`` (documents to answer
    from), ``chat_history`` and ``system``. It raises ``InputError`` for anything else.
    """

    def context(inputs: Mapping[str, Any]) -> Runnable[Any, list[Document]]:
        if inputs.get("context") is not None:
            return RunnableLambda(itemgetter("context"))
        return RunnableLambda(itemgetter("question")) | retriever

    answer = RunnableLambda(docs_to_qvpic_messages) | llm | StrOutputParser()
    return (
        RunnableLambda(_inputs)
        | RunnablePassthrough.assign(context=RunnableLambda(context))
        | RunnablePassthrough.assign(answer=answer)
    ).pick(["answer", "context", "question"])


def _inputs(given: str | Mapping[str, Any]) -> dict[str, Any]:
    inputs = {"question": given} if isinstance(given, str) else given
    if not isinstance(inputs, Mapping) or not isinstance(inputs.get("question"), str):
        raise InputError('Give a question, or a mapping such as {"question": "Who?", "context": documents}.')
    unknown = sorted(set(inputs) - set(_KEYS))
    if unknown:
        raise InputError(f"The chain knows no key {unknown[0]!r}; its keys are {', '.join(_KEYS)}.")
    return dict(inputs)
