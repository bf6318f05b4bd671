"""Run in a process of its own by test_archive.py: imports killed with SIGKILL at their steps, and run again."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from qvpic_rag.bank import Bank, import_archive
from tests.bank import archives
from tests.bank.worker import _count_events, _in_child

STRIDE = 31
"""Every so many steps one is killed before; a prime, so that loops are cut at different places."""


def kill_imports(folder: Path) -> int:
    archive = archives.sample_archive(folder)
    with Bank.open(folder / "origin") as origin:
        expected = archives.content(origin)
    step, killed = 1, True
    while killed:
        path = folder / f"there{step}"

        def work(acknowledge: object, step: int = step, path: Path = path) -> None:
            left = step

            def event() -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

            _count_events(event)
            import_archive(archive, path)

        _, killed = _in_child(work, lambda pid: None)
        if (path / "bank.sqlite").exists() and Bank.recipe_at(path) is not None:
            with Bank.open(path) as bank:  # what is visible is whole
                found = archives.content(bank)
                assert found == {source: expected[source] for source in found}
                assert bank.verify() == []
        report = import_archive(archive, path)
        assert len(report.added) + len(report.unchanged) == 2
        with Bank.open(path) as bank:
            assert archives.content(bank) == expected
            bank.gc(grace_s=0)
            assert bank.verify(grace_s=0) == []
        assert len([file for file in (path / "blocks").rglob("*") if file.is_file()]) == 6
        step += STRIDE
    return (step - 1) // STRIDE


if __name__ == "__main__":
    sys.stdout.write(str(kill_imports(Path(sys.argv[1]))))
