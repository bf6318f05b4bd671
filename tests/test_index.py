"""The page index against brute force; its file against damage."""

from __future__ import annotations

import hashlib
import struct
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qvpic_rag.errors import BankError, ConfigError, InputError
from qvpic_rag.index import PageIndex


def unit(rng: np.random.Generator, count: int, dimension: int) -> np.ndarray:
    vectors = rng.standard_normal((count, dimension)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def filled(count: int = 50, dimension: int = 8) -> tuple[PageIndex, np.ndarray]:
    vectors = unit(np.random.default_rng(0), count, dimension)
    index = PageIndex(dimension)
    index.add(np.arange(count) + 2**40, vectors)
    return index, vectors


def found(index: PageIndex, vector: np.ndarray, k: int) -> list[int]:
    return index.search(vector, k)[0].tolist()


def test_search_is_exact_and_descending() -> None:
    index, vectors = filled()
    query = unit(np.random.default_rng(1), 1, 8)[0]
    ids, scores = index.search(query, 7)
    assert ids.tolist() == (np.argsort(-(vectors @ query))[:7] + 2**40).tolist()
    np.testing.assert_allclose(scores, np.sort(vectors @ query)[::-1][:7], atol=1e-6)
    assert (ids.dtype, scores.dtype) == (np.int64, np.float32)


def test_more_pages_than_there_are_gives_all_and_none_gives_none() -> None:
    index, vectors = filled(3)
    assert len(found(index, vectors[0], 100)) == 3
    assert found(index, vectors[0], 0) == []
    assert found(PageIndex(8), vectors[0], 5) == []


def test_adding_an_id_again_replaces_it_and_removing_forgets_it() -> None:
    index, vectors = filled(5)
    index.add([2**40, 7], vectors[[4, 0]])
    assert len(index) == 6
    assert found(index, vectors[0], 1) == [7]
    assert set(found(index, vectors[4], 2)) == {2**40, 2**40 + 4}
    index.remove([7, 12345])
    index.remove([])
    assert len(index) == 5
    assert 7 not in found(index, vectors[0], 10)
    index.add([], np.empty((0, 8), np.float32))
    assert len(index) == 5


@given(st.permutations(range(24)), st.integers(1, 24))
def test_equal_scores_come_by_id_whatever_the_order_of_adding(order: list[int], k: int) -> None:
    vectors = np.eye(4, dtype=np.float32)[[0] * 12 + [1] * 8 + [2] * 4]
    index = PageIndex(4)
    for page in order:
        index.add([page], vectors[[page]])
    query = np.asarray([0.9, 0.4, 0.0, 0.0], np.float32)
    assert found(index, query, k) == list(range(k))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=40))
def test_any_history_equals_a_dictionary(history: list[tuple[bool, int]]) -> None:
    rng = np.random.default_rng(0)
    index, kept = PageIndex(5), {}
    for adding, page in history:
        if adding:
            kept[page] = unit(rng, 1, 5)
            index.add([page], kept[page])
        else:
            kept.pop(page, None)
            index.remove([page])
    assert len(index) == len(kept)
    for page, vector in kept.items():
        assert found(index, vector[0], 1) == [page]


@pytest.mark.parametrize(
    ("ids", "vectors", "message"),
    [
        ([1], np.ones((1, 7), np.float32), "must have 8 numbers each"),
        ([1], np.ones(8, np.float32), "must have 8 numbers each"),
        ([1], np.ones((1, 8), np.float64), "must be float32"),
        ([1], np.full((1, 8), np.nan, np.float32), "NaN or infinity"),
        ([1], np.full((1, 8), np.inf, np.float32), "NaN or infinity"),
        ([1, 2], np.ones((1, 8), np.float32), "one id per vector"),
        ([1, 1], np.ones((2, 8), np.float32), "given twice"),
        ([-1], np.ones((1, 8), np.float32), "negative"),
        ([1.5], np.ones((1, 8), np.float32), "64-bit integers"),
        (["a"], np.ones((1, 8), np.float32), "64-bit integers"),
    ],
)
def test_wrong_input_is_refused_and_stores_nothing(ids: list[int], vectors: np.ndarray, message: str) -> None:
    index = PageIndex(8)
    with pytest.raises(InputError, match=message):
        index.add(ids, vectors)
    assert len(index) == 0


