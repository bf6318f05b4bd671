"""Files of page signals (:class:`~qvpic_rag.records.Signals`) beside a namespace's search index: derived, as that is.

::

    DIR/index/<hex>.signals/<page digest>.<hex>     one file per page; the second part is what the signals were made of

A file is an xxh3-128 checksum over its own name and the rest, and a safetensors body with vectors in float16. One that
is damaged, or was made of another text or by another embedder, counts as missing. Nothing refers to a file but its
name, so files can be removed at any time: whoever needs one makes it again. What else lies in the folder is let be.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import re
import secrets
from pathlib import Path

import numpy as np
import xxhash
from safetensors import SafetensorError
from safetensors.numpy import load, save

from qvpic_rag.bank import failures
from qvpic_rag.bank.writers import TEMPORARY
from qvpic_rag.records import Signals, stable_digest

__all__ = ["SignalFiles", "halved"]

_log = logging.getLogger(__name__)
_CHECKSUM_BYTES = 16
_NAME = re.compile(r"[0-9a-f]{64}\.[0-9a-f]{64}")


def halved(signals: Signals) -> Signals:
    """Signals as they are when they have been stored: vectors in float16."""
    return Signals(signals.token_ids, signals.weights, signals.vectors.astype(np.float16))


class SignalFiles:
    """The signals of one namespace's pages, by page digest and the digest of what makes them.

    Parameters
    ----------
    index_path : Path
        The namespace's search index (:attr:`Bank.index_path`); its folder must exist for :meth:`put`.
    embedder : str
        :attr:`~qvpic_rag.embed.Embedder.signals_digest`.
    """

    def __init__(self, index_path: Path, embedder: str) -> None:
        self.folder = index_path.with_suffix(".signals")
        self._embedder = embedder

    def name(self, page: str, text: str) -> str:
        """The name of the file of a page with this digest and text."""
        return f"{page}.{stable_digest({'qvpic-signals': 1, 'embedder': self._embedder, 'text': text})}"

    def names(self) -> set[str]:
        """The names of all files of signals, sound or not."""
        with failures.guard(self.folder):
            found = self.folder.iterdir() if self.folder.is_dir() else ()
            return {path.name for path in found if _NAME.fullmatch(path.name) and path.is_file()}

    def blocked(self, name: str) -> bool:
        """Whether something that is no file, such as a folder, is where a file belongs."""
        path = self.folder / name
        with failures.guard(self.folder):
            return path.exists() and not path.is_file()

    def get(self, name: str) -> Signals | None:
        """The signals in a file, vectors in float16; None where there is none that is sound."""
        path = self.folder / name
        try:
            if path.exists() and not path.is_file():  # opening a pipe would wait for ever
                _log.warning(
                    "the signals of a page cannot be stored, because %s, where their file belongs, is none: move it "
                    "away and ingest again with router='hybrid'", path,
                )  # fmt: skip
                return None
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            _log.warning("the signals of a page are made again: %s", failures.os_failure(error, self.folder))
            return None
        checksum, body = data[:_CHECKSUM_BYTES], data[_CHECKSUM_BYTES:]
        if _checksum(name, body) != checksum:
            _log.warning("the signals of a page are made again: their file %s is damaged", path)
            return None
        try:
            return Signals(**load(body))
        except (SafetensorError, TypeError) as error:
            _log.warning("the signals of a page are made again: %s is of another version (%s)", name, error)
            return None

    def put(self, name: str, signals: Signals) -> None:
        """Store signals; readers see the whole file or none.

        Raises
        ------
        BankError
            The disk is full, or access is denied.
        """
        half = halved(signals)
        body = save({"token_ids": half.token_ids, "weights": half.weights, "vectors": half.vectors})
        # In the folder of the index, where openers of the bank remove what writers that died have left.
        temporary = self.folder.parent / f".{name[:16]}.{secrets.token_hex(8)}{TEMPORARY}"
        with failures.guard(self.folder):
            self.folder.mkdir(exist_ok=True)
            try:
                with temporary.open("xb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX)
                    file.write(_checksum(name, body) + body)
                    file.flush()
                    temporary.replace(self.folder / name)  # not synced: what a power cut tears, the checksum tells
            finally:
                with contextlib.suppress(OSError):  # gone after the rename; else the first error is the one to report
                    temporary.unlink()

    def remove(self, name: str) -> None:
        """Remove a file; harmless where it is gone."""
        with failures.guard(self.folder):
            (self.folder / name).unlink(missing_ok=True)


def _checksum(name: str, body: bytes) -> bytes:
    hasher = xxhash.xxh3_128(name.encode("ascii"))
    hasher.update(body)
    return hasher.digest()
