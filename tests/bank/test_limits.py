"""Limits: what is evicted, what stays, and whose."""

from __future__ import annotations

import gc
import os
import sqlite3
import threading
from pathlib import Path

import pytest

from qvpic_rag.bank import Bank, blockrows
from qvpic_rag.bank.room import Taken
from qvpic_rag.errors import BankError, BankFullError, ConfigError, MissingBlockError
from qvpic_rag.records import KVBlock
from tests.bank import samples
from tests.bank.test_upkeep import change


def make(bank: Bank, text: str, dpi: int = 72, tokens: int = 6) -> KVBlock:
    return samples.block(bank, samples.page(text), dpi, shape=(2, 2, tokens, 4), namespace=bank.namespace)


def size(bank: Bank, block: KVBlock) -> int:
    with bank._database.read() as connection:
        row = connection.execute("SELECT bytes FROM blocks WHERE digest = ?", (block.key.digest,)).fetchone()
    return int(row[0])


def there(bank: Bank, *texts: str, dpi: int = 72) -> str:
    return "".join(text for text in texts if bank.has_block(make(bank, text, dpi).key))


def used_at(bank: Bank, **moments: float) -> None:
    for text, moment in moments.items():
        change(bank, "UPDATE blocks SET used = ? WHERE page = ?", moment, samples.page(text).digest)


@pytest.fixture
def one(bank: Bank) -> int:
    """Three pages at the low resolution; the size of each."""
    for text in "abc":
        bank.put_block(make(bank, text), cost_s=1.0)
    return size(bank, make(bank, "a"))


def test_what_was_not_used_for_longest_goes_first(bank: Bank, one: int) -> None:
    used_at(bank, a=2000, b=1000, c=3000)
    bank.set_max_bytes(3 * one)
    assert there(bank, *"abc") == "abc"
    bank.put_block(make(bank, "d"), cost_s=1.0)
    assert there(bank, *"abcd") == "acd"
    bank.get_block(make(bank, "a").key)  # noted in memory, and heeded all the same
    bank.put_block(make(bank, "e"), cost_s=1.0)
    assert there(bank, *"abcde") == "ade"
    assert bank.stats().evicted == 2
    assert bank.stats().counters["evictions"] == 2
    assert bank.blocks.was_evicted(make(bank, "b").key)
    with pytest.raises(MissingBlockError):
        bank.get_block(make(bank, "b").key)
    bank.put_block(make(bank, "b"))
    assert there(bank, "b") == "b"
    assert not bank.blocks.was_evicted(make(bank, "b").key)


def test_what_is_cheap_to_compile_goes_first(bank: Bank) -> None:
    for text, cost in (("a", 9.0), ("b", 1.0), ("c", 5.0)):
        bank.put_block(make(bank, text), cost_s=cost)
    used_at(bank, a=1000, b=1000, c=1000)
    one = size(bank, make(bank, "a"))
    bank.set_max_bytes(2 * one)
    assert there(bank, *"abc") == "ac"
    bank.set_max_bytes(one)
    assert there(bank, *"abc") == "a"


def test_an_unknown_cost_counts_as_the_mean(bank: Bank) -> None:
    for text, cost in (("a", 9.0), ("b", 1.0), ("c", 0.0), ("d", 3.0)):
        bank.put_block(make(bank, text), cost_s=cost)
    used_at(bank, a=1000, b=1000, c=1000, d=1000)
    one = size(bank, make(bank, "a"))
    for kept, left in ((3, "acd"), (2, "ac")):
        bank.set_max_bytes(kept * one)
        assert there(bank, *"abcd") == left


def test_of_a_page_the_high_resolution_goes_first(bank: Bank) -> None:
    for dpi, cost in ((72, 0.1), (120, 60.0)):
        bank.put_block(make(bank, "a", dpi), cost_s=cost)
    bank.set_max_bytes(size(bank, make(bank, "a")))
    assert there(bank, "a") == "a"
    assert there(bank, "a", dpi=120) == ""


