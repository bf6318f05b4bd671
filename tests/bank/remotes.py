"""Places for a remote tier: a server that speaks S3, one that never answers, and hands in what lies in them."""

from __future__ import annotations

import secrets
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fsspec.core import url_to_fs

from qvpic_rag.bank.blockfile import Written, write_temporary
from qvpic_rag.bank.remote import RemoteTier
from tests.bank import samples

BUCKET = "blocks"


class S3Server:
    """A server on a free port of this machine; what it holds stays over a stop."""

    def __init__(self) -> None:
        self.port = 0
        self._server: Any = None

    def start(self) -> None:
        from moto.moto_server.threaded_moto_server import ThreadedMotoServer

        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self.port, verbose=False)
        self._server.start()
        self.port = self._server.get_host_and_port()[1]

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server._server.server_close()
            self._server = None

    def make_bucket(self) -> None:
        request = urllib.request.Request(f"{self.url}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request, timeout=10).close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def s3_server(patch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server with a bucket, which s3:// means meanwhile and afterwards; skips the test where its packages lack."""
    pytest.importorskip("moto")
    pytest.importorskip("s3fs")
    server = S3Server()
    server.start()
    try:
        server.make_bucket()
        use_server(server.url, patch)
        yield server
    finally:
        server.stop()


def use_server(url: str, patch: pytest.MonkeyPatch) -> None:
    """Let s3:// mean this server, with credentials that are none, and without the driver's own patience."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "HTTP_PROXY", "http_proxy"):
        patch.delenv(name, raising=False)
    patch.setenv("AWS_ENDPOINT_URL_S3", url)
    patch.setenv("AWS_ACCESS_KEY_ID", "test")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    patch.setenv("AWS_MAX_ATTEMPTS", "1")
    patch.setenv("AWS_CONFIG_FILE", "/dev/null")
    patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")


@contextmanager
def silent_server() -> Iterator[tuple[str, threading.Event]]:
    """A server that takes connections and never says anything: its URL, and what is set when it took one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken: list[socket.socket] = []
        asked = threading.Event()

        def take() -> None:
            while True:
                try:
                    taken.append(listener.accept()[0])
                except OSError:  # closed
                    return
                asked.set()

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for each in taken:
            each.close()


class Raw:
    """The files below a URL, without the tier."""

    def __init__(self, url: str) -> None:
        self._fs, self._root = url_to_fs(url)

    def names(self) -> list[str]:
        if not self._fs.exists(self._root):
            return []
        self._fs.invalidate_cache()
        return sorted(str(path).removeprefix(self._root).lstrip("/") for path in self._fs.find(self._root))

    def get(self, name: str) -> bytes:
        return bytes(self._fs.cat_file(f"{self._root}/{name}"))

    def put(self, name: str, data: bytes) -> None:
        if "file" in self._fs.protocol:
            Path(f"{self._root}/{name}").parent.mkdir(parents=True, exist_ok=True)
        self._fs.pipe_file(f"{self._root}/{name}", data)

    def remove(self, name: str) -> None:
        self._fs.rm_file(f"{self._root}/{name}")


class Local:
    """A block file of this machine."""

    def __init__(self, folder: Path, text: str = "one", **options: Any) -> None:
        folder.mkdir(exist_ok=True)
        block = samples.block(samples.recipe(), samples.page(text), **options)
        written: Written = write_temporary(folder / f"{secrets.token_hex(8)}.tmp", block)
        self.digest = block.key.digest
        self.path, self.nbytes, self.checksum = written.path, written.nbytes, written.checksum
        self.block = f"{self.digest[:2]}/{self.digest}.safetensors"
        self.sidecar = f"{self.digest[:2]}/{self.digest}.json"

    @property
    def row(self) -> tuple[str, Path, int, str]:
        return self.digest, self.path, self.nbytes, self.checksum

    def upload(self, tier: RemoteTier) -> bool:
        return tier.upload(*self.row)
