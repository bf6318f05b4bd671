"""Page embeddings to nearest pages: an exact inner-product index with stable 64-bit ids, kept in one checked file.

The file holds ids, vectors and the bank generation they belong to under one SHA-256, so that index and generation
cannot disagree and a damaged file is noticed. It only copies what the bank stores, which can rebuild it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import struct
import threading
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import ArrayLike, NDArray

from qvpic_rag.errors import BankError, ConfigError, InputError

__all__ = ["PageIndex"]

# Magic, version, dimension, number of vectors, generation; little-endian. Then come the SHA-256 over the fields and the
# body, and the body: int64 ids ascending, float32 vectors in the same order.
_FIELDS = struct.Struct("<8sIIQQ")
_MAGIC = b"QVPICIDX"
_VERSION = 1
_HEADER_BYTES = _FIELDS.size + hashlib.sha256().digest_size


class PageIndex:
    """Exact maximum-inner-product search (FAISS ``IndexIDMap2(IndexFlatIP)``); safe to use from several threads.

    Parameters
    ----------
    dimension : int
        Length of a vector.

    Raises
    ------
    ConfigError
        ``dimension`` is not a whole number from 1 to 65536.
    """

    def __init__(self, dimension: int) -> None:
        if isinstance(dimension, bool) or not isinstance(dimension, int) or not 1 <= dimension <= 65_536:
            raise ConfigError(f"PageIndex.dimension must be a whole number from 1 to 65536, not {dimension!r}.")
        self.dimension = dimension
        self._flat: Any = faiss.IndexFlatIP(dimension)
        self._index: Any = faiss.IndexIDMap2(self._flat)
        self._ids: set[int] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, ids: ArrayLike, vectors: ArrayLike) -> None:
        """Store vectors under ids; an id that is there already gets the new vector.

        Parameters
        ----------
        ids : ArrayLike
            int64 ``[n]``, 0 or above, each once.
        vectors : ArrayLike
            float32 ``[n, dimension]``, finite, L2-normalised by the embedder.

        Raises
        ------
        InputError
            Wrong shape, dtype, a repeated or negative id, NaN or infinity. Nothing is stored then.
        """
        numbers, matrix = _ids(ids), self._matrix(vectors)
        if len(numbers) != len(matrix):
            raise InputError(f"There are {len(numbers)} ids for {len(matrix)} vectors; give one id per vector.")
        new = set(numbers.tolist())
        if len(new) != len(numbers):
            raise InputError("An id is given twice in one call; give each id once.")
        if not new:
            return
        if min(new) < 0:
            raise InputError(f"Page id {min(new)} is negative; ids start at 0.")
        with self._lock:
            self._remove(new)
            self._index.add_with_ids(matrix, numbers)
            self._ids |= new

    def remove(self, ids: ArrayLike) -> None:
        """Forget ids (int64 ``[n]``); unknown ones are ignored."""
        with self._lock:
            self._remove(set(_ids(ids).tolist()))

    def search(self, vector: ArrayLike, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The ``k`` nearest pages, or all if there are fewer.

        Parameters
        ----------
        vector : ArrayLike
            float32 ``[dimension]``, finite.
        k : int
            0 or above.

        Returns
        -------
        tuple[NDArray[np.int64], NDArray[np.float32]]
            Ids ``[m]`` and inner products ``[m]``, descending; equal scores by id ascending.

        Raises
        ------
        InputError
            Wrong shape or dtype, NaN, infinity, or a negative ``k``.
        """
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 0:
            raise InputError(f"The number of pages to find must be a whole number of at least 0, not {k!r}.")
        query = self._matrix(np.asarray(vector)[None])
        with self._lock:
            size = len(self._ids)
            wanted = min(int(k), size)
            if wanted == 0:
                return np.empty(0, np.int64), np.empty(0, np.float32)
            # FAISS breaks ties its own way, also between the last page found and the first one left out: look further
            # until the score has dropped below the last wanted one's.
            depth = min(size, wanted + 1)
            scores, ids = self._index.search(query, depth)
            while depth < size and scores[0, depth - 1] == scores[0, wanted - 1]:
                depth = min(size, depth * 2)
                scores, ids = self._index.search(query, depth)
        order = np.lexsort((ids[0], -scores[0]))[:wanted]
        return ids[0][order], scores[0][order]

    def save(self, path: str | os.PathLike[str], generation: int) -> None:
        """Write the index atomically: readers see the old file or the new one, never a part.

        Parameters
        ----------
        path : str | os.PathLike[str]
            File; its folder must exist.
        generation : int
            The bank's generation that these vectors belong to, 0 or above.

        Raises
        ------
        InputError
            A negative generation.
        BankError
            The file cannot be written (disk full, no permission); the previous file is untouched.
        """
        if not 0 <= generation < 2**64:
            raise InputError(f"An index's generation must be 0 or above, not {generation!r}.")
        with self._lock:
            numbers = faiss.vector_to_array(self._index.id_map)
            vectors = faiss.vector_to_array(self._flat.codes).view(np.float32).reshape(-1, self.dimension)
        order = np.argsort(numbers)
        body = numbers[order].astype("<i8").tobytes() + vectors[order].astype("<f4").tobytes()
        fields = _FIELDS.pack(_MAGIC, _VERSION, self.dimension, len(numbers), generation)
        target = Path(path)
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
        try:
            with temporary.open("xb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # what lies there unlocked was left by a process that died
                file.write(fields + hashlib.sha256(fields + body).digest())
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
            _sync_folder(target.parent)
        except OSError as error:
            reason = error.strerror or error
            raise BankError(
                f"The index {str(target)!r} cannot be written ({reason}); free space or fix its permissions."
            ) from error
        finally:
            with contextlib.suppress(OSError):  # gone after the rename; else the first error is the one to report
                temporary.unlink()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> tuple[PageIndex, int]:
        """Read what :meth:`save` wrote.

        Returns
        -------
        tuple[PageIndex, int]
            The index and the generation it was saved with.

        Raises
        ------
        BankError
            The file is missing, unreadable, damaged or of another version; rebuild it from the bank's vectors.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            reason = error.strerror or error
            raise BankError(f"The index {str(path)!r} cannot be read ({reason}); rebuild it from the bank.") from error
        if len(data) < _HEADER_BYTES or data[:8] != _MAGIC:
            raise BankError(f"{str(path)!r} is not a page index or was cut off; rebuild it from the bank.")
        _, version, dimension, size, generation = _FIELDS.unpack_from(data)
        if version != _VERSION:
            raise BankError(f"The index {str(path)!r} has version {version}, not {_VERSION}; rebuild it from the bank.")
        checksum, body = data[_FIELDS.size : _HEADER_BYTES], memoryview(data)[_HEADER_BYTES:]
        expected = hashlib.sha256(data[: _FIELDS.size])
        expected.update(body)
        if checksum != expected.digest() or len(body) != size * (8 + 4 * dimension):
            raise BankError(f"The index {str(path)!r} is damaged; rebuild it from the bank.")
        index = cls(dimension)
        vectors = np.frombuffer(body, "<f4", offset=8 * size).reshape(size, dimension)
        index.add(np.frombuffer(body, "<i8", count=size).astype(np.int64), vectors.astype(np.float32))
        return index, generation

    def _remove(self, ids: set[int]) -> None:
        """Forget ids; the lock is held. FAISS walks the whole index here, so ask it only for ids that are there."""
        known = sorted(ids & self._ids)
        if known:
            self._index.remove_ids(np.asarray(known, dtype=np.int64))
            self._ids.difference_update(known)

    def _matrix(self, vectors: ArrayLike) -> NDArray[np.float32]:
        """Check vectors ``[n, dimension]``."""
        matrix = np.asarray(vectors)
        if matrix.dtype != np.float32:
            raise InputError(f"Page vectors must be float32, not {matrix.dtype}.")
        if matrix.ndim != 2 or matrix.shape[1] != self.dimension:
            raise InputError(
                f"Page vectors must have {self.dimension} numbers each, but their shape is {list(matrix.shape)}; "
                "use the embedder that the bank was made with."
            )
        if not np.isfinite(matrix).all():
            raise InputError("A page vector holds NaN or infinity; check the embedding model.")
        return np.ascontiguousarray(matrix)


def _ids(ids: ArrayLike) -> NDArray[np.int64]:
    numbers = np.asarray(ids)
    if numbers.size == 0:
        return np.empty(0, np.int64)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or not np.can_cast(numbers.dtype, np.int64):
        raise InputError(f"Page ids must be one row of 64-bit integers, not {numbers.dtype} {list(numbers.shape)}.")
    return np.ascontiguousarray(numbers, dtype=np.int64)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the system lets a folder be opened."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
