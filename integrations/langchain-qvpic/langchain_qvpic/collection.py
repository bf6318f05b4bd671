"""A collection of a bank in memory: its entries and their search index, kept as the bank is."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from qvpic_rag import PageIndex
from qvpic_rag.bank import Bank
from qvpic_rag.errors import ConfigError

from langchain_qvpic.entries import Entry, Vector, parse

__all__ = ["Collection"]


class Collection:
    """The documents of one collection; every call sees what the bank holds then. Safe to use from several threads.

    A collection has the embedding of its first document in the bank, which is the same one for every process. Documents
    with another are passed over: two stores have added at once, and the later one takes its own back, unless its
    process was stopped before.

    Parameters
    ----------
    bank : Bank
        Holds the documents.
    prefix : str
        What their names begin with.
    embedding : str
        Name of what the store embeds with.
    """

    def __init__(self, bank: Bank, prefix: str, embedding: str) -> None:
        self._bank = bank
        self._prefix = prefix
        self._embedding = embedding
        self._lock = threading.RLock()  # everything below changes together
        self._generation = -1
        self._parsed: dict[str, tuple[str, Entry]] = {}  # by the bank's name of a document, with its digest
        self._entries: dict[str, Entry] = {}  # by document id
        self._numbers: dict[str, int] = {}  # a document id's number in the index; numbers are not used twice
        self._numbered: dict[int, Entry] = {}
        self._next = 0
        self._index: PageIndex | None = None

    def entries(self) -> Mapping[str, Entry]:
        """By document id.

        Raises
        ------
        ConfigError
            The collection was made with another embedding.
        """
        with self._lock:
            self._refresh()
            return self._entries

    def check(self, vectors: Vector) -> None:
        """Raise ``ConfigError`` unless vectors ``[n, dimension]`` of the store's embedding belong in the collection."""
        with self._lock:
            self._refresh()
            if self._index is not None and vectors.shape[1] != self._index.dimension:
                raise _made_with(next(iter(self._entries.values())))

    def search(self, vector: Vector, k: int | None) -> list[tuple[Entry, float]]:
        """The ``k`` entries nearest to a vector ``[dimension]``, or all of them, best first, and cosine similarities.

        Raises
        ------
        ConfigError
            The collection was made with another embedding.
        """
        with self._lock:
            self._refresh()
            if self._index is None:
                return []
            numbers, scores = self._index.search(vector, len(self._index) if k is None else k)
            return [(self._numbered[int(n)], float(s)) for n, s in zip(numbers, scores, strict=True)]

    def _refresh(self) -> None:
        """Take over what the bank holds now; only what has changed is parsed. The lock is held."""
        generation = self._bank.generation
        if generation == self._generation:
            return
        parsed: dict[str, tuple[str, Entry]] = {}
        for stored in self._bank.documents():  # oldest first
            if stored.source.startswith(self._prefix):
                known = self._parsed.get(stored.source)
                if known is None or known[0] != stored.digest:
                    known = stored.digest, parse(stored.source, self._prefix, stored.metadata)
                parsed[stored.source] = known
        first = next((entry for _, entry in parsed.values()), None)
        if first is not None and first.embedding != self._embedding:
            raise _made_with(first)
        now = {str(entry.document.id): entry for _, entry in parsed.values() if first and entry.kind == first.kind}
        self._forget(name for name, entry in self._entries.items() if now.get(name) is not entry)
        self._remember([entry for name, entry in now.items() if self._entries.get(name) is not entry])
        self._parsed, self._entries, self._generation = parsed, now, generation

    def _forget(self, names: Iterable[str]) -> None:
        numbers = [self._numbers.pop(name) for name in names]
        for number in numbers:
            del self._numbered[number]
        if self._index is not None:
            self._index.remove(numbers)
        if not self._numbers:
            self._index = None  # whatever comes next may be of another embedding

    def _remember(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        if self._index is None:
            self._index = PageIndex(entries[0].vector.size)
        numbers = range(self._next, self._next + len(entries))
        self._index.add(np.asarray(numbers, np.int64), np.stack([entry.vector for entry in entries]))
        for number, entry in zip(numbers, entries, strict=True):
            self._numbers[str(entry.document.id)], self._numbered[number] = number, entry
        self._next += len(entries)


def _made_with(first: Entry) -> ConfigError:
    name, dimension = first.kind
    return ConfigError(
        f"This collection was made with the embedding {name} of {dimension} numbers; open it with that one, or choose "
        "another collection=."
    )