def test_wrong_queries_and_dimensions_are_refused() -> None:
    index, vectors = filled()
    with pytest.raises(InputError, match="8 numbers"):
        index.search(vectors[0][:5], 3)
    with pytest.raises(InputError, match="NaN"):
        index.search(np.full(8, np.nan, np.float32), 3)
    with pytest.raises(InputError, match="at least 0"):
        index.search(vectors[0], -1)
    for dimension in (0, -3, True, 2.0):
        with pytest.raises(ConfigError, match="dimension"):
            PageIndex(dimension)  # type: ignore[arg-type]


def test_saving_and_loading_keeps_everything(tmp_path: Path) -> None:
    index, vectors = filled()
    index.remove([2**40 + 3])
    index.save(tmp_path / "pages.index", 17)
    loaded, generation = PageIndex.load(tmp_path / "pages.index")
    assert generation == 17
    assert (len(loaded), loaded.dimension) == (49, 8)
    for vector in vectors[:5]:
        np.testing.assert_array_equal(loaded.search(vector, 49), index.search(vector, 49))
    loaded.add([1], vectors[:1])
    PageIndex(8).save(tmp_path / "pages.index", 0)
    assert len(PageIndex.load(tmp_path / "pages.index")[0]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["pages.index"]
    with pytest.raises(InputError, match="generation"):
        index.save(tmp_path / "pages.index", -1)


def test_golden_bytes_whatever_the_order_of_adding(tmp_path: Path) -> None:
    vectors = np.asarray([[1, 0], [0, 1], [0.5, -0.25]], np.float32)
    fields = struct.pack("<8sIIQQ", b"QVPICIDX", 1, 2, 3, 9)  # magic, version, dimension, vectors, generation
    body = struct.pack("<3q", 3, 5, 1 << 40) + struct.pack("<6f", 1, 0, 0.5, -0.25, 0, 1)
    for order in ([0, 1, 2], [2, 0, 1]):
        index = PageIndex(2)
        index.add(np.asarray([3, 1 << 40, 5])[order], vectors[order])
        index.save(tmp_path / "i", 9)
        assert (tmp_path / "i").read_bytes() == fields + hashlib.sha256(fields + body).digest() + body


def test_every_flipped_bit_and_every_truncation_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "i"
    filled(2, 3)[0].save(path, 1)
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(BankError, match="rebuild it from the bank"):
            PageIndex.load(path)
        path.write_bytes(data[:place])
        with pytest.raises(BankError, match="rebuild it from the bank"):
            PageIndex.load(path)
    path.unlink()
    with pytest.raises(BankError, match="rebuild it from the bank"):
        PageIndex.load(path)


def test_a_failed_save_keeps_the_old_file_and_leaves_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "i"
    filled(2)[0].save(path, 1)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(BankError, match=r"No space left on device.*free space"):
        filled(3)[0].save(path, 2)
    monkeypatch.undo()
    assert [item.name for item in tmp_path.iterdir()] == ["i"]
    assert PageIndex.load(path)[1] == 1
    with pytest.raises(BankError, match="cannot be written"):
        filled(3)[0].save(tmp_path / "missing" / "i", 2)


def test_searching_while_others_add_and_remove() -> None:
    index, vectors = filled(200)
    failures: list[BaseException] = []

    def change() -> None:
        for _ in range(50):
            index.add(np.arange(20), vectors[:20])
            index.remove(np.arange(20))

    def ask() -> None:
        try:
            for vector in vectors[50:150]:
                ids, scores = index.search(vector, 5)
                assert len(ids) == 5
                assert (np.diff(scores) <= 0).all()
                assert int(ids[0]) >= 2**40
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work) for work in (change, ask, ask)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(index) == 200
