"""Run in processes of their own by test_processes.py: writers at work beside others, and writers killed on the way."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import xxhash

from qvpic_rag.bank import Bank, blockfile, index_db
from tests.bank import samples

KEPT, REPLACED = ["kept", "shared"], ["shared", "new"]


def write_documents(path: str, seed: int, count: int) -> None:
    """Store documents that overlap with the other writer's; the blocks' numbers are this writer's own."""
    with Bank.create(path, samples.recipe()) as bank:
        for number in range(count):
            source = f"{number}.txt"
            pages, vectors = samples.document(source, [f"page {number}", "shared"])
            for page in pages:
                for dpi in bank.recipe.dpis:
                    block = samples.block(bank, page, dpi, seed=seed)
                    if not bank.has_block(block.key):
                        bank.put_block(block)
                    bank.get_block(block.key)
            bank.put_document(source, "digest", pages, vectors, {"writer": seed})
            assert bank.page_count() > number
            if number % 4 == 3:
                bank.gc()


def create_at_once(folder: Path, rounds: int, makers: int) -> None:
    """Several processes make one bank at the same moment."""
    for turn in range(rounds):
        reader, writer = os.pipe()
        children = []
        for _ in range(makers):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    os.close(writer)
                    os.read(reader, 1)  # returns when the parent closes its end
                    assert Bank.recipe_at(folder / str(turn)) in (None, samples.recipe())
                    Bank.create(folder / str(turn), samples.recipe()).close()
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            children.append(pid)
        os.close(reader)
        os.close(writer)
        statuses = [os.waitpid(pid, 0)[1] for pid in children]
        assert statuses == [0] * makers
        with Bank.open(folder / str(turn)) as bank:
            assert bank.verify(grace_s=0) == []


def _count_events(event: Callable[[], None]) -> None:
    """Call ``event`` before every step that changes something on the disk."""
    fsync, replace, connect = os.fsync, os.replace, index_db._connect

    class Hasher:
        def __init__(self) -> None:
            self.inner = xxhash.xxh3_128()
            self.hexdigest = self.inner.hexdigest

        def update(self, piece: memoryview) -> None:  # comes before each piece that is written
            event()
            self.inner.update(piece)

    def connected(file: Path, options: str):
        connection = connect(file, options)
        connection.set_trace_callback(lambda statement: event())
        return connection

    class Module:
        xxh3_128 = Hasher

    blockfile._CHUNK = 64
    blockfile.xxhash = Module  # type: ignore[attr-defined]
    os.fsync = lambda descriptor: (event(), fsync(descriptor))[1]
    os.replace = lambda source, target: (event(), replace(source, target))[1]
    index_db._connect = connected


def _replace_document(path: str, acknowledge: Callable[[str], None]) -> None:
    with Bank.create(path, samples.recipe()) as bank:
        pages, vectors = samples.document("a.txt", REPLACED)
        for page in pages:
            block = samples.block(bank, page)
            bank.put_block(block)
            acknowledge(block.key.digest)
        bank.put_document("a.txt", "new", pages, vectors, {})
        acknowledge("document")


def _in_child(work: Callable[[Callable[[str], None]], None], after: Callable[[int], None]) -> tuple[list[str], bool]:
    """Fork, work, and kill: what the child acknowledged before it died, and whether it was killed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        code = 1
        try:
            work(lambda word: os.write(writer, f"{word}\n".encode()) and None)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    after(pid)
    _, status = os.waitpid(pid, 0)
    with os.fdopen(reader) as file:
        acknowledged = file.read().split()
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or status == 0, f"the writer failed with status {status}"
    return acknowledged, killed


def _check(path: Path, acknowledged: list[str]) -> None:
    """Nothing acknowledged is lost and nothing is half there."""
    with Bank.open(path) as bank:
        texts = [entry.page.lines[0] for entry in bank.pages(bank.vectors()[0])]
        old, new = set(KEPT), set(REPLACED)
        assert set(texts) in (old, new), texts
        assert "document" not in acknowledged or set(texts) == new
        for text in {*KEPT, *REPLACED}:
            block = samples.block(bank, samples.page(text))
            if bank.has_block(block.key):
                assert samples.same(bank.get_block(block.key), block)
            else:
                assert text == "new"
                assert block.key.digest not in acknowledged
        assert bank.verify() == []


def _finish(path: Path) -> None:
    """The next run completes the rest, and gc cleans up."""
    _replace_document(str(path), lambda word: None)
    with Bank.open(path) as bank:
        bank.gc(grace_s=0)
        assert bank.verify(grace_s=0) == []
        assert bank.stats().blocks == {72: 2}
        assert {entry.page.lines[0] for entry in bank.pages(bank.vectors()[0])} == set(REPLACED)
    assert len([file for file in (path / "blocks").rglob("*") if file.is_file()]) == 2
    assert sorted(file.name for file in path.iterdir()) == ["bank.sqlite", "blocks", "index", "writers"]


def _prepare(path: Path) -> None:
    with Bank.create(path, samples.recipe()) as bank:
        pages, vectors = samples.document("a.txt", KEPT)
        for page in pages:
            bank.put_block(samples.block(bank, page))
        bank.put_document("a.txt", "old", pages, vectors, {})


def kill_at_every_step(folder: Path) -> int:
    """Kill a writer before its first, second, third ... step until one survives; returns the number of steps."""
    step = 0
    while True:
        step += 1
        path = folder / f"bank{step}"
        _prepare(path)

        def work(acknowledge: Callable[[str], None], step: int = step, path: Path = path) -> None:
            left = step

            def event() -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

            _count_events(event)
            _replace_document(str(path), acknowledge)

        acknowledged, killed = _in_child(work, lambda pid: None)
        _check(path, acknowledged)
        _finish(path)
        if not killed:
            return step - 1


def kill_at_random(folder: Path, rounds: int) -> int:
    """Kill a writer after random times; returns how many were killed in the middle of their work."""
    dice = random.Random(11)
    middle = 0
    for turn in range(rounds):
        path = folder / f"random{turn}"
        _prepare(path)

        def after(pid: int) -> None:
            time.sleep(dice.random() * 0.03)
            os.kill(pid, signal.SIGKILL)

        def work(acknowledge: Callable[[str], None], path: Path = path) -> None:
            _replace_document(str(path), acknowledge)
            time.sleep(10)

        acknowledged, _ = _in_child(work, after)
        middle += len(acknowledged) < 3
        _check(path, acknowledged)
        _finish(path)
    return middle


def main(mode: str, path: str, *numbers: str) -> None:
    if mode == "write":
        write_documents(path, *map(int, numbers))
    elif mode == "create":
        create_at_once(Path(path), *map(int, numbers))
    else:
        steps, middle = kill_at_every_step(Path(path)), kill_at_random(Path(path), *map(int, numbers))
        sys.stdout.write(json.dumps({"steps": steps, "middle": middle}))


if __name__ == "__main__":
    main(*sys.argv[1:])
