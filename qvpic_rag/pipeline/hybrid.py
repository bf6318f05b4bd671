"""Hybrid routing: pages' signals, made when documents are ingested and kept beside the index, and the scores from them.

A page is embedded a second time for them, at the end of an ingest: beside compiling it that is little. A request makes
only the signals that are missing, says so, and keeps them in memory for a while; it writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from qvpic_rag.bank import Bank
from qvpic_rag.bank.signals import SignalFiles, halved
from qvpic_rag.embed import Embedder
from qvpic_rag.progress import Progress
from qvpic_rag.records import Page, Signals
from qvpic_rag.relevance import fused

__all__ = ["PageSignals"]

_KEPT = 64  # pages whose signals, some megabytes each, are kept in memory because they are in no file
_WINDOW = 32  # pages embedded between two looks at the progress


class PageSignals:
    """The signals of a bank's pages, and of others that a request brings."""

    def __init__(self, embedder: Embedder, bank: Bank) -> None:
        self._embedder = embedder
        self._bank = bank
        self._files = SignalFiles(bank.index_path, embedder.signals_digest)
        self._made = lru_cache(maxsize=_KEPT)(self._make)

    def _make(self, text: str) -> Signals:
        return halved(self._embedder.signals([text])[1][0])  # as a file would give them back

    def scored(self, question: Signals, found: Sequence[tuple[Page, float]]) -> tuple[list[tuple[Page, float]], int]:
        """Pages with fused in place of dense scores, in their order, and how many pages had no signals stored."""
        scored, made = [], 0
        for page, dense in found:
            signals = self._files.get(self._files.name(page.digest, page.text))
            if signals is None:
                signals, made = self._made(page.text), made + 1
            scored.append((page, fused(dense, question, signals)))
        return scored, made

    def prepare(self, done: int, progress: Progress) -> None:
        """Store signals of all of the namespace's pages that lack sound ones, and forget those of pages that are gone.

        Every file is read for that, which takes little beside making one. A page whose file has no place, because
        something else is there, is left out; a warning says so. ``progress`` goes on from ``done``.

        Raises
        ------
        ConfigError
            The embedder has no signals.
        BankError
            The disk is full, or access is denied.
        """
        before = self._files.names()  # looked at first: whoever writes a file has stored its page
        pages = {
            self._files.name(stored.page.digest, stored.page.text): stored.page.text for stored in self._bank.pages()
        }
        missing = [name for name in pages if self._files.get(name) is None and not self._files.blocked(name)]
        for start in range(0, len(missing), _WINDOW):
            progress(done + start, done + len(missing), "")
            window = missing[start : start + _WINDOW]
            _, signals = self._embedder.signals([pages[name] for name in window])
            for name, made in zip(window, signals, strict=True):
                self._files.put(name, made)
        progress(done + len(missing), done + len(missing), "")
        for name in before - set(pages):
            self._files.remove(name)
