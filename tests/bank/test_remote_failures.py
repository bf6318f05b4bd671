"""A remote that is down, silent or denies access costs a bounded time once, and is found again when it is back."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from qvpic_rag.bank import remote
from qvpic_rag.bank.remote import RemoteEntry, RemoteTier
from qvpic_rag.bank.remote_files import Storage
from qvpic_rag.errors import RemoteError
from tests.bank.remotes import BUCKET, Local, S3Server, silent_server, use_server

BOUND_S = 3.0  # of what must end after half a second, on a busy machine


@pytest.fixture
def local(tmp_path: Path) -> Local:
    return Local(tmp_path / "blocks", shape=(2, 2, 100, 16))


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[str, str]]]:
    """``messages()``: levels and texts that the tier logged since the last call."""
    caplog.set_level(logging.DEBUG, logger="qvpic_rag")

    def take() -> list[tuple[str, str]]:
        found = [(r.levelname, r.getMessage()) for r in caplog.records if r.name.startswith("qvpic_rag")]
        caplog.clear()
        return found

    return take


def entry_of(local: Local) -> RemoteEntry:
    return RemoteEntry(local.digest, local.nbytes, local.checksum)


def wait_until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_server_that_stops_in_the_middle_and_comes_back(
    s3: S3Server, local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Any
) -> None:
    server = S3Server()
    server.start()
    use_server(server.url, monkeypatch)
    try:
        server.make_bucket()
        tier = RemoteTier(f"s3://{BUCKET}/{tmp_path.name}", timeout_s=2, retry_s=0.2)
        local.upload(tier)
        monkeypatch.setattr(remote, "_PIECE", 8192)
        read = Storage.read

        def stop_after_one(self: Storage, name: str, start: int, end: int) -> bytes:
            if start:
                server.stop()
            return read(self, name, start, end)

        with monkeypatch.context() as patch:
            patch.setattr(Storage, "read", stop_after_one)
            begun = time.monotonic()
            with pytest.raises(RemoteError, match="the bank works without it"):
                tier.fetch(entry_of(local), tmp_path / "new")
            assert time.monotonic() - begun < 2 + BOUND_S
        assert not (tmp_path / "new").exists()
        assert [level for level, _ in messages()] == ["WARNING"]
        assert not tier.available
        assert tier.look(local.digest) is None
        assert tier.skipped == 1

        server.start()
        wait_until(lambda: tier.available)
        assert tier.look(local.digest) == entry_of(local)
        assert tier.fetch(entry_of(local), tmp_path / "new") is not None
        assert messages() == [("INFO", f"The remote tier at {tier.url!r} is back.")]
    finally:
        server.stop()


def test_a_silent_server_costs_the_timeout_once(
    s3: S3Server, local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Any
) -> None:
    with silent_server() as (url, _):
        use_server(url, monkeypatch)
        tier = RemoteTier(f"s3://{BUCKET}/prefix", timeout_s=0.5)
        begun = time.monotonic()
        with pytest.raises(RemoteError, match=r"did not answer within 0\.5 s"):
            tier.look(local.digest)
        assert 0.4 < time.monotonic() - begun < BOUND_S
        begun = time.monotonic()
        assert tier.look(local.digest) is None
        for call in (
            lambda: local.upload(tier),
            lambda: tier.remove(local.digest),
            lambda: tier.fetch(entry_of(local), tmp_path / "new"),
        ):
            with pytest.raises(RemoteError, match=r"is asked again in (29|30) s"):
                call()
        assert time.monotonic() - begun < 0.4
        assert not (tmp_path / "new").exists()
        assert [level for level, _ in messages()] == ["WARNING"]


def test_a_driver_without_timeouts_is_left_behind(
    local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mounted disk whose server is gone: the call itself never returns."""
    release = threading.Event()
    tier = RemoteTier(f"memory://{tmp_path}", timeout_s=0.2)
    local.upload(tier)
    with monkeypatch.context() as patch:
        for name in ("cat_file", "put_file", "info", "rm_file", "pipe_file"):
            patch.setattr(MemoryFileSystem, name, lambda self, *args, **options: release.wait(30))
        for call in (
            lambda tier: tier.look(local.digest),
            lambda tier: tier.fetch(entry_of(local), tmp_path / "new"),
            lambda tier: local.upload(tier),
            lambda tier: tier.remove(local.digest),
        ):
            begun = time.monotonic()
            with pytest.raises(RemoteError, match="did not answer"):
                call(RemoteTier(tier.url, timeout_s=0.2))
            assert 0.1 < time.monotonic() - begun < BOUND_S
        release.set()
    assert not (tmp_path / "new").exists()
    wait_until(lambda: not any(thread.name == "qvpic-remote" for thread in threading.enumerate()))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError("The key hunter2 is wrong"), "denied access: check the credentials"),
        (OSError(5, "hunter2"), r"failed \(OSError: Input/output error\)"),
        (RuntimeError("hunter2"), r"failed \(RuntimeError\)"),
        (TimeoutError("hunter2"), "did not answer within 10 s"),
    ],
)
def test_what_drivers_raise_becomes_one_sentence(
    error: Exception, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Any
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    tier = RemoteTier(f"memory://{tmp_path}")
    monkeypatch.setattr(MemoryFileSystem, "cat_file", fail)
    with pytest.raises(RemoteError, match=said) as caught:
        tier.look("a" * 64)
    assert caught.value.__cause__ is error
    assert "hunter2" not in str(caught.value)
    assert messages() == [("WARNING", str(caught.value))]


def test_a_bucket_that_does_not_exist(s3: S3Server, local: Local) -> None:
    tier = RemoteTier("s3://no-such-bucket/prefix")
    assert tier.look(local.digest) is None
    with pytest.raises(RemoteError, match="does not exist: make that bucket"):
        local.upload(tier)
    assert tier.available


def test_many_threads_wait_for_a_dead_remote_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = RemoteTier(f"memory://{tmp_path}", timeout_s=0.2)
    release = threading.Event()
    monkeypatch.setattr(MemoryFileSystem, "cat_file", lambda self, *args, **options: release.wait(30))
    told: list[object] = []

    def look() -> None:
        try:
            told.append(tier.look("a" * 64))
        except RemoteError as error:
            told.append(error)

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    release.set()
    assert len(told) == 8
    assert 29 < tier.retry_in_s <= 30  # one failure, not eight


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("remote_url", ["file", "s3"], indirect=True)
def test_a_forked_process_connects_by_itself(remote_url: str, local: Local, tmp_path: Path) -> None:
    tier = RemoteTier(remote_url)
    local.upload(tier)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            found = tier.look(local.digest)
            code = 2 if found is None else 3
            if found is not None and tier.fetch(found, tmp_path / "child") is not None:
                code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert (tmp_path / "child").read_bytes() == local.path.read_bytes()
    assert tier.fetch(entry_of(local), tmp_path / "parent") is not None
