"""The RAM tier, loading in the background, and claims."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qvpic_rag.bank import Bank, BlockLoader
from qvpic_rag.bank.ram import RamTier
from qvpic_rag.errors import BankError, CorruptBlockError, MissingBlockError
from qvpic_rag.metrics import METRICS
from qvpic_rag.records import BlockKey
from tests.bank import samples

MADE = samples.recipe()
BLOCKS = [
    samples.block(MADE, f"{number}" * 64, shape=(1, 1, tokens, 4)) for number, tokens in enumerate([1, 2, 3, 5, 8])
]


@settings(max_examples=80, deadline=None)
@given(
    room=st.integers(0, 20),
    steps=st.lists(st.tuples(st.sampled_from(["put", "get", "drop"]), st.integers(0, 4)), max_size=40),
)
def test_the_ram_tier_holds_the_blocks_used_last(room: int, steps: list[tuple[str, int]]) -> None:
    unit = BLOCKS[0].nbytes
    tier, kept = RamTier(room * unit), []  # oldest first
    for step, number in steps:
        block = BLOCKS[number]
        if step == "put":
            tier.put(block)
            if block.nbytes <= room * unit:
                kept = [other for other in kept if other is not block] + [block]
                while sum(other.nbytes for other in kept) > room * unit:
                    kept.pop(0)
        elif step == "get":
            assert tier.get(block.key.digest) is (block if block in kept else None)
            if block in kept:
                kept = [other for other in kept if other is not block] + [block]
        else:
            tier.drop(block.key.digest)
            kept = [other for other in kept if other is not block]
        assert tier.nbytes == sum(other.nbytes for other in kept) <= room * unit
        assert len(tier) == len(kept)


def test_a_block_is_read_once_and_then_comes_from_memory(bank: Bank) -> None:
    samples.put(bank, "a.txt", ["one", "two"])
    with Bank.open(bank.path, ram_bytes=10**6) as cached:
        wanted = [samples.block(bank, samples.page(text), dpi) for text in ("one", "two") for dpi in (72, 120)]
        hits = {tier: METRICS.value("bank_hits", tier=tier) for tier in ("ram", "disk")}
        for tiers in ({"disk": 4}, {"ram": 4}):
            with BlockLoader(cached.blocks) as loader:
                assert all(samples.same(loader.get(block.key), block) for block in wanted)
                assert loader.tiers == tiers
        assert {tier: METRICS.value("bank_hits", tier=tier) - hits[tier] for tier in hits} == {"ram": 4, "disk": 4}
        assert cached.stats().counters == {"hits disk": 4, "hits ram": 4}
        bank.remove_document("a.txt")
        assert cached.gc(grace_s=0).blocks == 4
        with pytest.raises(MissingBlockError):
            cached.get_block(wanted[0].key)
    with pytest.raises(BankError, match="closed"):
        cached.get_block(wanted[0].key)


def test_a_block_too_large_for_memory_is_mapped(bank: Bank) -> None:
    block = samples.block(bank, "1" * 64, shape=(2, 2, 60, 4))
    bank.put_block(block)
    with Bank.open(bank.path, ram_bytes=100) as cached:
        for _ in range(2):
            with BlockLoader(cached.blocks) as loader:
                assert samples.same(loader.get(block.key), block)
                assert loader.tiers == {"disk": 1}


def test_namespaces_share_no_memory(bank: Bank) -> None:
    samples.put(bank, "a.txt", ["one"])
    key = samples.block(bank, samples.page("one")).key
    with Bank.open(bank.path, "tenant", ram_bytes=10**6) as tenant, Bank.open(bank.path, ram_bytes=10**6) as own:
        own.get_block(key)
        with pytest.raises(MissingBlockError):
            tenant.get_block(samples.block(tenant, samples.page("one")).key)


def test_blocks_known_early_are_loaded_in_the_background(bank: Bank) -> None:
    samples.put(bank, "a.txt", ["one", "two"])
    wanted = [samples.block(bank, samples.page(text)) for text in ("one", "two")]
    missing = samples.block(bank, samples.page("three"))
    used = bank.stats().counters
    with BlockLoader(bank.blocks) as loader:
        loader.prefetch([block.key for block in wanted] + [missing.key])
        assert samples.same(loader.get(wanted[0].key), wanted[0])
        with pytest.raises(MissingBlockError):
            loader.get(missing.key)
        assert loader.tiers == {"disk": 1}
    # What was loaded in vain is no hit.
    assert bank.stats().counters == {**used, "hits disk": 1, "misses": 1}


def test_damage_found_in_the_background_is_raised_where_the_block_is_used(bank: Bank, block_path) -> None:
    block_path.write_bytes(block_path.read_bytes()[:-1])
    with BlockLoader(bank.blocks) as loader:
        key = samples.block(bank, samples.page("one")).key
        loader.prefetch([key])
        with pytest.raises(CorruptBlockError):
            loader.get(key)


def claims(bank: Bank, keys: list[BlockKey]) -> AbstractContextManager[frozenset[str]]:
    return bank.blocks.claims.made([key.digest for key in keys])


def claimed(bank: Bank, keys: list[BlockKey]) -> bool:
    return bank.blocks.claims.held([key.digest for key in keys])


def test_a_claim_is_seen_by_others_and_ends(bank: Bank) -> None:
    keys = [samples.block(bank, samples.page(text)).key for text in ("one", "two", "three")]
    with Bank.open(bank.path) as other:
        with claims(bank, keys[:2]) as mine:
            assert mine == {key.digest for key in keys[:2]}
            with claims(other, keys) as theirs:
                assert theirs == {keys[2].digest}
                with claims(bank, keys) as again:  # of another thread, say
                    assert again == frozenset()
            assert claimed(other, keys)
            assert not claimed(other, keys[2:])
        assert not claimed(other, keys)
        with pytest.raises(ZeroDivisionError), claims(bank, keys):
            1 / 0  # noqa: B018
        assert not claimed(other, keys)
        with claims(bank, []) as nothing:
            assert nothing == frozenset()


def test_a_claim_ends_with_its_writer(bank: Bank) -> None:
    key = samples.block(bank, samples.page("one")).key
    other = Bank.open(bank.path)
    claim = claims(other, [key])
    claim.__enter__()
    assert claimed(bank, [key])
    other.blocks.writers.close()  # as when the process is killed: nothing else is tidied up
    assert not claimed(bank, [key])
    with claims(bank, [key]) as mine:
        assert mine == {key.digest}
    claim.__exit__(None, None, None)
    other.close()


def test_a_claim_as_old_as_the_hills_is_nobodys(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    key = samples.block(bank, samples.page("one")).key
    with Bank.open(bank.path) as other, claims(other, [key]):
        later = time.time() + 3600
        monkeypatch.setattr("time.time", lambda: later)
        assert not claimed(bank, [key])


def test_many_threads_claim_each_block_once(bank: Bank) -> None:
    keys = [samples.block(bank, f"{number:064x}").key for number in range(40)]
    won: list[str] = []
    ready = threading.Barrier(4)

    def work() -> None:
        ready.wait()
        for key in keys:
            with claims(bank, [key]) as mine:
                if mine and not bank.has_block(key):
                    bank.put_block(samples.block(bank, key.page))
                    won.extend(mine)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == len(set(won)) <= 40


@pytest.mark.gpu
def test_blocks_in_memory_are_pinned(bank: Bank) -> None:
    samples.put(bank, "a.txt", ["one"])
    wanted = samples.block(bank, samples.page("one"))
    with Bank.open(bank.path, ram_bytes=10**6) as cached:
        found = cached.get_block(wanted.key)
        assert samples.same(found, wanted)
        assert found.keys.is_pinned()
        assert samples.same(replace(found, keys=found.keys.to("cuda", non_blocking=True).cpu()), wanted)