def test_damaged_blocks_go_before_sound_ones(bank: Bank, one: int) -> None:
    path = bank.path / "blocks" / make(bank, "c").key.digest[:2] / f"{make(bank, 'c').key.digest}.safetensors"
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert [problem.kind for problem in bank.verify()] == ["corrupt"]
    used_at(bank, a=1000, b=2000, c=3000)
    bank.set_max_bytes(2 * one)
    assert there(bank, *"ab") == "ab"
    assert not path.exists()


def test_a_block_in_use_is_never_evicted(bank: Bank, one: int) -> None:
    used_at(bank, a=1000, b=2000, c=3000)
    held = bank.get_block(make(bank, "a").key)
    change(bank, "UPDATE blocks SET used = 0 WHERE page = ?", samples.page("a").digest)
    bank.set_max_bytes(2 * one)
    assert there(bank, *"abc") == "ac"
    others = bank.get_block(make(bank, "c").key)
    with pytest.raises(BankFullError, match="in use by requests"):
        bank.put_block(make(bank, "d"))
    with pytest.raises(BankFullError, match=r"holds [\d,]+ bytes more than this limit that are in use"):
        bank.set_max_bytes(one)
    assert bank.limits() == (2 * one, None)
    assert samples.same(held, make(bank, "a"))
    assert samples.same(others, make(bank, "c"))
    del held
    gc.collect()
    bank.put_block(make(bank, "d"))
    assert there(bank, *"abcd") == "cd"
    bank.gc(grace_s=0)
    assert there(bank, *"abcd") == "c", "gc spares it as well"


def test_another_process_holds_a_block_as_well(bank: Bank, one: int) -> None:
    with Bank.open(bank.path) as other:
        held = other.get_block(make(other, "a").key)
        used_at(bank, a=1000, b=2000, c=3000)
        bank.set_max_bytes(2 * one)
        assert there(bank, *"abc") == "ac"
        assert samples.same(held, make(bank, "a"))


def test_blocks_in_memory_hold_no_file(bank: Bank, one: int) -> None:
    with Bank.open(bank.path, ram_bytes=10**6) as other:
        held = [other.get_block(make(other, text).key) for text in "abc"]
        bank.set_max_bytes(one)
        assert len(there(bank, *"abc")) == 1
        assert all(samples.same(block, make(bank, text)) for block, text in zip(held, "abc", strict=True))


def test_a_block_larger_than_the_limit(bank: Bank, one: int) -> None:
    bank.set_max_bytes(3 * one)
    with pytest.raises(BankFullError, match=r"this page's block alone has [\d,]+: raise the limit"):
        bank.put_block(make(bank, "large", tokens=1000))
    assert there(bank, *"abc") == "abc", "nothing is evicted in vain"


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "10", float("nan")])
def test_impossible_limits(bank: Bank, value: object) -> None:
    for set_limit in (bank.set_max_bytes, bank.set_quota):
        with pytest.raises(ConfigError, match="whole number of bytes"):
            set_limit(value)  # type: ignore[operator]
    assert bank.limits() == (None, None)


def test_a_namespace_makes_room_only_among_its_own(bank: Bank, one: int) -> None:
    with Bank.open(bank.path, "tenant") as tenant:
        tenant.put_block(make(tenant, "x"))
        bank.set_max_bytes(6 * one)
        tenant.set_quota(2 * one)
        for text in "yz":
            tenant.put_block(make(tenant, text))
        assert len(there(tenant, *"xyz")) == 2
        assert there(bank, *"abc") == "abc"
        for text in "defg":
            bank.put_block(make(bank, text))
        assert len(there(bank, *"abcdefg")) == 4, "what the quota keeps is not there for others"
        assert len(there(tenant, *"xyz")) == 2
        assert tenant.stats().limit == 2 * one
        assert bank.stats().limit == 4 * one
        assert tenant.stats().evicted == 1
        assert tenant.stats().counters == {"evictions": 1, "written_blocks": 3}


