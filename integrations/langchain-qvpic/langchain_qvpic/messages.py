"""Messages of a LangChain application -> turns and documents for the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, HumanMessage, SystemMessage
from qvpic_rag import Document, Message, Recognised
from qvpic_rag.errors import InputError

from langchain_qvpic.documents import verified

__all__ = ["turns_and_documents"]

_ROLES = {"user": "user", "human": "user", "assistant": "assistant", "ai": "assistant", "system": "system"}
_IGNORED = ("reasoning", "thinking")  # what a model thought is not part of the conversation


def turns_and_documents(messages: Sequence[BaseMessage]) -> tuple[list[Message], list[Document]]:
    """What :meth:`qvpic_rag.QVPIC.read` takes: turns of text, and the documents of verified content blocks.

    Raises
    ------
    InputError
        A message holds tool calls, pictures or other content that is not text.
    """
    documents: list[Document] = []
    return [Message(_role(message), _text(message, documents)) for message in messages], documents


def _role(message: BaseMessage) -> str:
    role = message.role if isinstance(message, ChatMessage) else message.type.removesuffix("MessageChunk").lower()
    known = _ROLES.get(role)
    if known is None or not isinstance(message, HumanMessage | AIMessage | SystemMessage | ChatMessage):
        raise InputError(
            f"ChatQVPIC cannot read a message of type {role!r}; give system, human and AI messages, and a tool's "
            "result as part of a human message."
        )
    if isinstance(message, AIMessage) and (message.tool_calls or message.invalid_tool_calls):
        raise InputError("ChatQVPIC calls no tools; leave AI messages with tool calls out of the conversation.")
    return known


def _text(message: BaseMessage, documents: list[Document]) -> str:
    """A message's text; documents in it are appended to ``documents``.

    Documents that open the message leave nothing behind, because pages stand before the text anyway; documents in the
    middle of a text leave :attr:`Recognised.PLACEHOLDER` there, one for neighbours.
    """
    blocks: list[Any] = message.content if isinstance(message.content, list) else [message.content]
    pieces: list[str] = []
    for block in blocks:
        if isinstance(block, str):
            pieces.append(block)
        elif not isinstance(block, Mapping):
            raise InputError(
                f"A message's content holds {type(block).__name__}; give a string, or a list of strings and content "
                "blocks."
            )
        elif block.get("type") == "text":
            pieces.append(str(block.get("text", "")))
        elif block.get("type") == "text-plain" and isinstance(block.get("text"), str):
            if not verified(block):
                pieces.append(block["text"])
                continue
            documents.append(Document(block["text"], str(block.get("title") or "document")))
            if pieces and pieces[-1] != Recognised.PLACEHOLDER:
                pieces.append(Recognised.PLACEHOLDER)
        elif not (_role(message) == "assistant" and block.get("type") in _IGNORED):
            raise InputError(
                f"ChatQVPIC reads text, not content of type {block.get('type')!r}; documents are given as text-plain "
                "blocks, which docs_to_qvpic_messages makes."
            )
    return "\n".join(piece for piece in pieces if piece)
