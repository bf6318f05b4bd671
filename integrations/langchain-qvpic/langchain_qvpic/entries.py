"""How a store's documents are kept in a bank: each one a document of the bank, everything else in its metadata."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import qvpic_rag
from langchain_core.documents import Document
from qvpic_rag.errors import BankError, InputError

__all__ = ["Entry", "Filter", "Vector", "matcher", "parse", "source_prefix"]

_FORMAT = 1
_FIELDS = {"langchain-qvpic": int, "id": str, "text": str, "metadata": dict, "embedding": str, "vector": str}

Vector = npt.NDArray[np.float32]
Filter = Mapping[str, Any] | Callable[[Document], bool] | None


@dataclass(frozen=True, eq=False)
class Entry:
    """One document of a store.

    Attributes
    ----------
    document : Document
        With its id; never handed out, only copies of it.
    embedding : str
        Name of what made the vector.
    vector : Vector
        ``[dimension]``, L2-normalised.
    """

    document: Document
    embedding: str
    vector: Vector

    @property
    def kind(self) -> tuple[str, int]:
        """What made the vector, and its length: only vectors of one kind can be compared."""
        return self.embedding, self.vector.size

    def copy(self) -> Document:
        """The document as it was added; changing it changes nothing here."""
        return self.document.model_copy(deep=True)

    def source(self, prefix: str) -> str:
        """The bank's name of the document: entries of two kinds never take each other's place."""
        kind = hashlib.sha256(f"{self.embedding} {self.vector.size}".encode()).hexdigest()
        return f"{prefix}{kind[:8]}/{self.document.id}"

    def stored(self, prefix: str) -> qvpic_rag.Document:
        """As a document of the bank."""
        kept = {
            "langchain-qvpic": _FORMAT,
            "id": self.document.id,
            "text": self.document.page_content,
            "metadata": self.document.metadata,
            "embedding": self.embedding,
            "vector": base64.b64encode(self.vector.astype("<f4").tobytes()).decode("ascii"),
        }
        return qvpic_rag.Document(self.document.page_content, self.source(prefix), kept)


def source_prefix(collection: str) -> str:
    """What the names of a collection's documents begin with in the bank. A collection's name holds no slash."""
    return f"langchain/{collection}/"


def parse(source: str, prefix: str, kept: Mapping[str, Any]) -> Entry:
    """Inverse of :meth:`Entry.stored`.

    Raises
    ------
    BankError
        Something else wrote this document, or a newer version.
    """
    foreign = BankError(
        f"The bank's document {source!r} is not one of this version of langchain-qvpic; remove it with "
        "`qvpic bank remove`, or update the package."
    )
    wrong = [name for name, kind in _FIELDS.items() if not isinstance(kept.get(name), kind)]
    if wrong or kept["langchain-qvpic"] != _FORMAT:
        raise foreign
    try:
        vector = np.frombuffer(base64.b64decode(kept["vector"], validate=True), dtype="<f4").astype(np.float32)
    except ValueError as error:
        raise BankError(f"The embedding of {source!r} is damaged; add the document again.") from error
    document = Document(id=kept["id"], page_content=kept["text"], metadata=dict(kept["metadata"]))
    entry = Entry(document, kept["embedding"], vector)
    if source != entry.source(prefix):
        raise foreign
    return entry


def matcher(filter: Filter) -> Callable[[Document], bool]:  # LangChain's own name for it
    """A test of documents from a filter.

    A mapping asks for equal values of metadata, or one of several where the value is a list; a callable is the test
    itself; None lets everything pass.

    Raises
    ------
    InputError
        Neither of these.
    """
    if filter is None:
        return lambda document: True
    if isinstance(filter, Mapping):
        wanted = {key: value if isinstance(value, list) else [value] for key, value in filter.items()}
        for key, values in wanted.items():
            if any(isinstance(value, Mapping) for value in values) or str(key).startswith("$"):
                raise InputError(
                    "A filter's values are plain, such as {'source': 'handbook'} or {'year': [2024, 2025]}; for "
                    "anything else give a function of the document."
                )
        return lambda document: all(
            key in document.metadata and document.metadata[key] in values for key, values in wanted.items()
        )
    if callable(filter):
        return filter
    raise InputError(f"A filter is a mapping or a function of a document, not {type(filter).__name__}.")
