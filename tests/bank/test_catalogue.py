"""Documents, pages, links and ids."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qvpic_rag.bank import Bank, StoredDocument, StoredPage
from qvpic_rag.errors import BankError, BankMismatchError, ConfigError, DocumentError, MissingBlockError
from tests.bank import samples


def ids_of(bank: Bank) -> dict[str, int]:
    """First line of each page -> id."""
    ids, _ = bank.vectors()
    return {entry.page.lines[0]: entry.id for entry in bank.pages(ids.tolist())}


def test_a_document_comes_back(bank: Bank) -> None:
    pages = samples.put(bank, "a.txt", ["one", "two"])
    assert bank.documents() == [StoredDocument("a.txt", "digest of one|two", 2, {"n": 2})]
    assert bank.document_digest("a.txt") == "digest of one|two"
    assert bank.document_digest("b.txt") is None
    assert bank.page_count() == 2
    ids, vectors = bank.vectors()
    assert ids.dtype == np.int64
    assert vectors.dtype == np.float32
    assert np.array_equal(vectors, samples.document("a.txt", ["one", "two"])[1])
    backwards = bank.pages(ids[::-1].tolist())
    assert backwards == [StoredPage(int(ids[1]), pages[1]), StoredPage(int(ids[0]), pages[0])]
    assert bank.pages([int(ids[0]), 999, int(ids[0])]) == [backwards[1], backwards[1]]
    assert bank.pages([]) == []
    assert bank.pages(ids) == backwards[::-1]


def test_a_page_is_found_by_its_digest(bank: Bank) -> None:
    pages = samples.put(bank, "a.txt", ["one", "two"], blocks=False)
    assert bank.find_page(pages[1].digest) == pages[1]
    assert [bank.find_page(digest) for digest in ("", "0" * 64, "%", "\ud800")] == [None] * 4
    with Bank.open(bank.path, "other") as other:
        assert other.find_page(pages[1].digest) is None


def test_many_ids_are_looked_up(bank: Bank) -> None:
    samples.put(bank, "a.txt", [f"line {number}" for number in range(1203)], blocks=False)
    ids, _ = bank.vectors()
    assert [entry.page.number for entry in bank.pages(ids.tolist())] == list(range(1203))


def test_an_empty_document_and_an_empty_bank(bank: Bank) -> None:
    ids, vectors = bank.vectors()
    assert (ids.shape, vectors.shape, bank.page_count(), bank.generation) == ((0,), (0, samples.DIMENSION), 0, 0)
    bank.put_document("empty.txt", "d", [], np.zeros((0, samples.DIMENSION), np.float32), {})
    bank.put_document("empty2.txt", "d", [], [], {})
    assert [entry.pages for entry in bank.documents()] == [0, 0]


def test_ids_are_stable_and_never_used_again(bank: Bank) -> None:
    samples.put(bank, "a.txt", ["one", "two"])
    samples.put(bank, "b.txt", ["three"])
    before = ids_of(bank)
    assert bank.remove_document("a.txt")
    assert ids_of(bank) == {"three": before["three"]}
    samples.put(bank, "a.txt", ["one", "four"])
    after = ids_of(bank)
    assert after["three"] == before["three"]
    assert {after["one"], after["four"]}.isdisjoint(before.values())
    assert bank.remove_document("a.txt")
    assert bank.remove_document("b.txt")
    assert not bank.remove_document("b.txt")
    samples.put(bank, "c.txt", ["five"])
    assert min(ids_of(bank).values()) > max(after.values())


def test_a_replaced_document_keeps_the_pages_it_still_has(bank: Bank) -> None:
    samples.put(bank, "a.txt", ["one", "two", "three"])
    before = ids_of(bank)
    samples.put(bank, "a.txt", ["zero", "three", "one"])
    after = ids_of(bank)
    assert sorted(after) == ["one", "three", "zero"]
    assert (after["one"], after["three"]) == (before["one"], before["three"])
    assert [entry.page.number for entry in bank.pages([after["zero"], after["three"], after["one"]])] == [0, 1, 2]
    assert len(bank.documents()) == 1


def test_a_shared_page_belongs_to_the_first_document_until_that_goes(bank: Bank) -> None:
    samples.put(bank, "a.txt", ["one", "shared", "shared"])
    samples.put(bank, "b.txt", ["shared", "two"])
    ids = ids_of(bank)
    assert bank.page_count() == 3
    assert bank.stats().blocks == {72: 3, 120: 3}
    assert [(p.page.source, p.page.number) for p in bank.pages([ids["shared"], ids["two"]])] == [
        ("a.txt", 1),
        ("b.txt", 1),
    ]
    assert [entry.pages for entry in bank.documents()] == [3, 2]
    bank.remove_document("a.txt")
    assert sorted(ids_of(bank)) == ["shared", "two"]
    (shared,) = bank.pages([ids["shared"]])
    assert (shared.page.source, shared.page.number) == ("b.txt", 0)
    assert bank.gc(grace_s=0).blocks == 2
    assert samples.same(bank.get_block(samples.block(bank, shared.page).key), samples.block(bank, shared.page))


def test_the_generation_grows_with_every_change_and_only_then(bank: Bank) -> None:
    seen = [bank.generation]
    samples.put(bank, "a.txt", ["one"])
    seen.append(bank.generation)
    samples.put(bank, "a.txt", ["two"])
    seen.append(bank.generation)
    bank.remove_document("a.txt")
    seen.append(bank.generation)
    assert seen == sorted(set(seen))
    bank.remove_document("a.txt")
    bank.stats(), bank.verify(), bank.gc(grace_s=0), bank.vectors()
    assert bank.generation == seen[-1]


def test_generations_of_different_histories_do_not_meet(bank: Bank, tmp_path: Path) -> None:
    samples.put(bank, "a.txt", ["one"], blocks=False)
    bank.close()
    copy = shutil.copytree(bank.path, tmp_path / "copy")
    with Bank.open(bank.path) as left, Bank.open(copy) as right:
        assert left.generation == right.generation
        seen: dict[Bank, set[int]] = {left: set(), right: set()}
        for number in range(20):
            for each, numbers in seen.items():
                samples.put(each, f"{number}.txt", [f"{each.path.name} {number}"], blocks=False)
                assert each.generation > max(numbers, default=0)
                numbers.add(each.generation)
        assert seen[left].isdisjoint(seen[right])


@pytest.mark.parametrize("value", [-1, 2.5, "x", b"\0", 2**63 - 1])
def test_a_damaged_generation_is_told(bank: Bank, value: object) -> None:
    samples.put(bank, "a.txt", ["one"], blocks=False)
    with bank._database.write() as connection:
        connection.execute("UPDATE namespaces SET generation = ?", (value,))
    if value == 2**63 - 1:
        samples.put(bank, "a.txt", ["two"], blocks=False)  # it can grow no more
    for call in (lambda: bank.generation, bank.stats):
        with pytest.raises(BankError, match="is damaged: restore it from a backup"):
            call()
    assert [problem.kind for problem in bank.verify()] == ["database"]


@pytest.mark.parametrize("lines", ['["other", "end"]', "[]", "{", '["one", 3]', "null"])
def test_a_damaged_page_is_never_used(bank: Bank, lines: str) -> None:
    (page, _) = samples.put(bank, "a.txt", ["one", "two"], blocks=False)
    ids = bank.vectors()[0].tolist()
    with bank._database.write() as connection:
        connection.execute("UPDATE pages SET lines = ? WHERE digest = ?", (lines, page.digest))
    for call in (
        lambda: bank.pages(ids),
        lambda: bank.document_pages("a.txt"),
        lambda: bank.find_page(page.digest),
    ):
        with pytest.raises(BankError, match=r"Page 0 of 'a.txt' in the bank at .* is damaged: ingest it again after"):
            call()
    assert [entry.page.lines[0] for entry in bank.pages(ids[1:])] == ["two"]


def test_a_failed_put_document_changes_nothing(bank: Bank) -> None:
    samples.put(bank, "a.txt", ["one"])
    generation = bank.generation
    pages, vectors = samples.document("a.txt", ["two", "three"])
    cases = [
        (pages, vectors[:1], {}, DocumentError, "one embedding per page"),
        (pages, vectors[0], {}, DocumentError, "one embedding per page"),
        (pages, vectors * np.inf, {}, DocumentError, "not finite"),
        ([pages[0], pages[0]], vectors, {}, DocumentError, "same number"),
        (pages, vectors, {"x": object()}, DocumentError, "metadata"),
        (pages, vectors, {"x": float("nan")}, DocumentError, "metadata"),
        (pages, vectors[:, :3], {}, BankMismatchError, "3 numbers and the bank's have 8"),
    ]
    for bad_pages, bad_vectors, metadata, error, text in cases:
        with pytest.raises(error, match=text):
            bank.put_document("a.txt", "new", bad_pages, bad_vectors, metadata)
    with pytest.raises(BankError):  # a number SQLite cannot hold, found in the middle of the transaction
        bank.put_document("a.txt", "new", [pages[0], replace(pages[1], lines=("x",), number=None)], vectors, {})  # type: ignore[arg-type]
    assert bank.document_digest("a.txt") == "digest of one"
    assert list(ids_of(bank)) == ["one"]
    assert bank.generation == generation


@settings(max_examples=12, deadline=None)
@given(
    names=st.lists(st.text(st.characters(), min_size=0, max_size=30), min_size=1, max_size=3, unique=True),
    text=st.text(st.characters(), max_size=40),
    namespace=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
)
def test_any_name_and_text_is_kept_and_reaches_no_path(tmp_path_factory, names, text, namespace) -> None:
    folder = tmp_path_factory.getbasetemp() / "names"
    nasty = {*names, "../../x", "a'; DROP TABLE pages; --", "caf\udce9.txt", "nul\0name", "%s?{}", ""}
    with Bank.create(folder, samples.recipe(), namespace) as bank:
        for name in nasty:
            pages, vectors = samples.document(name, [repr((name, text)), name, text])
            bank.put_block(samples.block(bank, pages[1]))
            bank.put_document(name, text.encode("utf-8", "replace").hex(), pages, vectors, {name: text})
            assert pages[0] in [entry.page for entry in bank.pages(bank.vectors()[0])]
            assert bank.has_block(samples.block(bank, pages[1]).key)
        assert {entry.source for entry in bank.documents()} >= nasty
        assert {tuple(entry.metadata.items()) for entry in bank.documents()} >= {((name, text),) for name in nasty}
        for name in nasty:
            assert bank.remove_document(name)
        assert bank.page_count() == 0
    assert {path.name for path in folder.iterdir()} == {"bank.sqlite", "index", "blocks", "writers"}
    assert all(len(path.name) == 2 for path in (folder / "blocks").iterdir())


def test_namespaces_see_nothing_of_each_other(bank: Bank, tmp_path: Path) -> None:
    samples.put(bank, "a.txt", ["one"])
    own, own_generation = samples.block(bank, samples.page("one")), bank.generation
    with Bank.open(bank.path, "other") as other:
        assert (other.documents(), other.page_count(), other.generation) == ([], 0, 0)
        assert other.pages(bank.vectors()[0]) == []
        assert other.stats().blocks == {}
        assert not other.has_block(own.key)
        for call in (lambda: other.get_block(own.key), lambda: other.put_block(own)):
            with pytest.raises(BankMismatchError) as caught:
                call()
            assert caught.value.field == "namespace"
        assert not other.remove_document("a.txt")
        samples.put(other, "a.txt", ["one", "two"])
        assert other.index_path != bank.index_path
        assert other.index_path.parent.is_dir()
        other.remove_document("a.txt")
    assert [entry.source for entry in bank.documents()] == ["a.txt"]
    assert bank.generation == own_generation
    for bad in ("", "x" * 256, "\ud800", None, 3):
        with pytest.raises(ConfigError, match="namespace"):
            Bank.open(bank.path, bad)  # type: ignore[arg-type]


def test_one_object_serves_many_threads(bank: Bank) -> None:
    errors: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            for turn in range(4):
                source = f"{worker}-{turn}.txt"
                samples.put(bank, source, ["shared", source])
                block = samples.block(bank, samples.page("shared"))
                assert samples.same(bank.get_block(block.key), block)
                assert bank.pages(bank.vectors()[0])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert (len(bank.documents()), bank.page_count()) == (16, 17)
    assert bank.verify(grace_s=0) == []


def test_blocks_missing_wrong_and_kept(bank: Bank) -> None:
    block = samples.block(bank, samples.page("one"))
    assert not bank.has_block(block.key)
    with pytest.raises(MissingBlockError, match="is not in the bank"):
        bank.get_block(block.key)
    bank.put_block(block)
    path = bank.path / "blocks" / block.key.digest[:2] / f"{block.key.digest}.safetensors"
    inode = path.stat().st_ino
    bank.put_block(samples.block(bank, samples.page("one"), seed=3))  # sound: stays as it is
    assert path.stat().st_ino == inode
    assert samples.same(bank.get_block(block.key), block)
    path.unlink()  # a row without a file is a miss
    assert not bank.has_block(block.key)
    with pytest.raises(MissingBlockError):
        bank.get_block(block.key)
    bank.put_block(block)
    assert samples.same(bank.get_block(block.key), block)
    assert [p for p in path.parent.iterdir() if p != path] == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", "0" * 64),
        ("dtype", "float16"),
        ("prefix", "x"),
        ("processor", "x"),
        ("profile", "x"),
        ("conditioning", "prefix-free"),
        ("dpi", 96),
        ("namespace", "other"),
    ],
)
def test_a_key_of_another_bank_is_refused_by_field(bank: Bank, field: str, value: object) -> None:
    block = samples.block(bank, samples.page("one"))
    bank.put_block(block)
    key = replace(block.key, **{field: value})
    assert not bank.has_block(key)
    for call in (lambda: bank.get_block(key), lambda: bank.put_block(replace(block, key=key))):
        with pytest.raises(BankMismatchError, match=field) as caught:
            call()
        assert caught.value.field == field


def test_damaged_text_is_one_sentence(bank: Bank) -> None:
    samples.put(bank, "a.txt", ["one"])
    with bank._database.write() as connection:
        connection.execute("UPDATE pages SET text = CAST(x'ff80' AS BLOB)")
    with pytest.raises(BankError, match="is damaged"):
        bank.pages(bank.vectors()[0].tolist())
    assert [problem.message[:20] for problem in bank.verify()] == ["The text is damaged "]
    with bank._database.write() as connection:
        connection.execute("UPDATE documents SET source = CAST(x'ff80' AS BLOB)")
    with pytest.raises(BankError, match="is damaged"):
        bank.documents()
    with pytest.raises(BankError, match="is damaged"):
        bank.verify()


def test_ids_do_not_tell_what_others_store(bank: Bank) -> None:
    with Bank.open(bank.path, "tenant") as tenant:
        samples.put(tenant, "a.txt", ["one"], blocks=False)
        samples.put(bank, "b.txt", [f"line {number}" for number in range(50)], blocks=False)
        samples.put(tenant, "c.txt", ["two"], blocks=False)
        first, second = tenant.vectors()[0].tolist()
        assert second == first + 1
        assert not set(tenant.vectors()[0].tolist()) & set(bank.vectors()[0].tolist())
        tenant.remove_document("c.txt")
        samples.put(tenant, "d.txt", ["three"], blocks=False)
        assert tenant.vectors()[0].tolist() == [first, first + 2], "an id is never used again"
