"""The blocks of one request: which tier each came from, and loading in the background of those that are known early."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from qvpic_rag.bank.blocks import BlockStore, Loaded
from qvpic_rag.errors import CorruptBlockError, MissingBlockError
from qvpic_rag.records import BlockKey, KVBlock

__all__ = ["BlockLoader"]

_THREADS = 2  # hashing and reading release the interpreter's lock; more threads would only take them from the embedder


class BlockLoader:
    """Use it as a context manager: what was begun early and not asked for is given up at its end.

    Attributes
    ----------
    tiers : Counter[str]
        How many blocks came from each tier: ``ram``, ``disk``, ``remote``.
    """

    def __init__(self, blocks: BlockStore) -> None:
        self.tiers: Counter[str] = Counter()
        self._blocks = blocks
        self._early: dict[str, Future[Loaded]] = {}
        self._pool: ThreadPoolExecutor | None = None

    def prefetch(self, keys: Sequence[BlockKey]) -> None:
        """Begin to load these blocks; whatever goes wrong is raised when they are asked for."""
        for key in keys:
            if key.digest not in self._early:
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(_THREADS, "qvpic-prefetch")
                self._early[key.digest] = self._pool.submit(self._blocks.read, key)

    def get(self, key: BlockKey) -> KVBlock:
        """A block, as :meth:`~qvpic_rag.bank.Bank.get_block` gives it and with its errors."""
        early = self._early.pop(key.digest, None)
        try:
            loaded = self._blocks.read(key) if early is None else early.result()
        except (MissingBlockError, CorruptBlockError):
            self._blocks.missed()
            raise
        self._blocks.note(loaded)
        self.tiers[loaded.tier] += 1
        return loaded.block

    def close(self) -> None:
        """Give up what was not asked for."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> BlockLoader:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()
