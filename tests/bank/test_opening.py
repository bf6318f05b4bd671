"""Creating, opening and refusing banks; recipes; format versions; read-only folders."""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from qvpic_rag.bank import Bank, index_db, schema
from qvpic_rag.bank.recipe import decode_recipe, encode_recipe
from qvpic_rag.errors import BankError, BankMismatchError, BankNotFoundError
from tests.bank import samples

# Dumped once from the bank of format 1 that `golden_bank` makes (sqlite3's `.dump`, then the two pragmas) and never
# again: a later version must still open it.
GOLDEN = Path(__file__).parent / "golden" / "bank-v1.sql"


def golden_bank(folder: Path) -> None:
    """A bank with two documents that share a page, and a document in another namespace."""
    with Bank.create(folder, samples.recipe()) as bank:
        samples.put(bank, "a.txt", ["one", "shared"], blocks=False)
        samples.put(bank, "b.txt", ["shared", "two"], blocks=False)
    with Bank.create(folder, samples.recipe(), "tenant") as bank:
        samples.put(bank, "caf\udce9.txt", ["one"], blocks=False)


def tables(path: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        return sorted(connection.execute("SELECT name, coalesce(sql, '') FROM sqlite_master").fetchall())


def test_a_bank_of_format_2_opens_and_the_tables_have_not_moved(tmp_path: Path) -> None:
    folder = tmp_path / "stored"
    folder.mkdir()
    with closing(sqlite3.connect(folder / "bank.sqlite")) as connection:
        connection.executescript("PRAGMA journal_mode = WAL;" + GOLDEN.with_name("bank-v2.sql").read_text())
    golden_bank(tmp_path / "new")
    assert tables(folder / "bank.sqlite") == tables(tmp_path / "new" / "bank.sqlite")
    with Bank.open(folder) as stored, Bank.open(tmp_path / "new") as new:
        assert stored.recipe == new.recipe
        assert stored.documents() == new.documents()
        assert [entry.page for entry in stored.pages()] == [entry.page for entry in new.pages()]
        assert (stored.vectors()[1] == new.vectors()[1]).all()
        assert stored.limits() == (10**7, None)
        assert stored.verify(grace_s=0) == []
    with Bank.open(folder, "tenant") as tenant:
        assert tenant.limits() == (10**7, 10**6)


def test_a_bank_of_format_1_is_brought_to_the_present(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    with closing(sqlite3.connect(folder / "bank.sqlite")) as connection:
        connection.executescript("PRAGMA journal_mode = WAL;" + GOLDEN.read_text())
    golden_bank(tmp_path / "new")
    with Bank.open(folder) as old, Bank.open(tmp_path / "new") as new:
        assert old.recipe == new.recipe == samples.recipe()
        assert old.documents() == new.documents()
        assert [e.page for e in old.pages(old.vectors()[0])] == [e.page for e in new.pages(new.vectors()[0])]
        assert (old.vectors()[1] == new.vectors()[1]).all()
        assert old.generation == 2
        old.check(samples.recipe())
        assert old.verify(grace_s=0) == []
        samples.put(old, "c.txt", ["three"])
        assert old.page_count() == 4
        assert old.stats().blocks == {72: 1, 120: 1}
    assert tables(folder / "bank.sqlite") == tables(tmp_path / "new" / "bank.sqlite")
    with Bank.open(folder, "tenant") as tenant:
        assert [entry.source for entry in tenant.documents()] == ["caf\udce9.txt"]


def test_create_makes_opens_and_compares(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "bank"
    with Bank.create(path, samples.recipe()) as bank:
        samples.put(bank, "a.txt", ["one"])
        assert (bank.path, bank.namespace, bank.recipe) == (path, "default", samples.recipe())
    with Bank.create(str(path), samples.recipe(model="/elsewhere/glyph", revision="", embedder="/e")) as bank:
        assert bank.page_count() == 1
        assert bank.recipe.model == "zai-org/Glyph"
    with pytest.raises(BankMismatchError) as caught:
        Bank.create(path, samples.recipe(dtype="float16"))
    assert caught.value.field == "dtype"
    with Bank.open(path) as bank:
        assert bank.page_count() == 1


@pytest.mark.parametrize(
    ("field", "changes", "words"),
    [
        ("model", {"fingerprint": "9" * 64, "model": "Qwen/Qwen2.5-VL"}, ["zai-org/Glyph", "Qwen/Qwen2.5-VL"]),
        ("dtype", {"dtype": "float32"}, ["bfloat16", "float32"]),
        ("system_prompt", {"system_prompt": "Be brief. " * 50, "prefix": "9" * 64}, ["None", "Be brief."]),
        ("prefix", {"prefix": "9" * 64}, ["chat-template prefix"]),
        ("processor", {"processor": "9" * 64}, ["image-processor"]),
        ("profile", {"profile_digest": "9" * 64, "profile": {"name": "demo"}}, ["'glyph'", "'demo'"]),
        ("dpis", {"dpis": (72, 144)}, ["(72, 120)", "(72, 144)"]),
        ("storage", {"storage": ("int8", "native")}, ["native,native", "int8,native"]),
        ("conditioning", {"conditioning": "prefix-free"}, ["native", "prefix-free"]),
        ("embedder", {"embedder_digest": "9" * 64, "embedder": "demo"}, ["BAAI/bge-m3", "'demo'"]),
        ("dimension", {"dimension": 9}, ["8", "9"]),
    ],
)
def test_check_names_the_field_and_both_values(bank: Bank, field: str, changes: dict, words: list[str]) -> None:
    with pytest.raises(BankMismatchError) as caught:
        bank.check(samples.recipe(**changes))
    text = str(caught.value)
    assert caught.value.field == field
    assert all(word in text for word in [*words, "qvpic ingest"])
    assert len(text) < 450
    bank.check(samples.recipe(profile={"name": "renamed"}))


def test_check_names_what_a_user_can_act_on_first(bank: Bank) -> None:
    with pytest.raises(BankMismatchError) as caught:
        bank.check(samples.recipe(fingerprint="9", prefix="9", processor="9", dtype="float16"))
    assert caught.value.field == "model"


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("mine")


def _database(*statements: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.mkdir()
        with closing(sqlite3.connect(path / "bank.sqlite")) as connection:
            for statement in statements:
                connection.execute(statement)
            connection.commit()

    return make


def _garbage(content: bytes) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.mkdir()
        (path / "bank.sqlite").write_bytes(content)

    return make


NO_BANKS = {
    "missing": (lambda path: None, "does not exist"),
    "file": (lambda path: path.write_text("x"), "is a file"),
    "folder": (_folder, "is a folder without one"),
    "empty database": (_garbage(b""), "nothing was ever stored"),
    "garbage": (_garbage(b"garbage " * 1000), "is damaged or is no database"),
    "cut database": (_garbage(b"SQLite format 3\0" + b"\1" * 50), "is damaged or is no database"),
    "foreign database": (_database("CREATE TABLE notes (text)"), "belongs to another program"),
    "foreign id": (_database("PRAGMA application_id = 7", "PRAGMA user_version = 3"), "belongs to another program"),
}


@pytest.mark.parametrize("case", NO_BANKS)
def test_what_is_no_bank_is_refused_with_advice(tmp_path: Path, case: str) -> None:
    make, words = NO_BANKS[case]
    path = tmp_path / "bank"
    make(path)
    with pytest.raises(BankNotFoundError, match=words) as caught:
        Bank.open(path)
    assert "`qvpic ingest PATH --bank" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", ["file", "folder", "garbage", "cut database", "foreign database", "foreign id"])
def test_create_overwrites_nothing(tmp_path: Path, case: str) -> None:
    path = tmp_path / "bank"
    NO_BANKS[case][0](path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    for call in (lambda: Bank.recipe_at(path), lambda: Bank.create(path, samples.recipe())):
        with pytest.raises(BankNotFoundError):
            call()
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_create_completes_what_a_killed_create_began(tmp_path: Path) -> None:
    without_tables = _database("PRAGMA journal_mode = WAL")
    for make in (_garbage(b""), without_tables, lambda path: path.mkdir(), lambda path: None):
        path = tmp_path / f"bank{len(list(tmp_path.iterdir()))}"
        make(path)
        assert Bank.recipe_at(path) is None
        with Bank.create(path, samples.recipe()) as bank:
            samples.put(bank, "a.txt", ["one"])
        assert Bank.recipe_at(path) == samples.recipe()


def test_a_newer_bank_is_refused(bank: Bank) -> None:
    bank.close()
    with closing(sqlite3.connect(bank.path / "bank.sqlite")) as connection:
        connection.execute(f"PRAGMA user_version = {schema.FORMAT + 1}")
    for make in (lambda: Bank.open(bank.path), lambda: Bank.create(bank.path, samples.recipe())):
        with pytest.raises(BankError, match="has format 3, and this version of qvpic-rag reads up to 2: upgrade"):
            make()


def test_recipes_without_storage_are_native_and_native_ones_are_written_as_they_were(tmp_path: Path) -> None:
    native, packed = samples.recipe(), samples.recipe(storage=("int4", "int8"))
    assert "storage" not in json.loads(encode_recipe(native))
    for recipe in (native, packed):
        assert decode_recipe(encode_recipe(recipe), tmp_path) == recipe
    assert decode_recipe(encode_recipe(native), tmp_path).storage == ("native", "native")
    for wrong in (["int8"], ["int8", "int2"], None, 8, {"low": "int8"}):
        text = json.dumps({**json.loads(encode_recipe(packed)), "storage": wrong})
        with pytest.raises(BankError, match="recipe stored in the bank"):
            decode_recipe(text, tmp_path)


def test_keys_follow_the_recipes_storage(tmp_path: Path) -> None:
    with Bank.create(tmp_path / "bank", samples.recipe(storage=("int4", "native"))) as bank:
        low, high = (samples.block(bank, "1" * 64, dpi) for dpi in (72, 120))
        assert (low.key.storage, high.key.storage) == ("int4", "native")
        assert bank.recipe.block_key("text", 0, "default").storage == "native"
        for block in (low, high):
            bank.put_block(block)
            assert samples.same(bank.get_block(block.key), block)
        with pytest.raises(BankMismatchError, match="blocks with storage 'int4', asked for is 'int8'"):
            bank.get_block(replace(low.key, storage="int8"))
        with pytest.raises(BankMismatchError, match="blocks with storage 'native', asked for is 'int8'"):
            bank.get_block(replace(high.key, storage="int8"))
        assert bank.verify(grace_s=0) == []
        assert bank.stats().to_dict()["recipe"]["storage"] == ["int4", "native"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"model": 3}', '"x"', "null"])
def test_a_damaged_recipe_is_refused(bank: Bank, text: str) -> None:
    bank.close()
    with closing(sqlite3.connect(bank.path / "bank.sqlite")) as connection:
        connection.execute("UPDATE recipe SET json = ?", (text,))
        connection.commit()
    with pytest.raises(BankError, match="recipe stored in the bank"):
        Bank.open(bank.path)


def test_a_file_system_without_wal_is_refused(bank: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bank.close()
    with closing(sqlite3.connect(bank.path / "bank.sqlite")) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    with pytest.raises(BankError, match="put the bank on a local disk"):
        Bank.open(bank.path)

    def without_wal(file: Path, options: str) -> sqlite3.Connection:
        return sqlite3.connect(":memory:", isolation_level=None)  # answers "memory" when asked for WAL

    monkeypatch.setattr(index_db, "_connect", without_wal)
    with pytest.raises(BankError, match="put the bank on a local disk"):
        Bank.create(tmp_path / "network", samples.recipe())


def test_a_closed_bank_says_so(bank: Bank) -> None:
    bank.close()
    bank.close()
    for call in (bank.documents, bank.stats, lambda: bank.remove_document("a"), lambda: bank.generation):
        with pytest.raises(BankError, match="was closed"):
            call()


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder under the system's own temporary folder, with root's rights given up while the test runs."""
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        try:
            if root:
                os.seteuid(65534)
            yield Path(name)
        finally:
            if root:
                os.seteuid(0)
            for path in Path(name).rglob("*"):
                path.chmod(0o755)


def _writes(bank: Bank) -> list[Callable[[], object]]:
    pages, vectors = samples.document("new.txt", ["new"])
    return [
        lambda: bank.put_block(samples.block(bank, "1" * 64)),
        lambda: bank.put_document("new.txt", "d", pages, vectors, {}),
        lambda: bank.remove_document("a.txt"),
        lambda: bank.gc(grace_s=0),
    ]


def _check_reads(bank: Bank) -> None:
    block = samples.block(bank, samples.page("one"))
    assert samples.same(bank.get_block(block.key), block)
    assert [entry.source for entry in bank.documents()] == ["a.txt"]
    assert bank.pages(bank.vectors()[0])[0].page.lines == ("one", "end")
    assert bank.verify(grace_s=0) == []
    assert bank.gc(dry_run=True, grace_s=0).bytes == 0
    assert bank.stats().documents == 1


def test_a_read_only_folder_can_be_read(unprivileged: Path) -> None:
    with Bank.create(unprivileged / "bank", samples.recipe()) as bank:
        samples.put(bank, "a.txt", ["one"])
    for path in (*bank.path.rglob("*"), bank.path):
        path.chmod(0o555 if path.is_dir() else 0o444)
    with Bank.open(bank.path) as read_only:
        _check_reads(read_only)
        for write in _writes(read_only):
            with pytest.raises(BankError, match="is read-only here"):
                write()
        assert read_only.keep_blocks([samples.block(read_only, samples.page(t)).key for t in ("one", "two")]) == [
            True,
            False,
        ]
        _check_reads(read_only)
    with pytest.raises(BankError, match="no permission"):
        Bank.create(bank.path / "inner", samples.recipe())


def test_a_read_only_reader_follows_a_writer(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    samples.put(bank, "a.txt", ["one"])
    monkeypatch.setattr(index_db.os, "access", lambda *args, **options: False)
    with Bank.open(bank.path) as read_only:
        _check_reads(read_only)
        samples.put(bank, "b.txt", ["two"])
        assert len(read_only.documents()) == 2
        bank.close()  # removes the log: from now on the reader opens the database as immutable
        assert len(read_only.documents()) == 2
        with pytest.raises(BankError, match="is read-only here"):
            read_only.remove_document("a.txt")


def test_a_folder_without_any_permission(unprivileged: Path) -> None:
    with Bank.create(unprivileged / "bank", samples.recipe()) as bank:
        samples.put(bank, "a.txt", ["one"])
    bank.path.chmod(0)
    with pytest.raises(BankError, match="no permission"):
        Bank.open(bank.path)


def test_blocks_that_may_not_be_read(unprivileged: Path) -> None:
    with Bank.create(unprivileged / "bank", samples.recipe()) as bank:
        block = samples.block(bank, "1" * 64)
        bank.put_block(block)
        path = bank.path / "blocks" / block.key.digest[:2] / f"{block.key.digest}.safetensors"
        path.chmod(0)
        for call in (lambda: bank.get_block(block.key), lambda: bank.put_block(block)):
            with pytest.raises(BankError, match="no permission"):
                call()
        assert [problem.kind for problem in bank.verify(grace_s=0)] == ["unreadable"]
