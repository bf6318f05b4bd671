"""``QVPICVectorStore``: documents whose pages are compiled when they are added."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance
from qvpic_rag import QVPIC, PageIndex
from qvpic_rag.errors import ConfigError, DocumentError, InputError
from typing_extensions import Self, Unpack

from langchain_qvpic.engine import BankOptions, engine_options
from langchain_qvpic.entries import Entry, Filter, matcher, parse, source_prefix

__all__ = ["QVPICVectorStore"]

Vector = npt.NDArray[np.float32]

_BATCH = 32
_MODEL = ("model", "model_name", "model_id", "deployment")  # where LangChain's embeddings say which model they are


class QVPICVectorStore(VectorStore):
    """A vector store inside a bank: adding a document compiles its pages, deleting it releases them.

    >>> store = QVPICVectorStore(model="demo", bank="./bank")                 # doctest: +SKIP
    >>> store.add_documents(documents, ids=["a", "b"])                        # doctest: +SKIP

    Everything is kept in the bank with every change, so the same constructor opens it again, in another process as
    well; changes of other processes are seen by the next call. Search is exact (FAISS), scores are cosine similarities.

    Parameters
    ----------
    model, bank, **options
        Those of :meth:`qvpic_rag.QVPIC.from_pretrained`; its ``profile`` is ``render_profile`` here.
    embedding : Embeddings, optional
        What embeds documents and questions; by default the engine's embedder.
    collection : str
        Stores of different collections in one bank do not see each other's documents.

    Raises
    ------
    ConfigError
        An unknown option, or the collection was made with another embedding.
    """

    def __init__(
        self,
        model: str,
        bank: str | os.PathLike[str],
        *,
        embedding: Embeddings | None = None,
        collection: str = "default",
        **options: Unpack[BankOptions],
    ) -> None:
        unknown = sorted(set(options) - set(BankOptions.__annotations__))
        if unknown:
            known = ", ".join(BankOptions.__annotations__)
            raise ConfigError(
                f"QVPICVectorStore has no option {unknown[0]!r}; there are embedding, collection, {known}."
            )
        if not isinstance(collection, str) or not collection or "/" in collection:
            raise ConfigError(f"collection must be a name without slashes, not {collection!r}.")
        self._embedding = embedding
        self._prefix = source_prefix(collection)
        self._rag = QVPIC.from_pretrained(**engine_options(model, bank, **options))
        self._lock = threading.RLock()  # entries, index and the bank's generation change together
        self._generation = -1
        self._digests: dict[str, str] = {}  # by the bank's name of a document
        self._entries: dict[str, Entry] = {}  # by document id
        self._numbers: dict[str, int] = {}  # a document id's number in the index; numbers are not used twice
        self._ids: dict[int, str] = {}
        self._next = 0
        self._index: PageIndex | None = None
        try:
            self._refresh()
        except BaseException:
            self._rag.close()
            raise

    # ------------------------------------------------------------------ what it is made of

    @property
    def embeddings(self) -> Embeddings | None:
        """What was given as ``embedding``; None where the engine's embedder is used."""
        return self._embedding

    @property
    def rag(self) -> Any:
        """The engine (:class:`qvpic_rag.QVPIC`), for its bank's statistics and upkeep."""
        return self._rag

    def __len__(self) -> int:
        with self._lock:
            self._refresh()
            return len(self._entries)

    def __bool__(self) -> bool:
        return True  # an empty store is a store

    def close(self) -> None:
        """Close the bank; the store cannot be used afterwards."""
        self._rag.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    # ------------------------------------------------------------------ documents

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> Self:
        """A store with these texts; ``model``, ``bank`` and other options are keywords."""
        if not {"model", "bank"} <= kwargs.keys():
            raise ConfigError(
                "Say which model and bank the store is of: from_texts(texts, model='demo', bank='./bank')."
            )
        store = cls(embedding=embedding, **kwargs)
        try:
            store.add_texts(texts, metadatas, ids=ids)
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def from_documents(cls, documents: list[Document], embedding: Embeddings | None = None, **kwargs: Any) -> Self:
        """A store with these documents; ``model``, ``bank`` and other options are keywords."""
        if "ids" not in kwargs and any(document.id for document in documents):
            kwargs["ids"] = [document.id for document in documents]
        texts = [document.page_content for document in documents]
        return cls.from_texts(texts, embedding, [document.metadata for document in documents], **kwargs)

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        batch_size: int = _BATCH,
        **kwargs: Any,
    ) -> list[str]:
        """Embed, render, compile and keep texts; an id that is there already gets the new text and metadata.

        Parameters
        ----------
        texts : Iterable[str]
            Each with something to read in it.
        metadatas : list[dict[str, Any]], optional
            JSON-able, one per text.
        ids : Sequence[str | None], optional
            One per text, each once; where one is None or none are given, random ones.
        batch_size : int
            Texts that are embedded and committed at a time; an error leaves earlier batches added.

        Raises
        ------
        InputError
            Lengths differ, an id is there twice, a text has nothing to draw, or metadata are not JSON-able.
        """
        if kwargs:
            raise ConfigError(f"add_texts has no option {min(kwargs)!r}; there are metadatas, ids and batch_size.")
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ConfigError(f"batch_size must be a whole number from 1, not {batch_size!r}.")
        documents = _documents(list(texts), metadatas, ids)
        for start in range(0, len(documents), batch_size):
            self._add(documents[start : start + batch_size])
        return [str(document.id) for document in documents]

    def _add(self, documents: list[Document]) -> None:
        vectors = self._embed([document.page_content for document in documents])
        name = self._embedding_name
        entries = [Entry(document, name, vector) for document, vector in zip(documents, vectors, strict=True)]
        stored = [entry.stored(self._prefix) for entry in entries]
        with self._lock:
            self._refresh()
            self._check(entries)
        report = self._rag.ingest(stored, progress=False)  # takes its time; searches go on
        with self._lock:
            self._refresh()
        if report.failed:
            raise report.failed[0].error

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Delete documents and release their pages; unknown ids are ignored. ``qvpic bank gc`` frees the disk.

        Raises
        ------
        InputError
            No ids are given.
        """
        if not isinstance(ids, list | tuple) or kwargs:
            raise InputError("Give delete a list of ids; nothing else says what to delete.")
        for each in ids:
            self._rag.remove(f"{self._prefix}{each}")
        with self._lock:
            self._refresh()
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Documents with these ids, in this order; unknown ids are left out."""
        with self._lock:
            self._refresh()
            return [self._entries[each].copy() for each in ids if each in self._entries]

    # ------------------------------------------------------------------ search

    def similarity_search(self, query: str, k: int = 4, filter: Filter = None, **kwargs: Any) -> list[Document]:
        """The ``k`` documents nearest to a question, best first.

        Parameters
        ----------
        filter : Mapping or callable, optional
            Values that a document's metadata must have (``{"year": [2024, 2025]}``: one of them), or a function of
            the document.
        """
        return [document for document, _ in self.similarity_search_with_score(query, k, filter, **kwargs)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, filter: Filter = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """As :meth:`similarity_search`, with cosine similarities (-1 to 1, higher is nearer)."""
        _nothing_else(kwargs)
        return [(entry.copy(), score) for entry, score in self._search(self._embed_query(query), k, filter)]

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, filter: Filter = None, **kwargs: Any
    ) -> list[Document]:
        """The ``k`` documents nearest to a vector, which need not be normalised."""
        _nothing_else(kwargs)
        return [entry.copy() for entry, _ in self._search(_normalised(np.asarray([embedding]))[0], k, filter)]

    def max_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Filter = None,
        **kwargs: Any,
    ) -> list[Document]:
        """``k`` of the ``fetch_k`` nearest documents, each also unlike those before it.

        ``lambda_mult`` goes from 0 (as different as possible) to 1 (as near as possible).
        """
        _nothing_else(kwargs)
        return self._diverse(self._embed_query(query), k, fetch_k, lambda_mult, filter)

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Filter = None,
        **kwargs: Any,
    ) -> list[Document]:
        """As :meth:`max_marginal_relevance_search`, near a vector."""
        _nothing_else(kwargs)
        return self._diverse(_normalised(np.asarray([embedding]))[0], k, fetch_k, lambda_mult, filter)

    def _diverse(self, vector: Vector, k: int, fetch_k: int, lambda_mult: float, filter: Filter) -> list[Document]:
        found = [entry for entry, _ in self._search(vector, fetch_k, filter)]
        if not found:
            return []
        chosen = maximal_marginal_relevance(vector, [list(entry.vector) for entry in found], lambda_mult, k)
        return [found[at].copy() for at in chosen]

    def _search(self, vector: Vector, k: int, filter: Filter) -> list[tuple[Entry, float]]:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise InputError(f"The number of documents to find must be a whole number from 1, not {k!r}.")
        passes = matcher(filter)
        with self._lock:
            self._refresh()
            if self._index is None:
                return []
            # A filter may leave out any number of the nearest; the index looks at all of them anyway.
            numbers, scores = self._index.search(vector, k if filter is None else len(self._index))
            nearest = [(self._entries[self._ids[int(n)]], float(s)) for n, s in zip(numbers, scores, strict=True)]
        found: list[tuple[Entry, float]] = []
        for entry, score in nearest:
            if len(found) < k and passes(entry.document if filter is None else entry.copy()):
                found.append((entry, score))
        return found

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda score: min(max(score, 0.0), 1.0)

    # ------------------------------------------------------------------ embedding and the bank's state

    @property
    def _embedding_name(self) -> str:
        if self._embedding is None:
            return f"engine:{self._rag.bank.recipe.embedder_digest}"
        kind = type(self._embedding)
        # Models of one class, such as OpenAI's, may have vectors of equal lengths that mean different things.
        model = next((found for name in _MODEL if (found := getattr(self._embedding, name, None))), None)
        return f"{kind.__module__}.{kind.__qualname__}" + (f" {model}" if isinstance(model, str) else "")

    def _embed(self, texts: list[str]) -> Vector:
        if self._embedding is None:
            return np.asarray(self._rag.engine.embedder.encode(texts), np.float32)
        return _normalised(np.asarray(self._embedding.embed_documents(texts)))

    def _embed_query(self, query: str) -> Vector:
        if self._embedding is None:
            vectors: Vector = self._rag.engine.embedder.encode([query], query=True)
        else:
            vectors = _normalised(np.asarray([self._embedding.embed_query(query)]))
        return np.asarray(vectors[0], np.float32)

    def _refresh(self) -> None:
        """Take over what the bank holds now; only what has changed is parsed. The lock is held."""
        bank = self._rag.bank
        generation = bank.generation
        if generation == self._generation:
            return
        stored = {each.source: each for each in bank.documents() if each.source.startswith(self._prefix)}
        changed = [each for source, each in stored.items() if self._digests.get(source) != each.digest]
        new = [parse(each.source, self._prefix, each.metadata) for each in changed]
        self._check(new)
        gone = {source.removeprefix(self._prefix) for source in self._digests.keys() - stored.keys()}
        self._forget(gone | {str(entry.document.id) for entry in new})
        self._remember(new)
        self._digests = {source: each.digest for source, each in stored.items()}
        self._generation = generation

    def _check(self, entries: list[Entry]) -> None:
        dimension = self._index.dimension if self._index is not None else (entries[0].vector.size if entries else 0)
        for entry in entries:
            if entry.embedding != self._embedding_name or entry.vector.size != dimension:
                raise ConfigError(
                    f"This collection was made with the embedding {entry.embedding} of {dimension} numbers; open it "
                    "with that one, or choose another collection=."
                )

    def _forget(self, ids: Iterable[str]) -> None:
        numbers = [self._numbers.pop(each) for each in ids if each in self._numbers]
        for number in numbers:
            del self._entries[self._ids.pop(number)]
        if self._index is not None:
            self._index.remove(numbers)
        if not self._entries:
            self._index = None  # whatever comes next may be of another embedding

    def _remember(self, entries: list[Entry]) -> None:
        if not entries:
            return
        if self._index is None:
            self._index = PageIndex(entries[0].vector.size)
        numbers = range(self._next, self._next + len(entries))
        self._index.add(np.asarray(numbers, np.int64), np.stack([entry.vector for entry in entries]))
        for number, entry in zip(numbers, entries, strict=True):
            name = str(entry.document.id)
            self._entries[name], self._numbers[name], self._ids[number] = entry, number, name
        self._next += len(entries)


