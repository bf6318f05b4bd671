"""Retrieved documents inside messages, as text-plain content blocks.

A prompt template turns documents into one string. A content block keeps them apart on their way to the model, and its
``extras.qvpic_id`` says that it is a document to answer from. The id is a hash of the block's own text, so an id can
only ever stand for the text beside it: a wrong one makes the block plain text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from qvpic_rag.errors import InputError

__all__ = ["docs_to_qvpic_messages", "document_block", "qvpic_id", "verified"]


def qvpic_id(text: str) -> str:
    """The id of a document's text: ``sha256:`` and 64 hex digits."""
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def document_block(document: Document) -> dict[str, Any]:
    """A document as a content block of a message.

    The block's title, which an answer's route shows, is ``metadata["source"]``, else the document's id.
    """
    title = document.metadata.get("source") or document.id or "document"
    return {
        "type": "text-plain",
        "mime_type": "text/plain",
        "text": document.page_content,
        "title": str(title),
        "extras": {"qvpic_id": qvpic_id(document.page_content)},
    }


def verified(block: Mapping[str, Any]) -> bool:
    """Whether a text-plain block is a document: its id is that of its own text."""
    extras, text = block.get("extras"), block.get("text")
    given = extras.get("qvpic_id") if isinstance(extras, Mapping) else None
    return isinstance(text, str) and isinstance(given, str) and given == qvpic_id(text)


def docs_to_qvpic_messages(inputs: Mapping[str, Any]) -> list[BaseMessage]:
    """A question and its documents as messages for :class:`~langchain_qvpic.ChatQVPIC`; a step of an LCEL chain.

    Parameters
    ----------
    inputs : Mapping[str, Any]
        ``question`` (str) and ``context`` (list of documents); optionally ``system`` (str) and ``chat_history`` (list
        of messages). Other keys are left alone.

    Raises
    ------
    InputError
        A key is missing or of the wrong type.
    """
    if not isinstance(inputs, Mapping) or not isinstance(inputs.get("question"), str):
        raise InputError('Give a mapping with a string "question", such as {"question": "Who?", "context": documents}.')
    context, history, system = inputs.get("context"), inputs.get("chat_history") or [], inputs.get("system")
    if not _all(context, Document):
        raise InputError('"context" must be a list of LangChain documents; pass the retriever\'s result unchanged.')
    if not _all(history, BaseMessage):
        raise InputError('"chat_history" must be a list of messages, such as [HumanMessage("Hello.")].')
    if not isinstance(system, str | None):
        raise InputError(f'"system" must be a string, not {type(system).__name__}.')
    blocks: list[str | dict[Any, Any]] = [document_block(document) for document in context or ()]
    asking = HumanMessage([*blocks, {"type": "text", "text": inputs["question"]}])
    return [*([SystemMessage(system)] if system else []), *history, asking]


def _all(items: object, kind: type) -> bool:
    return isinstance(items, Sequence) and not isinstance(items, str) and all(isinstance(each, kind) for each in items)
