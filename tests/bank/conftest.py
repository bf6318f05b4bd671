"""A bank to use, and files found in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from qvpic_rag.bank import Bank
from tests.bank import samples


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Bank]:
    with Bank.create(tmp_path / "bank", samples.recipe()) as made:
        yield made


@pytest.fixture
def block_path(bank: Bank) -> Path:
    """The file of a stored block: page "one" at 72 DPI."""
    block = samples.block(bank, samples.page("one"))
    bank.put_block(block)
    digest = block.key.digest
    return bank.path / "blocks" / digest[:2] / f"{digest}.safetensors"
