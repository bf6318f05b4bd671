"""Short ways to write a file and to read it back as a document or a failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qvpic_rag.documents import Failure, read_documents
from qvpic_rag.errors import DocumentError
from qvpic_rag.records import Document

__all__ = ["failure", "read", "sources", "write"]


def write(path: str, content: str | bytes = "text") -> None:
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))


def sources(*paths: str) -> list[str]:
    """What was read, in order; a failure in round brackets."""
    found = read_documents(paths)
    return [item.source if isinstance(item, Document) else f"({item.source})" for item in found]


def read(path: str) -> str:
    (item,) = read_documents([path])
    assert isinstance(item, Document), item
    assert item.source == path
    return item.text


def failure(path: str, **options: Any) -> str:
    (item,) = read_documents([path], **options)
    assert isinstance(item, Failure), item
    assert isinstance(item.error, DocumentError)
    message = str(item.error)
    assert "\n" not in message
    assert message.endswith(".")
    return message
