"""Files behind an fsspec URL, where every call returns or fails within a time.

Credentials, endpoints and regions are what the driver finds by itself: its own environment variables and files
(``AWS_ACCESS_KEY_ID``, ``AWS_PROFILE``, ``GOOGLE_APPLICATION_CREDENTIALS`` ...), and fsspec's configuration, which is
``FSSPEC_<PROTOCOL>_<OPTION>`` in the environment or a file in ``~/.config/fsspec``. fsspec reads its configuration when
it is imported. The endpoint of another server that speaks S3 is ``AWS_ENDPOINT_URL_S3`` or ``FSSPEC_S3_ENDPOINT_URL``.
A URL holds none of it, so URLs can be shown in messages.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import os
import re
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import fsspec
from fsspec.asyn import AsyncFileSystem, sync
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from qvpic_rag.bank.writers import TEMPORARY
from qvpic_rag.errors import ConfigError, MissingDependencyError

__all__ = ["TIMEOUTS", "Storage"]

T = TypeVar("T")

# One and the same class only from Python 3.11 on; fsspec's own is a subclass of the second.
TIMEOUTS = (TimeoutError, asyncio.TimeoutError, concurrent.futures.TimeoutError)

_URL = re.compile(r"(?P<protocol>[a-z][a-z0-9+.-]*)://(?P<host>(?:[\w.-]+@)?[\w.-]+(?::[0-9]+)?)?(?P<path>/.*)?")
_LONGEST_URL = 1024
_SLOWEST = 1 << 20  # bytes per second; what is slower counts as hanging
_S3 = ("s3", "s3a")


class Storage:
    """Files below one URL, named relative to it. Several threads may use it; a forked process connects anew.

    Every method raises what the driver raises: ``FileNotFoundError``, one of ``TIMEOUTS`` after ``timeout_s`` seconds
    and one more per MiB of data, and whatever else.

    Raises
    ------
    ConfigError
        The URL is malformed, chained (``::``), or holds a password or a query; or nothing knows its protocol.
    MissingDependencyError
        The protocol's driver is not installed.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        self.url = _check_url(url)
        self.timeout_s = timeout_s
        _check_driver(self.url)
        # By process: what was inherited is kept unused, because closing it would disturb the parent's connections.
        self._connected: dict[int, tuple[Any, str]] = {}

    def read(self, name: str, start: int, end: int) -> bytes:
        """The bytes of a file from ``start`` until before ``end`` or the file's end."""

        def work(fs: Any, path: str) -> bytes:
            try:
                return bytes(self._drive(fs, end - start, "cat_file", path, start=start, end=end))
            except Exception as error:  # of the driver's own kind
                if _refuses_range(error) and self._drive(fs, 0, "info", path)["size"] <= start:
                    return b""
                raise

        return self._bounded(name, end - start, work)

    def size(self, name: str) -> int:
        """Bytes of a file."""
        return self._bounded(name, 0, lambda fs, path: int(self._drive(fs, 0, "info", path)["size"]))

    def send(self, name: str, file: Path, nbytes: int) -> None:
        """Store a local file of ``nbytes`` bytes, in pieces of the driver's choice."""

        def work(fs: Any, path: str) -> None:
            _place(fs, path, lambda place: self._drive(fs, nbytes, "put_file", str(file), place))

        self._bounded(name, nbytes, work)

    def write(self, name: str, data: bytes) -> None:
        """Store a few bytes."""

        def work(fs: Any, path: str) -> None:
            _place(fs, path, lambda place: self._drive(fs, len(data), "pipe_file", place, data))

        self._bounded(name, len(data), work)

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._bounded(name, 0, lambda fs, path: self._drive(fs, 0, "rm_file", path))

    def _connect(self) -> tuple[Any, str]:
        mine = self._connected.get(os.getpid())
        if mine is None:
            # Not from fsspec's cache: an object shared with others would be closed and configured by them, too.
            mine = self._connected.setdefault(os.getpid(), url_to_fs(self.url, skip_instance_cache=True))
        return mine

    def _allowed_s(self, nbytes: int) -> float:
        return self.timeout_s + nbytes / _SLOWEST

    def _drive(self, fs: Any, nbytes: int, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of the driver; one that is asynchronous inside is told to stop when the time is over."""
        if isinstance(fs, AsyncFileSystem):
            return sync(fs.loop, getattr(fs, f"_{method}"), *args, timeout=self._allowed_s(nbytes), **options)
        return getattr(fs, method)(*args, **options)

    def _bounded(self, name: str, nbytes: int, work: Callable[[Any, str], T]) -> T:
        """Do something in a thread of its own, and wait for it no longer than allowed.

        A thread whose time is over cannot be stopped; it goes on alone, and its result reaches nobody. As a daemon it
        does not hold up the end of the process, as one of a pool would.
        """
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            try:
                fs, root = self._connect()
                future.set_result(work(fs, f"{root}/{name}"))
            except BaseException as error:  # raised by whoever waits
                future.set_exception(error)

        threading.Thread(target=run, name="qvpic-remote", daemon=True).start()
        return future.result(self._allowed_s(nbytes))


def _check_url(url: str) -> str:
    """The URL without slashes at its end. Messages do not repeat it: a malformed one may hold a password."""
    match = _URL.fullmatch(url) if isinstance(url, str) and len(url) <= _LONGEST_URL and url.isprintable() else None
    if match is None or "::" in url or re.search(r"[?#*\[\]\\]", url):
        raise ConfigError(
            "The URL of the remote tier must look like s3://bucket/prefix or file:///folder, without passwords, "
            "queries or chained protocols: give credentials through the environment or fsspec's configuration."
        )
    protocol, host, path = match["protocol"], match["host"] or "", (match["path"] or "").rstrip("/")
    parts = path.split("/")[1:]
    if not (host or path) or any(part in ("", ".", "..") for part in parts):
        raise ConfigError(
            f"The URL of the remote tier, {url!r}, does not say which bucket or folder: give it like s3://bucket/prefix."
        )
    if protocol in ("file", "local") and (host or not path):
        raise ConfigError(f"The folder of the remote tier, {url!r}, is not absolute: give it like file:///folder.")
    return f"{protocol}://{host}{path}"


def _check_driver(url: str) -> None:
    protocol = url.partition("://")[0]
    try:
        fsspec.get_filesystem_class(protocol)
    except ValueError as error:
        raise ConfigError(
            f"No storage is known by the protocol {protocol!r} of the remote tier: use s3, gs, abfs, sftp, file or "
            f"another one of fsspec."
        ) from error
    except ImportError as error:
        advice = "run pip install 'qvpic-rag[s3]'" if protocol in _S3 else f"fsspec says: {error}"
        raise MissingDependencyError(
            f"The protocol {protocol!r} of the remote tier needs a package that is not installed; {advice}."
        ) from error


def _place(fs: Any, path: str, store: Callable[[str], object]) -> None:
    """Store a file so that nobody sees half of it, where the driver cannot do that by itself.

    Object stores show an object when it is whole, and have no folders. Other storage needs the folder, and shows files
    while they grow; on a local or mounted disk renaming hides that, elsewhere only the order of writes does.
    """
    if isinstance(fs, AsyncFileSystem):
        store(path)
        return
    fs.makedirs(path.rpartition("/")[0], exist_ok=True)
    if not isinstance(fs, LocalFileSystem):
        store(path)
        return
    staged = Path(f"{path}.{secrets.token_hex(8)}{TEMPORARY}")
    try:
        store(str(staged))
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)


def _refuses_range(error: Exception) -> bool:
    """Whether it may mean that a range begins beyond the end of the file: S3's errno, other drivers' status 416."""
    status = {getattr(error, name, None) for name in ("code", "status", "status_code")}
    return getattr(error, "errno", None) == errno.EINVAL or bool(status & {416, "416"})
