"""``QVPICVectorStore``: documents whose pages are compiled when they are added."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance
from qvpic_rag import QVPIC
from qvpic_rag.errors import ConfigError, InputError
from typing_extensions import Self, Unpack

from langchain_qvpic.arguments import documents_of, listed, no_other_options, normalised
from langchain_qvpic.collection import Collection
from langchain_qvpic.engine import BankOptions, engine_options
from langchain_qvpic.entries import Entry, Filter, Vector, matcher, source_prefix

__all__ = ["QVPICVectorStore"]

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
        An unknown option, no embedding, or the collection was made with another one.
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
        if not isinstance(embedding, Embeddings | None):
            raise ConfigError(
                f"embedding must be a LangChain Embeddings object, not {type(embedding).__name__}; leave it out to use "
                "the engine's."
            )
        self._embedding = embedding
        self._prefix = source_prefix(collection)
        self._rag = QVPIC.from_pretrained(**engine_options(model, bank, **options))
        self._embedding_name = (
            f"engine:{self._rag.bank.recipe.embedder_digest}" if embedding is None else _name(embedding)
        )
        self._collection = Collection(self._rag.bank, self._prefix, self._embedding_name)
        try:
            self._collection.entries()
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
        return len(self._collection.entries())

    def __bool__(self) -> bool:
        return True  # an empty store is a store

    def __reduce__(self) -> NoReturn:
        """Refuse what ``copy`` and ``pickle`` would make: a second store that shares a part of this one."""
        raise InputError(
            "A QVPICVectorStore cannot be copied or pickled; use the same object, or open another store on its bank."
        )

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
            Texts that are embedded and committed at a time; a failure on the way, such as a full disk, leaves what was
            committed before it.

        Raises
        ------
        InputError
            Lengths differ, an id is there twice, a text has nothing to draw, or metadata are not JSON-able; nothing is
            added then.
        ConfigError
            The collection was made with another embedding, perhaps just now by another store; this one's texts of the
            present batch are not kept then.
        """
        no_other_options(kwargs, "add_texts", "metadatas, ids and batch_size")
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ConfigError(f"batch_size must be a whole number from 1, not {batch_size!r}.")
        documents = documents_of(texts, metadatas, ids, self._rag.engine.renderer)
        for start in range(0, len(documents), batch_size):
            self._add(documents[start : start + batch_size])
        return [str(document.id) for document in documents]

    def _add(self, documents: list[Document]) -> None:
        vectors = self._embed([document.page_content for document in documents])
        self._collection.check(vectors)
        stored = [
            Entry(document, self._embedding_name, vector).stored(self._prefix)
            for document, vector in zip(documents, vectors, strict=True)
        ]
        report = self._rag.ingest(stored, progress=False)  # takes its time; searches go on
        try:
            self._collection.check(vectors)
        except ConfigError:  # meanwhile another store was first, so these go
            for each in stored:
                self._rag.remove(each.source)
            raise
        if report.failed:
            raise report.failed[0].error

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Delete documents and release their pages; unknown ids are ignored. ``qvpic bank gc`` frees the disk.

        Raises
        ------
        InputError
            No ids are given.
        """
        no_other_options(kwargs, "delete", "ids")
        unwanted, entries = listed("ids", ids), self._collection.entries()
        for each in unwanted:
            if each in entries:
                self._rag.remove(entries[each].source(self._prefix))
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Documents with these ids, in this order; unknown ids are left out.

        Raises
        ------
        InputError
            ``ids`` is no list of ids.
        """
        wanted, entries = listed("ids", ids), self._collection.entries()
        return [entries[each].copy() for each in wanted if each in entries]

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
        no_other_options(kwargs, "The search", "k and filter")
        return [(entry.copy(), score) for entry, score in self._search(self._embed_query(query), k, filter)]

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, filter: Filter = None, **kwargs: Any
    ) -> list[Document]:
        """The ``k`` documents nearest to a vector, which need not be normalised."""
        no_other_options(kwargs, "The search", "k and filter")
        return [entry.copy() for entry, _ in self._search(normalised([embedding], 1)[0], k, filter)]

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
        no_other_options(kwargs, "The search", "k and filter")
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
        no_other_options(kwargs, "The search", "k and filter")
        return self._diverse(normalised([embedding], 1)[0], k, fetch_k, lambda_mult, filter)

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
        # A filter may leave out any number of the nearest; the index looks at all of them anyway.
        nearest = self._collection.search(vector, k if filter is None else None)
        found: list[tuple[Entry, float]] = []
        for entry, score in nearest:
            if len(found) < k and passes(entry.document if filter is None else entry.copy()):
                found.append((entry, score))
        return found

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda score: min(max(score, 0.0), 1.0)

    # ------------------------------------------------------------------ embedding

    def _embed(self, texts: list[str]) -> Vector:
        if self._embedding is None:
            return np.asarray(self._rag.engine.embedder.encode(texts), np.float32)
        return normalised(self._embedding.embed_documents(texts), len(texts))

    def _embed_query(self, query: str) -> Vector:
        if self._embedding is None:
            vectors: Vector = self._rag.engine.embedder.encode([query], query=True)
        else:
            vectors = normalised([self._embedding.embed_query(query)], 1)
        return np.asarray(vectors[0], np.float32)


def _name(embedding: Embeddings) -> str:
    kind = type(embedding)
    # Models of one class, such as OpenAI's, may have vectors of equal lengths that mean different things.
    model = next((found for name in _MODEL if (found := getattr(embedding, name, None))), None)
    return f"{kind.__module__}.{kind.__qualname__}" + (f" {model}" if isinstance(model, str) else "")
