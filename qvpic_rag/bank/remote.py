"""The remote tier: blocks of many machines in one place behind an fsspec URL (S3, a mounted folder ...).

::

    URL/<2 hex digits>/<digest>.safetensors   the block's file, byte for byte
    URL/<2 hex digits>/<digest>.json          its size and checksum, written after it

A block without its sidecar is not there: it is being written, or that was cut short. Everything is checked against the
sidecar, and the block itself against the digest it was asked by, so that nothing but the right block comes back.

On S3 the credentials need GetObject, PutObject, DeleteObject and ListBucket: without the last one S3 denies access to
what is not there, instead of saying so. For credentials and endpoints see :mod:`qvpic_rag.bank.remote_files`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from qvpic_rag.bank.blockfile import BlockHeader, Written, check_file
from qvpic_rag.bank.breaker import Breaker
from qvpic_rag.bank.remote_files import TIMEOUTS, Storage
from qvpic_rag.errors import ConfigError, CorruptBlockError, RemoteError

__all__ = ["RemoteEntry", "RemoteTier"]

_log = logging.getLogger(__name__)

_DIGEST = re.compile(r"[0-9a-f]{64}")
_CHECKSUM = re.compile(r"[0-9a-f]{32}")
_FORMAT = "qvpic-remote-block"
_VERSION = 1
_LARGEST = 1 << 48
_LONGEST_SIDECAR = 256
_PIECE = 4 << 20  # a request of its own each: large enough for their latency, and small enough to hold in memory
_LONGEST_RETRY_S = 600.0


@dataclass(frozen=True)
class RemoteEntry:
    """A block that the remote tier says it has: the bytes of its file, and the XXH3 (128 bit) over them in hex."""

    digest: str
    nbytes: int
    checksum: str

    def encode(self) -> bytes:
        """The sidecar's one spelling."""
        fields = {"format": _FORMAT, "version": _VERSION, "nbytes": self.nbytes, "checksum": self.checksum}
        return json.dumps(fields, separators=(",", ":")).encode("ascii")

    @classmethod
    def parse(cls, digest: str, data: bytes) -> RemoteEntry:
        """What a sidecar says; ``ValueError`` unless it is spelled exactly as :meth:`encode` does."""
        try:
            found = json.loads(data.decode("ascii"))
            entry = cls(digest, found["nbytes"], found["checksum"])
            sound = type(entry.nbytes) is int and 0 < entry.nbytes <= _LARGEST and _CHECKSUM.fullmatch(entry.checksum)
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise ValueError("not a sidecar") from error
        if not sound or entry.encode() != data:
            raise ValueError("not a sidecar of this version")
        return entry