def test_a_namespace_without_room_of_its_own_gets_none_of_others(bank: Bank, one: int) -> None:
    bank.set_max_bytes(3 * one)
    with Bank.open(bank.path, "tenant") as tenant:
        with pytest.raises(BankFullError, match="or taken by other namespaces without a quota"):
            tenant.put_block(make(tenant, "x"))
        assert there(bank, *"abc") == "abc"


def test_quotas_and_the_limit_fit_together(bank: Bank, one: int) -> None:
    bank.set_max_bytes(5 * one)
    with Bank.open(bank.path, "tenant") as tenant:
        with pytest.raises(ConfigError, match="lower a quota, or raise the limit"):
            tenant.set_quota(6 * one)
        tenant.set_quota(4 * one)  # takes the room of others, whose blocks go
        assert len(there(bank, *"abc")) == 1
        with pytest.raises(ConfigError, match="lower a quota"):
            bank.set_max_bytes(3 * one)
        tenant.set_quota(None)
        bank.set_max_bytes(None)
        assert bank.limits() == tenant.limits() == (None, None)


def test_the_limit_holds_while_a_block_is_written(bank: Bank, one: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bank.set_max_bytes(3 * one)
    seen = []
    fsync = os.fsync

    def measured(descriptor: int) -> None:
        seen.append(sum(path.stat().st_size for path in (bank.path / "blocks").rglob("*") if path.is_file()))
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", measured)
    bank.put_block(make(bank, "d"))
    assert seen
    assert max(seen) <= 3 * one


def test_a_dead_writers_reservation_does_not_count_for_ever(bank: Bank, one: int) -> None:
    bank.set_max_bytes(4 * one)
    digest = make(bank, "d").key.digest
    change(bank, "INSERT INTO reservations VALUES (?, 1, ?, ?)", f".{digest}-{'0' * 16}-1.tmp", "0" * 16, 4 * one)
    left = bank.path / "blocks" / digest[:2]
    left.mkdir(exist_ok=True)
    (left / f".{digest}-{'0' * 16}-1.tmp").write_bytes(b"half")
    bank.put_block(make(bank, "d"))
    assert there(bank, *"d") == "d"
    assert list(left.glob("*.tmp")) == []


def test_a_clock_that_goes_backwards(bank: Bank, one: int, monkeypatch: pytest.MonkeyPatch) -> None:
    used_at(bank, a=4e9, b=1000, c=4e9)
    bank.set_max_bytes(3 * one)
    monkeypatch.setattr("time.time", lambda: 500.0)
    bank.put_block(make(bank, "d"), cost_s=1.0)
    assert there(bank, *"bd") == "bd"
    assert len(there(bank, *"abcd")) == 3
    assert bank.verify() == []


def test_the_lock_of_a_file_about_to_go_turns_readers_away(bank: Bank, one: int) -> None:
    """Between eviction and removal of a file nobody may begin to read it."""
    key = make(bank, "a").key
    with Taken() as taken:
        with bank._database.write() as connection:
            row = blockrows.find(connection, key.digest)
            assert row is not None
            bank.blocks.room.remove(connection, [row], taken)
        with Bank.open(bank.path) as other, pytest.raises(MissingBlockError):
            other.get_block(key)
        bank.blocks.room.finish(taken)
    assert not Path(bank.blocks.files.path(key.digest)).exists()


def test_an_old_bank_takes_limits(tmp_path: Path) -> None:
    from tests.bank.test_opening import GOLDEN

    folder = tmp_path / "old"
    folder.mkdir()
    connection = sqlite3.connect(folder / "bank.sqlite")
    connection.executescript("PRAGMA journal_mode = WAL;" + GOLDEN.read_text())
    connection.close()
    with Bank.open(folder) as bank:
        bank.set_max_bytes(10**6)
        bank.put_block(make(bank, "a"))
        assert bank.limits() == (10**6, None)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0


@pytest.mark.parametrize("place", ["commit", "take", "finish"])
def test_a_failed_eviction_lets_go_of_what_it_took(
    bank: Bank, one: int, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = descriptors()
    with monkeypatch.context() as patch:
        if place == "finish":
            patch.setattr(type(bank.blocks.room), "_remove_file", failing)
        elif place == "commit":
            patch.setattr(blockrows, "mark_evicted", failing)
        else:
            patch.setattr("qvpic_rag.bank.room.usage.add", failing)
        with pytest.raises((BankError, KeyboardInterrupt)):
            bank.set_max_bytes(one)
    assert descriptors() == before
    with Bank.open(bank.path) as other:
        for text in "abc":
            block = make(other, text)
            if place != "finish":
                assert samples.same(other.get_block(block.key), block)
    bank.set_max_bytes(one)
    assert len(there(bank, *"abc")) == 1 if place != "finish" else there(bank, *"abc") == ""
    assert sum(path.stat().st_size for path in (bank.path / "blocks").rglob("*") if path.is_file()) <= one


def failing(*arguments: object) -> None:
    raise KeyboardInterrupt


def test_a_file_that_cannot_go_stays_and_others_go(bank: Bank, one: int) -> None:
    path = bank.blocks.files.path(make(bank, "a").key.digest)
    path.unlink()
    path.mkdir()
    used_at(bank, a=1, b=2, c=3)
    bank.set_max_bytes(2 * one)
    assert path.is_dir()
    assert there(bank, *"bc") == "c"
    with Bank.open(bank.path) as other:
        assert samples.same(other.get_block(make(other, "c").key), make(other, "c"))


def test_a_quota_evicts_nothing_of_the_namespace_that_it_is_for(bank: Bank, one: int) -> None:
    with Bank.open(bank.path, "tenant") as tenant:
        for text in "wxyz":
            tenant.put_block(make(tenant, text), cost_s=0.001)  # cheaper than the others' blocks
        bank.set_max_bytes(7 * one)
        tenant.set_quota(5 * one)
        assert there(tenant, *"wxyz") == "wxyz"
        assert len(there(bank, *"abc")) == 2
        assert bank.stats().evicted == 1
        assert tenant.stats().evicted == 0
        assert "evictions" not in tenant.stats().counters
        assert bank.stats().counters["evictions"] == 1


def test_the_low_resolution_goes_where_the_high_one_is_in_use(bank: Bank) -> None:
    for dpi in (72, 120):
        bank.put_block(make(bank, "a", dpi))
    held = bank.get_block(make(bank, "a", 120).key)
    bank.set_max_bytes(size(bank, make(bank, "a", 120)))
    assert there(bank, "a") == ""
    assert samples.same(held, make(bank, "a", 120))


def test_a_writer_waits_for_room_that_others_are_about_to_give_back(bank: Bank, one: int) -> None:
    bank.set_max_bytes(2 * one)
    held = [bank.get_block(make(bank, text).key) for text in there(bank, *"abc")[:1]]
    other = Bank.open(bank.path)
    reserved = other.blocks.room.reserved("default", make(other, "x").key.digest, one)
    reserved.__enter__()
    timer = threading.Timer(0.3, lambda: reserved.__exit__(None, None, None))
    timer.start()
    bank.put_block(make(bank, "d"))
    timer.join()
    assert there(bank, "d") == "d"
    assert held
    other.close()


def test_huge_limits_are_refused_in_one_sentence(bank: Bank) -> None:
    for value in (2**60 + 1, 2**63, 10**40):
        with pytest.raises(ConfigError, match=r"from 1 to 2\*\*60"):
            bank.set_max_bytes(value)
    bank.set_quota(2**60)
    with Bank.open(bank.path, "tenant") as tenant:
        tenant.set_quota(2**60)
        tenant.put_block(make(tenant, "a"))
