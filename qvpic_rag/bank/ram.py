"""The RAM tier: the blocks used last, as many as fit into a number of bytes; pinned memory where CUDA is present."""

from __future__ import annotations

import threading
from collections import OrderedDict

from qvpic_rag import forking
from qvpic_rag.records import KVBlock

__all__ = ["RamTier"]


class RamTier:
    """Least recently used blocks go first. Blocks in it are shared by all requests and only read."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._blocks: OrderedDict[str, KVBlock] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        forking.renewed(self)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values held; never above ``max_bytes``."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._blocks)

    def get(self, digest: str) -> KVBlock | None:
        """A block that is held."""
        with self._lock:
            block = self._blocks.get(digest)
            if block is not None:
                self._blocks.move_to_end(digest)
            return block

    def takes(self, nbytes: int) -> bool:
        """Whether a block of this size can be held at all."""
        return nbytes <= self.max_bytes

    def put(self, block: KVBlock) -> None:
        """Hold a block whose tensors nobody else writes to."""
        if not self.takes(block.nbytes):
            return
        with self._lock:
            before = self._blocks.pop(block.key.digest, None)
            self._bytes += block.nbytes - (before.nbytes if before is not None else 0)
            self._blocks[block.key.digest] = block
            while self._bytes > self.max_bytes:
                _, oldest = self._blocks.popitem(last=False)
                self._bytes -= oldest.nbytes

    def drop(self, digest: str) -> None:
        """Hold a block no longer."""
        with self._lock:
            block = self._blocks.pop(digest, None)
            if block is not None:
                self._bytes -= block.nbytes

    def clear(self) -> None:
        """Hold nothing any more."""
        with self._lock:
            self._blocks.clear()
            self._bytes = 0
