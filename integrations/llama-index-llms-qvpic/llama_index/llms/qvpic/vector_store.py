"""``QVPICVectorStore``: nodes by their vectors, whose deletions release the bank's links."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from llama_index.core.bridge.pydantic import ConfigDict, Field, PrivateAttr, field_validator
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import (
    DEFAULT_PERSIST_DIR,
    DEFAULT_PERSIST_FNAME,
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict
from qvpic_rag import Bank, PageIndex
from qvpic_rag.errors import BankError, BankNotFoundError, InputError

from llama_index.llms.qvpic.filters import matches
from llama_index.llms.qvpic.names import ref_doc_of, source_of, sources_begin

__all__ = ["QVPICVectorStore"]

_VERSION = 1
# LlamaIndex reads a persisted store that it is not given as its own simple one, and finds it empty. Where that one's
# numbers would be, this makes it fail, and its traceback say what to do.
_NOT_SIMPLE = "give StorageContext.from_defaults vector_store=QVPICVectorStore.from_persist_dir(folder)"
_STORES: WeakValueDictionary[int, QVPICVectorStore] = WeakValueDictionary()  # of this process, by identity


class QVPICVectorStore(BasePydanticVectorStore):
    """An exact inner-product index (FAISS) that also holds the nodes.

    Deleting a document or nodes releases their links in ``bank``, so that their pages are no longer found there and
    their blocks are freed by ``qvpic bank gc``. Without ``bank`` it is a vector store like any other. Deleting needs no
    model. Safe to use from several threads.

    Notes
    -----
    Vectors are compared by inner product: use an embedder that normalises, as ``QVPICEmbedding`` does.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    stores_text: bool = True
    is_embedding_query: bool = True
    flat_metadata: bool = False
    bank: str | None = Field(default=None, description="Folder of the bank whose links deletions release.")
    namespace: str = Field(default="default", description="Namespace in the bank.")

    # No __len__: LlamaIndex asks `if vector_store`, and would replace an empty one by its own without a word.
    _index: PageIndex | None = PrivateAttr(default=None)
    _nodes: dict[int, BaseNode] = PrivateAttr(default_factory=dict)
    _numbers: dict[str, int] = PrivateAttr(default_factory=dict)
    _links: dict[int, str] = PrivateAttr(default_factory=dict)  # names in the bank, as they were when nodes came
    _sources: Counter[str] = PrivateAttr(default_factory=Counter)
    _next: int = PrivateAttr(default=0)
    _lock: Any = PrivateAttr(default_factory=threading.RLock)

    @field_validator("bank", mode="before")
    @classmethod
    def _path(cls, value: object) -> object:
        return os.path.abspath(value) if isinstance(value, str | Path) else value  # noqa: PTH100 - links stay links

    def model_post_init(self, context: Any, /) -> None:
        """Let other stores know of this one."""
        super().model_post_init(context)
        _STORES[id(self)] = self

    @classmethod
    def class_name(cls) -> str:
        """The name that LlamaIndex stores."""
        return "QVPICVectorStore"

    @property
    def client(self) -> PageIndex | None:
        """The index; None before the first node."""
        return self._index

    # ------------------------------------------------------------------ nodes

    def add(self, nodes: Sequence[BaseNode], **add_kwargs: Any) -> list[str]:
        """Store nodes with their embeddings; a node whose id is there already replaces it.

        Raises
        ------
        InputError
            An embedding has another length than those before, or is not finite. Nothing is stored then.
        """
        if not nodes:
            return []
        latest = {node.node_id: node for node in nodes}
        embeddings = [node.get_embedding() for node in latest.values()]
        if len({len(each) for each in embeddings}) > 1:
            raise InputError("The nodes' embeddings have different lengths; embed all of them with one model.")
        vectors = np.asarray(embeddings, dtype=np.float32)
        with self._lock:
            index = self._index if self._index is not None else PageIndex(vectors.shape[-1])
            numbers = np.arange(self._next, self._next + len(latest), dtype=np.int64)
            index.add(numbers, vectors)
            self._index = index
            self._next += len(latest)  # never given twice, so that an old result cannot name a new node
            old = [self._numbers[node_id] for node_id in latest if node_id in self._numbers]
            self._forget(old)
            for number, node in zip(numbers.tolist(), latest.values(), strict=True):
                self._nodes[number] = node.model_copy(update={"embedding": None})
                self._keep(number, node.node_id, source_of(node))
        return [node.node_id for node in nodes]

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """Nodes by id and by metadata; all without either."""
        with self._lock:
            return [_copy(self._nodes[number]) for number in self._chosen(node_ids, filters)]

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Forget a document's nodes and release their links."""
        if not isinstance(ref_doc_id, str):
            raise InputError(f"A document's id is a string, not {type(ref_doc_id).__name__}.")
        with self._lock:
            numbers = [number for number, node in self._nodes.items() if ref_doc_of(node) == ref_doc_id]
            self._release(numbers, sources_begin(ref_doc_id))

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """Forget nodes by id and by metadata, and release their links; nothing without either."""
        if node_ids is None and filters is None:
            return
        with self._lock:
            self._release(self._chosen(node_ids, filters))

    def clear(self) -> None:
        """Forget all nodes and release their links."""
        with self._lock:
            self._release(list(self._nodes))

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """The nearest nodes, best first.

        Raises
        ------
        InputError
            Another query mode than ``default``, or no embedding.
        """
        if query.mode != VectorStoreQueryMode.DEFAULT:
            raise InputError(
                f"QVPICVectorStore searches by embedding only, not in mode {VectorStoreQueryMode(query.mode).value!r}."
            )
        if query.query_embedding is None:
            raise InputError("The query has no embedding; ask something, and give the index an embed_model.")
        with self._lock:
            if self._index is None or not self._nodes:
                return VectorStoreQueryResult(nodes=[], similarities=[], ids=[])
            allowed = set(self._chosen(query.node_ids or None, query.filters))
            if query.doc_ids:
                allowed = {number for number in allowed if ref_doc_of(self._nodes[number]) in query.doc_ids}
            everything = len(allowed) == len(self._nodes)
            vector = np.asarray(query.query_embedding, dtype=np.float32)
            numbers, scores = self._index.search(vector, query.similarity_top_k if everything else len(self._nodes))
            found = [
                (self._nodes[number], score)
                for number, score in zip(numbers.tolist(), scores.tolist(), strict=True)
                if number in allowed
            ][: query.similarity_top_k]
            return VectorStoreQueryResult(
                nodes=[_copy(node) for node, _ in found],
                similarities=[score for _, score in found],
                ids=[node.node_id for node, _ in found],
            )

    async def async_add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """As :meth:`add`, without blocking the event loop."""
        return await asyncio.to_thread(self.add, nodes, **kwargs)

    async def adelete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """As :meth:`delete`, without blocking the event loop."""
        await asyncio.to_thread(self.delete, ref_doc_id, **delete_kwargs)

    async def adelete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """As :meth:`delete_nodes`, without blocking the event loop."""
        await asyncio.to_thread(self.delete_nodes, node_ids, filters, **delete_kwargs)

    async def aclear(self) -> None:
        """As :meth:`clear`, without blocking the event loop."""
        await asyncio.to_thread(self.clear)

    async def aquery(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """As :meth:`query`, without blocking the event loop."""
        return await asyncio.to_thread(self.query, query, **kwargs)

    def _chosen(self, node_ids: list[str] | None, filters: MetadataFilters | None) -> list[int]:
        numbers = (
            list(self._nodes)
            if node_ids is None
            else [self._numbers[each] for each in dict.fromkeys(node_ids) if each in self._numbers]
        )
        return [number for number in numbers if filters is None or matches(self._nodes[number].metadata, filters)]

    def _keep(self, number: int, node_id: str, link: str) -> None:
        self._numbers[node_id], self._links[number] = number, link
        self._sources[link] += 1

    def _forget(self, numbers: Sequence[int]) -> None:
        if self._index is not None:
            self._index.remove(np.asarray(numbers, dtype=np.int64))
        for number in numbers:
            node = self._nodes.pop(number)
            del self._numbers[node.node_id]
            self._sources[self._links.pop(number)] -= 1

    def _release(self, numbers: Sequence[int], begin: str | None = None) -> None:
        """Forget nodes; their links go first, so that a bank that fails leaves something to delete again.

        With ``begin`` all links of that document go, also those of nodes that this store never saw, such as the ones of
        an ingestion that failed half-way. What other nodes need, here or in another store of this process, stays.
        """
        if self._has_bank():
            leaving = Counter(self._links[number] for number in numbers)
            with Bank.open(str(self.bank), self.namespace) as bank:
                gone = set(leaving)
                if begin is not None:
                    gone.update(each.source for each in bank.documents() if each.source.startswith(begin))
                for source in sorted(gone):
                    if self._sources[source] <= leaving[source] and not self._held_elsewhere(source):
                        bank.remove_document(source)
        self._forget(numbers)

    def _has_bank(self) -> bool:
        """Whether there are links to release; a bank is made when the first page is compiled."""
        return self.bank is not None and Bank.recipe_at(self.bank) is not None

    def _held_elsewhere(self, source: str) -> bool:
        """Whether another store of this process on the same bank has a node of this name."""
        place = self.bank, self.namespace
        others = [each for each in list(_STORES.values()) if each is not self and (each.bank, each.namespace) == place]
        return any(each._sources[source] > 0 for each in others)

    def __copy__(self) -> QVPICVectorStore:
        raise InputError("A QVPICVectorStore cannot be copied; use the same object, or persist and load it.")

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> QVPICVectorStore:
        return self.__copy__()

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise InputError(
            "A QVPICVectorStore cannot be pickled; persist it, and load it in the other process with from_persist_dir."
        )

    # ------------------------------------------------------------------ files

    def persist(self, persist_path: str, fs: Any = None) -> None:
        """Write nodes (JSON) and vectors (a checked binary file beside it); the old state stays until all is written.

        Raises
        ------
        BankError
            The folder cannot be written.
        InputError
            A file system other than the local one, or metadata that JSON cannot hold.
        """
        _local(fs)
        target = Path(persist_path)
        with self._lock:
            generation = secrets.randbits(62)
            index = self._index
            written = json.dumps(self._described(None if index is None else generation), ensure_ascii=True)
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                if index is not None:
                    index.save(_vectors(target, generation), generation)
                temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
                temporary.write_text(written, encoding="ascii")
                temporary.replace(target)
                for old in target.parent.glob(f"{_escaped(target.name)}.*.vectors"):
                    if index is None or old != _vectors(target, generation):
                        old.unlink()
            except OSError as error:
                raise BankError(
                    f"The vector store {str(target)!r} cannot be written ({error.strerror or error}); free space or "
                    "fix its permissions."
                ) from error

    def _described(self, generation: int | None) -> dict[str, Any]:
        nodes = []
        for number, node in self._nodes.items():
            try:
                described = node_to_metadata_dict(node)
            except (ValueError, TypeError) as error:
                raise InputError(f"The metadata of node {node.node_id!r} cannot be stored ({error}).") from error
            # The link as well: a node that is read back may show other text, such as a date as a string.
            nodes.append({"number": number, "link": self._links[number], "node": described})
        return {
            "format": "qvpic-vector-store",
            "version": _VERSION,
            "embedding_dict": {"": [_NOT_SIMPLE]},
            "bank": self.bank,
            "compiled": self._has_bank(),
            "namespace": self.namespace,
            "next": self._next,
            "generation": generation,
            "nodes": nodes,
        }

    @classmethod
    def from_persist_path(
        cls, persist_path: str | os.PathLike[str], fs: Any = None, bank: str | os.PathLike[str] | None = None
    ) -> QVPICVectorStore:
        """Read what :meth:`persist` wrote; give it to ``StorageContext.from_defaults(vector_store=...)``.

        ``bank`` says where the bank is now, if it has moved.

        Raises
        ------
        BankNotFoundError
            The bank is not where it was, so deletions could not release its links.
        BankError
            A file is missing, damaged, or of another kind or version.
        """
        _local(fs)
        source = Path(persist_path)
        try:
            described = json.loads(source.read_text(encoding="ascii"))
            if (described["format"], described["version"]) != ("qvpic-vector-store", _VERSION):
                raise ValueError(f"format {described['format']!r}, version {described['version']!r}")
            place = described["bank"] if bank is None else os.fspath(bank)
            store = cls(bank=place, namespace=described["namespace"])
            compiled = bool(described["compiled"])
            for entry in described["nodes"]:
                node = metadata_dict_to_node(entry["node"])
                store._nodes[int(entry["number"])] = node
                store._keep(int(entry["number"]), node.node_id, str(entry["link"]))
            store._next = int(described["next"])
            generation = None if described["generation"] is None else int(described["generation"])
        except OSError as error:
            raise BankError(f"The vector store {str(source)!r} cannot be read ({error.strerror or error}).") from error
        except (ValueError, KeyError, TypeError) as error:
            raise BankError(
                f"{str(source)!r} is not a vector store of this version, or damaged ({error}); index again."
            ) from error
        if compiled and not store._has_bank():
            raise BankNotFoundError(
                f"The bank of this vector store is not at {store.bank} any more; say where it is with bank=..."
            )
        if generation is not None:
            store._index, stored = PageIndex.load(_vectors(source, generation))
            if stored != generation or len(store._index) != len(store._nodes):
                raise BankError(f"The vectors beside {str(source)!r} are not its own; index the documents again.")
        return store

    @classmethod
    def from_persist_dir(
        cls,
        persist_dir: str = DEFAULT_PERSIST_DIR,
        namespace: str = "default",
        fs: Any = None,
        bank: str | os.PathLike[str] | None = None,
    ) -> QVPICVectorStore:
        """Read the store that ``StorageContext.persist(persist_dir)`` wrote; see :meth:`from_persist_path`."""
        return cls.from_persist_path(Path(persist_dir) / f"{namespace}__{DEFAULT_PERSIST_FNAME}", fs, bank)


def _copy(node: BaseNode) -> BaseNode:
    """A node that may be changed without changing the stored one."""
    return node.model_copy(update={"metadata": dict(node.metadata)})


def _vectors(path: Path, generation: int) -> Path:
    return path.with_name(f"{path.name}.{generation}.vectors")


def _escaped(name: str) -> str:
    return "".join(f"[{each}]" if each in "*?[" else each for each in name)


def _local(fs: Any) -> None:
    if fs is not None and "file" not in (fs.protocol if isinstance(fs.protocol, tuple | list) else (fs.protocol,)):
        raise InputError("QVPICVectorStore is kept in local files; leave fs out.")
