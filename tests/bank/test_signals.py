"""Files of page signals: what comes back, what counts as missing, and what garbage collection removes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qvpic_rag.bank import Bank
from qvpic_rag.bank.signals import SignalFiles, halved
from qvpic_rag.errors import BankError
from qvpic_rag.records import Signals
from tests.bank import samples
from tests.bank.test_upkeep import NOTHING

PAGE = samples.page("one")


def signals(terms: int = 5, tokens: int = 7) -> Signals:
    random = np.random.default_rng(terms)
    vectors = random.standard_normal((tokens, 4)).astype(np.float32)
    weights = random.random(terms).astype(np.float32)
    return Signals(np.arange(terms), weights, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


@pytest.fixture
def files(bank: Bank) -> SignalFiles:
    return SignalFiles(bank.index_path, "e" * 64)


@pytest.mark.parametrize("terms", [0, 5])
def test_what_was_put_comes_back_in_half_precision(files: SignalFiles, terms: int) -> None:
    name, made = files.name(PAGE.digest, PAGE.text), signals(terms)
    assert files.get(name) is None
    assert files.names() == set()
    files.put(name, made)
    found = files.get(name)
    assert found is not None
    np.testing.assert_array_equal(found.token_ids, made.token_ids)
    np.testing.assert_array_equal(found.weights, made.weights)
    np.testing.assert_array_equal(found.vectors, halved(made).vectors)
    assert found.vectors.dtype == np.float16
    assert files.names() == {name}
    assert [path.name for path in files.folder.parent.iterdir()] == [files.folder.name], "no temporary file is left"
    files.remove(name)
    files.remove(name)
    assert files.get(name) is None


def test_a_name_depends_on_page_text_and_embedder(bank: Bank, files: SignalFiles) -> None:
    names = {
        files.name(PAGE.digest, PAGE.text),
        files.name(PAGE.digest, "other"),
        files.name("0" * 64, PAGE.text),
        SignalFiles(bank.index_path, "f" * 64).name(PAGE.digest, PAGE.text),
    }
    assert len(names) == 4
    assert files.name(PAGE.digest, "half a pair \ud800")


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "swap"])
def test_a_damaged_file_counts_as_missing(files: SignalFiles, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    name, other = files.name(PAGE.digest, PAGE.text), files.name(PAGE.digest, "other")
    files.put(name, signals())
    files.put(other, signals(3))
    path = files.folder / name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(
        {
            "flip": bytes(data),
            "cut": path.read_bytes()[:-1],
            "empty": b"",
            "swap": (files.folder / other).read_bytes(),
        }[damage]
    )
    with caplog.at_level(logging.WARNING):
        assert files.get(name) is None
    assert "damaged" in caplog.text
    files.put(name, signals())
    assert files.get(name) is not None


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_file_is_told_and_not_opened(
    files: SignalFiles, make: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    name, other = files.name(PAGE.digest, PAGE.text), files.name(PAGE.digest, "other")
    assert not files.blocked(name)
    files.put(other, signals())
    assert not files.blocked(other)
    make(files.folder / name)
    assert files.blocked(name)
    assert files.get(name) is None
    assert f"{files.folder / name}, where their file belongs, is none: move it away" in caplog.text
    assert files.names() == {other}


def test_names_are_those_of_our_own_files(files: SignalFiles) -> None:
    name = files.name(PAGE.digest, PAGE.text)
    files.put(name, signals())
    for foreign in ("README", f"{name}.bak", f".{name}", name.upper(), name[1:]):
        (files.folder / foreign).write_text("not ours")
    (files.folder / "folder").mkdir()
    assert files.names() == {name}


def test_gc_lets_be_what_is_not_ours(bank: Bank, files: SignalFiles) -> None:
    [one] = samples.put(bank, "a.txt", ["one"])
    files.put(files.name(one.digest, one.text), signals())
    (files.folder / "README").write_text("not ours")
    (files.folder / files.name("0" * 64, "gone")).mkdir()
    bank.remove_document("a.txt")
    assert bank.gc().orphans == 1
    assert len(list(files.folder.iterdir())) == 2


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "index").write_text("a file where the folder should be")
    with pytest.raises(BankError, match=r"\.$"):
        SignalFiles(tmp_path / "index" / "x.faiss", "").put("0" * 64, signals())


def test_gc_removes_signals_of_pages_that_are_gone(bank: Bank, files: SignalFiles) -> None:
    one, two = samples.put(bank, "a.txt", ["one", "two"])
    samples.put(bank, "b.txt", ["two"])
    with Bank.open(bank.path, "other") as other:
        samples.put(other, "a.txt", ["one"])
        others = SignalFiles(other.index_path, "e" * 64)
        others.put(others.name(one.digest, one.text), signals())
    for page in (one, two):
        files.put(files.name(page.digest, page.text), signals())
    assert bank.gc() == NOTHING
    bank.remove_document("a.txt")
    size = (files.folder / files.name(one.digest, one.text)).stat().st_size
    dry = bank.gc(dry_run=True)
    assert dry == replace(NOTHING, orphans=1, bytes=size, dry_run=True)
    assert bank.gc() == replace(dry, dry_run=False)
    assert files.names() == {files.name(two.digest, two.text)}
    assert len(others.names()) == 1
    assert bank.verify(grace_s=0) == []


def test_tokens_of_a_block_come_from_its_header(bank: Bank) -> None:
    block = samples.block(bank, PAGE, shape=(2, 2, 60, 4))
    assert bank.blocks.tokens(block.key) is None
    bank.put_block(block)
    assert bank.blocks.tokens(block.key) == 60
    path = bank.blocks.files.path(block.key.digest)
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    assert bank.blocks.tokens(block.key) is None, "a damaged header says nothing"
    path.unlink()
    assert bank.blocks.tokens(block.key) is None
