"""Engines on the bundled reader and its documents."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qvpic_rag import QVPIC


@pytest.fixture
def open_rag(demo_bank: Path, tmp_path: Path) -> Iterator[Callable[..., QVPIC]]:
    """``open_rag(**options)``: an engine on this test's own copy of the demo bank."""
    copy = tmp_path / "copied-bank"
    shutil.copytree(demo_bank, copy)
    opened: list[QVPIC] = []

    def rag(**options: object) -> QVPIC:
        opened.append(QVPIC.open(copy, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield rag
    for each in opened:
        each.close()


@pytest.fixture(scope="module")
def rag(demo_bank: Path) -> Iterator[QVPIC]:
    """An engine on the shared demo bank, for tests that change nothing."""
    with QVPIC.open(demo_bank) as engine:
        yield engine
