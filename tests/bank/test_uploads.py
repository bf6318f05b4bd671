"""Write-behind: what the bank's rows say was not uploaded is uploaded in the end, whatever happens on the way."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from qvpic_rag.bank import uploads
from qvpic_rag.bank.remote import RemoteTier
from qvpic_rag.bank.uploads import Uploads, Waiting
from tests.bank.remotes import Local, Raw, S3Server, silent_server, use_server

ROOT = Path(__file__).parents[2]


class Rows:
    """What a bank keeps of uploads."""

    def __init__(self) -> None:
        self.rows: dict[str, Waiting] = {}
        self.done_calls: list[str] = []
        self.lock = threading.Lock()

    def add(self, *blocks: Local) -> None:
        with self.lock:
            self.rows.update({block.digest: block.row for block in blocks})

    def pending(self, limit: int) -> list[Waiting]:
        with self.lock:
            return list(self.rows.values())[:limit]

    def done(self, digest: str, checksum: str) -> None:
        with self.lock:
            self.done_calls.append(digest)
            if digest in self.rows and self.rows[digest][3] == checksum:
                del self.rows[digest]

    def count(self) -> int:
        with self.lock:
            return len(self.rows)

    def uploads(self, tier: RemoteTier) -> Uploads:
        return Uploads(tier, self.pending, self.done, self.count)


@pytest.fixture
def tier(tmp_path: Path) -> RemoteTier:
    return RemoteTier(f"memory://{tmp_path}/remote", timeout_s=5, retry_s=0.05)


@pytest.fixture
def blocks(tmp_path: Path) -> list[Local]:
    return [Local(tmp_path / "blocks", f"page {number}") for number in range(6)]


@pytest.fixture
def rows(blocks: list[Local]) -> Rows:
    rows = Rows()
    rows.add(*blocks)
    return rows


@contextmanager
def failing(release: threading.Event | None = None) -> Iterator[threading.Event]:
    """A remote that fails whatever it is asked, or is silent until ``release``; gives what says that it was asked."""
    asked = threading.Event()

    def fail(self: object, *arguments: object, **options: object) -> None:
        asked.set()
        if release is not None:
            release.wait(30)
        raise OSError("down")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("cat_file", "put_file", "pipe_file", "info", "rm_file"):
            patch.setattr(MemoryFileSystem, name, fail)
        try:
            yield asked
        finally:
            if release is not None:
                release.set()


def workers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "qvpic-uploads"]


def complete(tier: RemoteTier, blocks: list[Local]) -> bool:
    raw = Raw(tier.url)
    whole = sorted(name for block in blocks for name in (block.block, block.sidecar))
    return raw.names() == whole and all(raw.get(block.block) == block.path.read_bytes() for block in blocks)


def wait_until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_what_waits_is_uploaded(remote_url: str, rows: Rows, blocks: list[Local]) -> None:
    tier = RemoteTier(remote_url)
    work = rows.uploads(tier)
    assert not workers()
    work.wake()
    assert work.flush(30) == 0
    assert not workers()  # nothing waits, so nobody waits for it
    assert complete(tier, blocks)
    assert sorted(rows.done_calls) == sorted(block.digest for block in blocks)
    work.close()


def test_more_than_fits_in_a_batch(
    tier: RemoteTier, rows: Rows, blocks: list[Local], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "_BATCH", 2)
    assert rows.uploads(tier).flush(30) == 0
    assert complete(tier, blocks)


def test_another_object_goes_on_where_one_was_left(tier: RemoteTier, rows: Rows, blocks: list[Local]) -> None:
    release = threading.Event()
    first = rows.uploads(tier)
    with failing(release) as asked:
        first.wake()
        assert asked.wait(10)
        first.close(0)
    wait_until(lambda: not workers())
    assert rows.count() == len(blocks)
    assert rows.uploads(RemoteTier(tier.url)).flush(30) == 0
    assert complete(tier, blocks)


def test_a_remote_that_is_down_is_tried_again(
    tier: RemoteTier, rows: Rows, blocks: list[Local], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="qvpic_rag")
    work = rows.uploads(tier)
    with failing():
        assert work.flush(0.2) == len(blocks)
        assert len(workers()) == 1
    assert work.flush(30) == 0
    assert complete(tier, blocks)
    said = [(record.levelname, record.name) for record in caplog.records if "qvpic" in record.name]
    assert said == [("WARNING", "qvpic_rag.bank.remote"), ("INFO", "qvpic_rag.bank.remote")]


def test_a_remote_that_answers_with_failures_is_reported_once(
    tmp_path: Path, s3: S3Server, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    work = rows.uploads(RemoteTier("s3://no-such-bucket"))
    assert work.flush(1) == rows.count()
    work.close(10)
    said = [record.getMessage() for record in caplog.records if "qvpic" in record.name]
    assert len(said) == 1
    assert "make that bucket" in said[0]


def test_damaged_and_lost_files_are_passed_over(
    tier: RemoteTier,
    rows: Rows,
    blocks: list[Local],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(uploads, "_BATCH", 2)  # fewer than are damaged
    sound = {block.digest: block.path.read_bytes() for block in blocks}
    for block in blocks[:3]:
        block.path.write_bytes(b"damaged")
    blocks[3].path.unlink()
    work = rows.uploads(tier)
    assert work.flush(30) == 4
    assert not workers()
    assert complete(tier, blocks[4:])
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(said) == 3, "one that is gone was evicted, for all that this knows"
    assert all(str(block.path) in text for block, text in zip(blocks[:3], said, strict=True))

    for block in blocks[:4]:  # stored again
        block.path.write_bytes(sound[block.digest])
    assert work.flush(30) == 0
    assert complete(tier, blocks)


@pytest.mark.parametrize("name", ["pending", "done"])
def test_failures_of_the_bank_do_not_end_the_thread(
    name: str, tier: RemoteTier, rows: Rows, blocks: list[Local], caplog: pytest.LogCaptureFixture
) -> None:
    failures = iter(range(3))
    right: Any = getattr(rows, name)

    def wrong(*arguments: Any) -> Any:
        if next(failures, None) is not None:
            raise RuntimeError("the bank is locked")
        return right(*arguments)

    setattr(rows, name, wrong)
    assert rows.uploads(tier).flush(30) == 0
    assert complete(tier, blocks)
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["the bank is locked"] * 3


def test_a_row_that_changes_while_it_is_uploaded_is_uploaded_again(
    tmp_path: Path, tier: RemoteTier, rows: Rows, blocks: list[Local], monkeypatch: pytest.MonkeyPatch
) -> None:
    again = Local(tmp_path / "blocks", "page 0", seed=9)
    assert again.digest == blocks[0].digest
    upload = RemoteTier.upload
    changed: list[str] = []

    def change(self: RemoteTier, digest: str, *rest: Any) -> bool:
        told = upload(self, digest, *rest)
        if not changed:
            changed.append(digest)
            rows.add(again)
        return told

    monkeypatch.setattr(RemoteTier, "upload", change)
    assert rows.uploads(tier).flush(30) == 0
    assert complete(tier, [again, *blocks[1:]])


def test_waking_from_many_threads_forgets_nothing(tier: RemoteTier, blocks: list[Local]) -> None:
    rows = Rows()
    work = rows.uploads(tier)

    def store(block: Local) -> None:
        rows.add(block)
        work.wake()

    for _ in range(20):
        threads = [threading.Thread(target=store, args=(block,)) for block in blocks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_until(lambda: rows.count() == 0 and not workers())
    assert complete(tier, blocks)


def test_two_processes_upload_one_bank(tier: RemoteTier, rows: Rows, blocks: list[Local]) -> None:
    both = [rows.uploads(tier), rows.uploads(RemoteTier(tier.url))]
    for each in both:
        each.wake()
    assert [each.flush(30) for each in both] == [0, 0]
    assert complete(tier, blocks)


def test_closing_waits_no_longer_than_it_may(tier: RemoteTier, rows: Rows, blocks: list[Local]) -> None:
    release = threading.Event()
    work = rows.uploads(tier)
    work.close()  # nothing to stop
    work.close()
    work.wake()
    assert not workers()
    work = rows.uploads(tier)
    with failing(release) as asked:
        work.wake()
        assert asked.wait(10)
        begun = time.monotonic()
        work.close(0.1)
        assert work.flush(30) == len(blocks)
        assert time.monotonic() - begun < 3
    wait_until(lambda: not workers())
    work = rows.uploads(tier)
    with failing() as asked:
        work.wake()
        assert asked.wait(10)  # from now on it tries again and again
        work.close(30)
        assert not workers()
    assert work.flush(1) == len(blocks)


def test_a_silent_remote_does_not_hold_up_the_end_of_the_process(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs", reason="the extra s3 is not installed")
    row = rows.pending(1)[0]
    code = (
        "import sys; from pathlib import Path\n"
        "from qvpic_rag.bank.remote import RemoteTier; from qvpic_rag.bank.uploads import Uploads\n"
        "digest, path, nbytes, checksum = sys.argv[1:]\n"
        "row = digest, Path(path), int(nbytes), checksum\n"
        "work = Uploads(RemoteTier('s3://bucket', timeout_s=60), lambda limit: [row], print, lambda: 1)\n"
        "work.wake(); sys.stdin.readline(); print(work.flush(0.1), flush=True)\n"
    )
    with silent_server() as (url, asked):
        use_server(url, monkeypatch)
        command = [sys.executable, "-c", code, *map(str, row)]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:  # type: ignore[call-overload]
            assert asked.wait(30)
            output = process.communicate("go on\n", timeout=30)  # of the 60 seconds that an answer may take
        assert (process.returncode, *output) == (0, "1\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_uploads_when_it_wakes_a_thread(tmp_path: Path, rows: Rows, blocks: list[Local]) -> None:
    tier = RemoteTier(f"file://{tmp_path}/remote")
    release = threading.Event()

    def wait(limit: int) -> list[Waiting]:
        release.wait(30)
        return []

    stuck = Uploads(tier, wait, rows.done, rows.count)
    stuck.wake()
    stuck._changed.acquire()  # as another thread may at the time of the fork
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 2 if workers() else 3
            stuck._pending = rows.pending
            if stuck.flush(20) == 0:
                code = 0
            stuck.close()
        finally:
            os._exit(code)
    stuck._changed.release()
    release.set()
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert complete(tier, blocks)
    stuck.close(30)
    assert not workers()