def _documents(
    texts: list[str], metadatas: list[dict[str, Any]] | None, ids: Sequence[str | None] | None
) -> list[Document]:
    """Documents with ids, checked before anything is stored."""
    for name, items in (("metadatas", metadatas), ("ids", ids)):
        if items is not None and len(items) != len(texts):
            raise InputError(f"There are {len(texts)} texts and {len(items)} {name}; give one per text.")
    names = [each or str(uuid.uuid4()) for each in (ids if ids is not None else [None] * len(texts))]
    if len(set(names)) != len(names):
        raise InputError("An id is given twice; give each document its own.")
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise DocumentError("A text to add is empty; leave out documents without text.")
    return [
        Document(id=name, page_content=text, metadata=dict(metadata or {}))
        for name, text, metadata in zip(names, texts, metadatas or [{}] * len(texts), strict=True)
    ]


def _normalised(vectors: npt.NDArray[Any]) -> Vector:
    """float32 ``[n, dimension]`` of length one each."""
    matrix = np.asarray(vectors, np.float32)
    if matrix.ndim != 2 or not np.isfinite(matrix).all() or not np.linalg.norm(matrix, axis=1).all():
        raise InputError("An embedding is not a row of finite numbers other than zero; check the embedding model.")
    return np.asarray(matrix / np.linalg.norm(matrix, axis=1, keepdims=True), np.float32)


def _nothing_else(kwargs: dict[str, Any]) -> None:
    if kwargs:
        raise ConfigError(f"The search has no option {min(kwargs)!r}; there are k and filter.")
