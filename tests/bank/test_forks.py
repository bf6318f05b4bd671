"""Processes forked from one that uses a bank."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import pytest

from qvpic_rag.bank import Bank
from tests.bank import samples

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


def in_child(work: Callable[[], object], seconds: float = 20.0) -> int:
    """Exit status of a child that did this: 0, 1 where it raised, 9 where it hung."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return 9


def test_a_child_does_not_hang_on_what_threads_of_the_parent_held(bank: Bank) -> None:
    samples.put(bank, "a.txt", ["one"])
    wanted = samples.block(bank, samples.page("one"))
    stop = threading.Event()
    interval = sys.getswitchinterval()
    with Bank.open(bank.path, ram_bytes=10**6) as cached:

        def work() -> None:
            while not stop.is_set():
                cached.get_block(wanted.key)

        threads = [threading.Thread(target=work) for _ in range(3)]
        sys.setswitchinterval(1e-5)
        try:
            for thread in threads:
                thread.start()
            assert [in_child(lambda: cached.get_block(wanted.key), 5.0) for _ in range(12)] == [0] * 12
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            sys.setswitchinterval(interval)


def test_a_child_counts_for_itself(bank: Bank) -> None:
    samples.put(bank, "a.txt", ["one"])
    wanted = samples.block(bank, samples.page("one"))
    bank.get_block(wanted.key)

    def use() -> None:
        bank.get_block(wanted.key)
        bank.close()

    assert in_child(use) == 0
    assert bank.stats().counters == {"hits disk": 2, "written_blocks": 2}


def test_a_child_neither_ends_nor_prolongs_what_its_parent_holds(bank: Bank) -> None:
    digest = samples.block(bank, samples.page("one")).key.digest
    with Bank.open(bank.path) as other, bank.blocks.claims.made([digest]):
        assert in_child(bank.close) == 0
        assert other.blocks.claims.held([digest])
        idle = os.fork()
        if idle == 0:
            time.sleep(30)
            os._exit(0)
        try:
            bank.blocks.writers.close()  # as when the parent dies
            assert not other.blocks.claims.held([digest])
        finally:
            os.kill(idle, signal.SIGKILL)
            os.waitpid(idle, 0)


def test_a_child_writes_as_a_writer_of_its_own(bank: Bank) -> None:
    samples.put(bank, "a.txt", ["one"])
    own = bank.blocks.writers.id
    reader, writer = os.pipe()

    def put() -> None:
        bank.put_block(samples.block(bank, samples.page("two")))
        os.write(writer, bank.blocks.writers.id.encode())

    assert in_child(put) == 0
    os.close(writer)
    with os.fdopen(reader) as file:
        assert file.read() != own
    assert bank.blocks.writers.alive(own)
    assert bank.has_block(samples.block(bank, samples.page("two")).key)
