"""Several processes on one bank, and processes killed with SIGKILL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qvpic_rag.bank import Bank
from tests.bank import samples

ROOT = Path(__file__).parents[2]


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.bank.worker", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes)  # type: ignore[call-overload,no-any-return]


def finish(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output


def test_two_writers_and_a_reader_share_a_bank(tmp_path: Path) -> None:
    path = tmp_path / "bank"
    writers = [start("write", path, seed, 12) for seed in (1, 2)]
    with Bank.create(path, samples.recipe()) as bank:
        while any(writer.poll() is None for writer in writers):
            generation = bank.generation
            ids, vectors = bank.vectors()
            assert len(ids) == len(vectors)
            for entry in bank.pages(ids.tolist()):  # a visible page has its blocks, whole ones
                found = bank.get_block(samples.block(bank, entry.page).key)
                assert any(samples.same(found, samples.block(bank, entry.page, seed=seed)) for seed in (1, 2))
            assert bank.generation >= generation
        for writer in writers:
            finish(writer)
        assert bank.generation >= 24
        assert [entry.source for entry in sorted(bank.documents(), key=lambda d: int(d.source[:-4]))] == [
            f"{n}.txt" for n in range(12)
        ]
        assert bank.page_count() == 13
        assert bank.stats().blocks == {72: 13, 120: 13}
        assert bank.verify(grace_s=0) == []
        assert bank.gc(grace_s=0).bytes == 0


def test_several_processes_make_one_bank(tmp_path: Path) -> None:
    finish(start("create", tmp_path, 15, 4))


def test_a_writer_killed_at_any_step_loses_nothing_acknowledged(tmp_path: Path) -> None:
    figures = json.loads(finish(start("kill", tmp_path, 15)))
    assert figures["steps"] > 40
    assert figures["middle"] >= 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_uses_a_connection_of_its_own(bank: Bank) -> None:
    samples.put(bank, "a.txt", ["one"])
    pages, vectors = samples.document("b.txt", ["two"])
    child = os.fork()
    if child == 0:
        code = 1
        try:
            bank.put_document("b.txt", "d", pages, vectors, {})
            code = 0 if bank.page_count() == 2 else 2
            bank.close()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert bank.page_count() == 2
    bank.remove_document("b.txt")
    assert bank.verify(grace_s=0) == []