class RemoteTier:
    """Blocks behind an fsspec URL. Several threads may use one object; a forked process connects by itself.

    Every request is over after ``timeout_s`` seconds and one more per MiB of data. Once one failed, the remote is left
    alone for ``retry_s`` seconds, twice as long after each further failure, up to 10 minutes: until then :meth:`look`
    finds nothing and the other methods fail, at once.

    Parameters
    ----------
    url : str
        Such as ``s3://bucket/prefix`` or ``file:///mnt/share``; without credentials.
    timeout_s, retry_s : float
        Seconds, as above.

    Raises
    ------
    ConfigError
        The URL is malformed, chained, or holds a password or a query; its protocol is unknown; a time is not positive.
    MissingDependencyError
        The protocol's driver is not installed.
    """

    def __init__(self, url: str, *, timeout_s: float = 10.0, retry_s: float = 30.0) -> None:
        if not (0 < timeout_s < float("inf") and 0 < retry_s < float("inf")):
            raise ConfigError(
                f"The remote tier's times must be positive numbers of seconds, not {timeout_s!r} and {retry_s!r}."
            )
        self._storage = Storage(url, timeout_s)
        self._retry_s = retry_s
        self._breakers: dict[int, Breaker] = {}
        self._damaged: set[str] = set()

    @property
    def url(self) -> str:
        """Where it is; never holds a password."""
        return self._storage.url

    def __repr__(self) -> str:
        return f"RemoteTier({self.url!r})"

    @property
    def retry_in_s(self) -> float:
        """Seconds until the remote is asked again; 0 when it is not down."""
        return self._breaker.retry_in_s

    @property
    def available(self) -> bool:
        """Whether the next call asks the remote, so far as is known."""
        return not self.retry_in_s

    @property
    def skipped(self) -> int:
        """How often the remote was not asked because it was down."""
        return self._breaker.skipped

    def look(self, digest: str) -> RemoteEntry | None:
        """What the remote has of a block, by two small requests; None when it has not all of it, or is down.

        Raises
        ------
        CorruptBlockError
            What is there is no sidecar.
        RemoteError
            The remote failed just now.
        """
        sidecar = _names(digest)[1]
        ticket = self._breaker.enter()
        return None if ticket is None else self._look(digest, sidecar, ticket)

    def fetch(self, entry: RemoteEntry, target: Path) -> Written | None:
        """Download a block into a new local file, checked and flushed to the disk; None when it is not there any more.

        At most 4 MiB of it are in memory. On any failure there is no file afterwards.

        Raises
        ------
        CorruptBlockError
            The remote has something else than the entry or the digest says. The next :meth:`upload` replaces it.
        RemoteError
            The remote failed, or is down.
        OSError
            Of the local file, which must not exist yet.
        """
        name = _names(entry.digest)[0]
        hasher = xxhash.xxh3_128()
        head = b""
        with target.open("xb") as file, _removed_on_failure(target):
            for start in range(0, entry.nbytes, _PIECE):
                last = start + _PIECE >= entry.nbytes
                end = entry.nbytes + 1 if last else start + _PIECE  # the byte too many tells that it is too long
                try:
                    with self._attempt(self._ticket()):
                        piece = self._storage.read(name, start, end)
                except FileNotFoundError:
                    target.unlink()
                    return None
                if len(piece) != min(end, entry.nbytes) - start:
                    raise self._damage(entry.digest, f"it has not the {entry.nbytes} bytes that its sidecar says")
                hasher.update(piece)
                file.write(piece)
                head = head or piece
            if hasher.hexdigest() != entry.checksum:
                raise self._damage(entry.digest, "its checksum is not the one that its sidecar says")
            try:
                found = BlockHeader.parse(head, entry.nbytes).key.digest
            except CorruptBlockError as error:
                raise self._damage(entry.digest, str(error)) from error
            if found != entry.digest:
                raise self._damage(entry.digest, "it is the block of another key")
            file.flush()
            os.fsync(file.fileno())
        return Written(target, entry.nbytes, entry.checksum)

    def upload(self, digest: str, path: Path, nbytes: int, checksum: str) -> bool:
        """Store a local block file, which is checked before; False when the remote has it already.

        Of two that upload different files of one block at the same time, one may come to lie under the other's sidecar;
        whoever fetches it finds out, and uploads it again.

        Raises
        ------
        CorruptBlockError
            The local file is not the block of this digest, size and checksum, or was replaced meanwhile. Nothing of it
            is visible then.
        RemoteError
            The remote failed, or is down.
        OSError
            Of the local file.
        """
        block, sidecar = _names(digest)
        entry = RemoteEntry(digest, nbytes, checksum)
        opened = _identity(path)
        if check_file(path, nbytes, checksum).key.digest != digest:
            raise CorruptBlockError("it is the block of another key")
        try:
            held = self._look(digest, sidecar, self._ticket())
            if held == entry and digest not in self._damaged and self._size(block) == nbytes:
                return False
        except CorruptBlockError as error:
            _log.info("%s Its upload replaces it.", error)
        # A sidecar must not stand beside a block that is being replaced.
        self._remove(sidecar)
        try:
            with self._storing():
                self._storage.send(block, path, nbytes)
        except RemoteError:  # unless it was the local file that is gone
            _check_same(path, opened)
            raise
        _check_same(path, opened)
        if self._size(block) != nbytes:
            raise self._failure(f"did not keep the {nbytes} bytes of a block", "check its quota and its log")
        with self._storing():
            self._storage.write(sidecar, entry.encode())
        self._damaged.discard(digest)
        return True

    def remove(self, digest: str) -> None:
        """Remove a block, if it is there; ``RemoteError`` when the remote failed or is down."""
        block, sidecar = _names(digest)
        self._remove(sidecar)
        self._remove(block)

    def _look(self, digest: str, sidecar: str, ticket: int) -> RemoteEntry | None:
        try:
            with self._attempt(ticket):
                data = self._storage.read(sidecar, 0, _LONGEST_SIDECAR + 1)
        except FileNotFoundError:
            return None
        try:
            entry = RemoteEntry.parse(digest, data)
        except ValueError as error:
            raise self._damage(digest, "its sidecar is not one of this version's") from error
        # Before anybody makes room for what the sidecar only claims.
        size = self._size(_names(digest)[0])
        if size is not None and size != entry.nbytes:
            raise self._damage(digest, f"it has {size} bytes and its sidecar says {entry.nbytes}")
        return entry if size is not None else None

    def _size(self, name: str) -> int | None:
        try:
            with self._attempt(self._ticket()):
                return self._storage.size(name)
        except FileNotFoundError:
            return None

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._attempt(self._ticket()):
            self._storage.remove(name)

    @property
    def _breaker(self) -> Breaker:
        # By process: a lock that another thread held during the fork is never released in the child.
        found = self._breakers.get(os.getpid())
        return found or self._breakers.setdefault(os.getpid(), Breaker(self._retry_s, _LONGEST_RETRY_S))

    def _ticket(self) -> int:
        ticket = self._breaker.enter()
        if ticket is None:
            raise self._failure(f"failed and is asked again in {self.retry_in_s:.0f} s", "wait, or see the log for why")
        return ticket

    @contextlib.contextmanager
    def _attempt(self, ticket: int) -> Iterator[None]:
        """Exactly one call of the storage. ``FileNotFoundError`` is an answer like any other, and passes."""
        try:
            yield
        except FileNotFoundError:
            self._answered(ticket)
            raise
        except Exception as error:  # drivers raise what they like
            failure = self._failure(*self._reason(error))
            if self._breaker.failed(ticket):
                _log.warning("%s", failure)
            raise failure from error
        self._answered(ticket)

    @contextlib.contextmanager
    def _storing(self) -> Iterator[None]:
        """As :meth:`_attempt`, for what makes new files."""
        try:
            with self._attempt(self._ticket()):
                yield
        except FileNotFoundError as error:
            raise self._failure("does not exist", "make that bucket or folder, or correct the URL") from error

    def _answered(self, ticket: int) -> None:
        if self._breaker.succeeded(ticket):
            _log.info("The remote tier at %r is back.", self.url)

    def _failure(self, what: str, advice: str) -> RemoteError:
        return RemoteError(f"The remote tier at {self.url!r} {what}: {advice}; the bank works without it meanwhile.")

    def _reason(self, error: Exception) -> tuple[str, str]:
        """What happened and what to do about it. The driver's own words are left out: they may hold what is secret."""
        if isinstance(error, TIMEOUTS):
            return f"did not answer within {self._storage.timeout_s:g} s", "check the network and its endpoint"
        if isinstance(error, PermissionError):
            return "denied access", "check the credentials, and that they allow to get, put, delete and list"
        number = getattr(error, "errno", None)
        reason = f": {os.strerror(number)}" if isinstance(number, int) else ""
        return f"failed ({type(error).__name__}{reason})", "check the network, its endpoint and the credentials"

    def _damage(self, digest: str, why: str) -> CorruptBlockError:
        self._damaged.add(digest)
        return CorruptBlockError(
            f"The block {digest[:12]} in the remote tier at {self.url!r} is damaged, {why}: compile and store it again."
        )


def _names(digest: str) -> tuple[str, str]:
    """Names of a block and its sidecar. Nothing but a digest ever becomes part of one."""
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"A block digest is 64 hexadecimal digits, not {digest!r}.")
    return f"{digest[:2]}/{digest}.safetensors", f"{digest[:2]}/{digest}.json"


def _identity(path: Path) -> tuple[int, int, int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _check_same(path: Path, opened: tuple[int, int, int, int]) -> None:
    """What was checked must be what was sent."""
    if _identity(path) != opened:
        raise CorruptBlockError("it was replaced while it was uploaded")


@contextlib.contextmanager
def _removed_on_failure(path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # the first failure is the one to report
            path.unlink(missing_ok=True)
        raise
