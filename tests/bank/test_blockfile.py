"""The block format: round trips, golden bytes, damage of every kind, and tensors that cannot alter the file."""

from __future__ import annotations

import json
import math
import random
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from qvpic_rag.bank import Bank
from qvpic_rag.bank.blockfile import BlockHeader, check_file, load_block, write_temporary
from qvpic_rag.errors import BankError, BankMismatchError, CompileError, CorruptBlockError
from qvpic_rag.metrics import METRICS
from qvpic_rag.packing import pack
from qvpic_rag.records import BlockKey
from tests.bank import samples

# Written once and never again: a later version must still read them. To add one for a new format, write the block of
# `golden_block` to a new name beside them.
GOLDEN = Path(__file__).parent / "golden" / "block-v1.safetensors"
GOLDENS = {
    "native": GOLDEN,
    "int8": GOLDEN.with_name("block-v2-int8.safetensors"),
    "int4": GOLDEN.with_name("block-v2-int4.safetensors"),
}
storages = pytest.mark.parametrize("storage", GOLDENS)


def golden_block(storage="native"):
    shape = (2, 1, 3, 4) if storage == "native" else (1, 2, 66, 3)  # two groups of tokens, a half-filled byte
    made = samples.block(samples.recipe(), "f" * 64, 120, shape=shape)
    numbers = torch.arange(math.prod(shape), dtype=torch.float32)
    keys = (numbers.reshape(shape) / 8 - 1).to(torch.bfloat16)
    return pack(replace(made, keys=keys, values=-2 * keys, key=replace(made.key, storage=storage)))


@storages
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("axes", [1, 3])
def test_a_block_comes_back_bit_by_bit(tmp_path: Path, dtype: str, axes: int, storage: str) -> None:
    with Bank.create(tmp_path / "bank", samples.recipe(dtype=dtype, storage=(storage, "native"))) as bank:
        block = samples.block(bank, "1" * 64, axes=axes)
        bank.put_block(block)
        found = bank.get_block(block.key)
    assert samples.same(found, block)
    assert found.tokens == 6
    assert found.nbytes == block.nbytes


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from(["bfloat16", "float16", "float32"]),
    shape=st.tuples(*[st.integers(1, 5)] * 4),
    axes=st.integers(1, 3),
    span=st.integers(0, 2**40),
    texts=st.tuples(*[st.text(max_size=20)] * 7),
    seed=st.integers(0, 2**31),
)
def test_any_block_comes_back(tmp_path_factory, dtype, shape, axes, span, texts, seed) -> None:
    folder = tmp_path_factory.getbasetemp() / "any"
    folder.mkdir(exist_ok=True)
    names = [f.name for f in fields(BlockKey) if f.name not in ("dtype", "dpi", "storage")]
    key = BlockKey(**dict(zip(names, texts, strict=True)), dtype=dtype, dpi=seed % 600)
    size = {"bfloat16": 2, "float16": 2, "float32": 4}[dtype]
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 256, (2, *shape[:3], shape[3] * size), dtype=torch.uint8, generator=generator)
    keys, values = raw.view(getattr(torch, dtype))  # every bit pattern: infinities, NaN, subnormals
    base = samples.block(samples.recipe(), "1" * 64, shape=shape, axes=axes)
    block = replace(base, keys=keys, values=values, span=span, key=key)
    written = write_temporary(folder / "block.tmp", block)
    assert samples.same(load_block(written.path, key, written.nbytes, written.checksum), block)
    written.path.unlink()


def test_strided_tensors_that_need_gradients_are_stored_by_value(bank: Bank) -> None:
    block = samples.block(bank, "1" * 64, shape=(2, 6, 2, 4))
    odd = replace(block, keys=block.keys.clone().requires_grad_(), values=block.values.clone())
    odd = replace(odd, keys=odd.keys.transpose(1, 2), values=odd.values.transpose(1, 2))
    odd = replace(odd, token_ids=torch.arange(12)[::2], positions=torch.arange(18).reshape(6, 3).T)
    bank.put_block(odd)
    assert samples.same(bank.get_block(odd.key), odd)


@storages
def test_golden_bytes(tmp_path: Path, storage: str) -> None:
    golden = GOLDENS[storage].read_bytes()
    checksum = xxhash.xxh3_128_hexdigest(golden)
    block = golden_block(storage)
    assert samples.same(load_block(GOLDENS[storage], block.key, len(golden), checksum), block)
    written = write_temporary(tmp_path / "block.tmp", block)
    assert written.path.read_bytes() == golden
    assert (written.nbytes, written.checksum) == (len(golden), checksum)


@storages
def test_other_safetensors_readers_open_the_files(tmp_path: Path, storage: str) -> None:
    block = golden_block(storage)
    written = write_temporary(tmp_path / "block.tmp", block)
    tensors, expected = load_file(written.path), samples.tensors(block)
    assert {name: tensor.dtype for name, tensor in tensors.items()} == {n: t.dtype for n, t in expected.items()}
    assert all(samples.bits(tensors[name]) == samples.bits(expected[name]) for name in tensors)
    with safe_open(written.path, "pt") as file:
        meta = file.metadata()
    assert meta["span"] == "5"
    named = set(meta) - {"format", "version", "span"}
    assert {name: meta[name] for name in named} == {name: str(value) for name, value in block.key.tagged().items()}


def test_keys_are_aligned_and_nothing_is_copied(bank: Bank) -> None:
    block = samples.block(bank, "1" * 64, shape=(3, 2, 64, 32))
    bank.put_block(block)
    found = bank.get_block(block.key)
    assert found.keys.data_ptr() % 64 == 0
    assert found.values.data_ptr() - found.keys.data_ptr() == found.keys.nbytes
    assert found.keys.data_ptr() - found.token_ids.data_ptr() == found.token_ids.nbytes + found.positions.nbytes
    assert found.keys.is_contiguous()


def test_writing_into_a_tensor_alters_no_file_and_no_other_reader(bank: Bank, block_path: Path) -> None:
    before = block_path.read_bytes()
    block = samples.block(bank, samples.page("one"))
    first, second = bank.get_block(block.key), bank.get_block(block.key)
    for name in ("keys", "values", "token_ids", "positions"):
        getattr(first, name).zero_()
    assert samples.same(second, block)
    assert block_path.read_bytes() == before
    assert samples.same(bank.get_block(block.key), block)


def test_a_block_stays_usable_when_its_file_goes_and_the_bank_closes(bank: Bank, block_path: Path) -> None:
    block = samples.block(bank, samples.page("one"))
    found = bank.get_block(block.key)
    block_path.unlink()
    bank.close()
    assert samples.same(found, block)


def test_every_flipped_byte_is_noticed(bank: Bank, block_path: Path) -> None:
    key, checksum = samples.block(bank, samples.page("one")).key, xxhash.xxh3_128(block_path.read_bytes()).hexdigest()
    good = block_path.read_bytes()
    with block_path.open("r+b", buffering=0) as file:
        for at, byte in enumerate(good):
            bad = bytes([byte ^ 1 << (at % 8)])
            file.seek(at)
            file.write(bad)
            for copied in (False, True):
                with pytest.raises(CorruptBlockError):
                    load_block(block_path, key, len(good), checksum, copied=copied)
            file.seek(at)
            assert file.read(1) == bad, "reading must not remove anything"
            file.seek(at)
            file.write(bytes([byte]))
    assert samples.same(load_block(block_path, key, len(good), checksum), samples.block(bank, samples.page("one")))


def test_a_damaged_block_is_set_aside_until_it_is_put_again(bank: Bank, block_path: Path) -> None:
    block, good = samples.block(bank, samples.page("one")), block_path.read_bytes()
    block_path.write_bytes(good[:-1] + b"!")
    before = METRICS.value("bank_quarantines")
    with pytest.raises(CorruptBlockError, match="checksum"):
        bank.get_block(block.key)
    assert METRICS.value("bank_quarantines") == before + 1
    block_path.write_bytes(good)  # who knows what else is wrong with it: only a new compilation is trusted
    with pytest.raises(CorruptBlockError, match="as was found before"):
        bank.get_block(block.key)
    assert METRICS.value("bank_quarantines") == before + 1
    assert not bank.has_block(block.key)
    assert [problem.kind for problem in bank.verify()] == ["quarantined"]
    assert bank.stats().damaged == 1
    bank.put_block(block)
    assert samples.same(bank.get_block(block.key), block)
    assert bank.verify() == []


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 9, 100, -1])
def test_truncated_or_longer_file(bank: Bank, block_path: Path, kept: int) -> None:
    good = block_path.read_bytes()
    block = samples.block(bank, samples.page("one"))
    for bad in (good[:kept], good + good[:3]):
        block_path.write_bytes(bad)
        with pytest.raises(CorruptBlockError, match=r"has \d+ bytes instead of"):
            bank.get_block(block.key)
        bank.put_block(block)
        assert block_path.read_bytes() == good


def test_foreign_swapped_and_special_files(bank: Bank, block_path: Path) -> None:
    one, two = (samples.block(bank, samples.page(text)) for text in ("one", "two"))
    bank.put_block(two)
    other = bank.path / "blocks" / two.key.digest[:2] / f"{two.key.digest}.safetensors"
    good, swapped = block_path.read_bytes(), other.read_bytes()
    block_path.write_bytes(swapped)
    other.write_bytes(good)
    for block in (one, two):
        with pytest.raises(CorruptBlockError, match="checksum"):
            bank.get_block(block.key)
        bank.put_block(block)
    block_path.write_bytes(random.Random(1).randbytes(len(good)))
    with pytest.raises(CorruptBlockError):
        bank.get_block(one.key)
    bank.put_block(one)
    block_path.unlink()
    block_path.mkdir()
    with pytest.raises(CorruptBlockError, match="not a file"):
        bank.get_block(one.key)
    with pytest.raises(BankError):  # a folder is not silently replaced
        bank.put_block(one)
    block_path.rmdir()
    bank.put_block(one)
    assert samples.same(bank.get_block(one.key), one)
    assert samples.same(bank.get_block(two.key), two)


@pytest.mark.parametrize("field", [f.name for f in fields(BlockKey)])
def test_a_file_of_another_key_is_refused_by_field(tmp_path: Path, field: str) -> None:
    block = samples.block(samples.recipe(), "1" * 64)
    written = write_temporary(tmp_path / "block.tmp", block)
    asked = replace(block.key, **{field: 73 if field == "dpi" else "other"})
    with pytest.raises(BankMismatchError, match=field) as caught:
        load_block(written.path, asked, written.nbytes, written.checksum)
    assert caught.value.field == field


def _mutations(good: bytes, header: int, count: int):
    """Mutated files with their damage where it hurts: half of them in the header."""
    dice = random.Random(7)
    snippets = [
        b"[",
        b"{",
        b"[" * 3000,
        b"null",
        b"1e999",
        b"-1",
        b'"',
        b"\\ud800",
        b"\xff",
        b"9" * 5000,
        b"2.0",
        b"NaN",
        b" ",
    ]
    for _ in range(count):
        bad = bytearray(good)
        for _ in range(dice.randint(1, 3)):
            end = header if dice.random() < 0.5 else len(bad)
            at = dice.randrange(max(1, min(end, len(bad))))
            kind = dice.randrange(5)
            if kind == 0:
                bad[at : at + 1] = bytes([dice.randrange(256)])
            elif kind == 1:
                del bad[at : at + dice.randint(1, 50)]
            elif kind == 2:
                bad[at:at] = dice.choice(snippets)
            elif kind == 3:
                bad[at : at + 4] = dice.choice(snippets)[:4]
            else:
                bad[:8] = dice.choice([0, 1, len(bad), 2**63, 2**64 - 1, header]).to_bytes(8, "little")
        if bad != good:
            yield bytes(bad)


@storages
def test_fuzzed_files_raise_nothing_but_corrupt(tmp_path: Path, storage: str) -> None:
    block = golden_block(storage)
    written = write_temporary(tmp_path / "block.tmp", block)
    good = written.path.read_bytes()
    start = len(BlockHeader.parse(good, len(good)).encode())
    path = tmp_path / "bad"
    with path.open("w+b", buffering=0) as file:
        for bad in _mutations(good, start, 7000):
            file.seek(0)
            file.write(bad)
            file.truncate()
            with pytest.raises(CorruptBlockError):
                load_block(path, block.key, written.nbytes, written.checksum)


@storages
def test_fuzzed_headers_are_refused_or_spelled_right_even_without_the_checksum(storage: str) -> None:
    good = GOLDENS[storage].read_bytes()
    start = len(BlockHeader.parse(good, len(good)).encode())
    accepted = 0
    for bad in _mutations(good, start, 4000):
        try:
            header = BlockHeader.parse(bad, len(bad))
        except CorruptBlockError:
            continue
        accepted += 1  # damage in the tensors, or another valid key
        assert bad.startswith(header.encode())
        assert len(bad) == len(header.encode()) + header.nbytes
    assert accepted > 100


@pytest.mark.parametrize(
    "change",
    [
        lambda head: head["__metadata__"].update(version="2"),
        lambda head: head["__metadata__"].update(storage="native"),
        lambda head: head["__metadata__"].update(storage="int8", version="2"),
        lambda head: head["__metadata__"].update(format="other"),
        lambda head: head["__metadata__"].update(extra="1"),
        lambda head: head["__metadata__"].pop("page"),
        lambda head: head["__metadata__"].update(dpi="072"),
        lambda head: head["__metadata__"].update(span="-1"),
        lambda head: head["__metadata__"].update(dtype="float8"),
        lambda head: head["keys"].update(shape=[2.0, 1, 3, 4]),
        lambda head: head["keys"].update(shape=[2, True, 3, 4]),
        lambda head: head["keys"].update(shape=[2, 1, 12]),
        lambda head: head["keys"].update(shape=[0, 1, 3, 4]),
        lambda head: head["keys"].update(shape=[10**400, 1, 3, 4]),
        lambda head: head["values"].update(data_offsets=[0, 48]),
        lambda head: head["positions"].update(shape=[]),
        lambda head: head.pop("values"),
        lambda head: head.update(extra=head["values"]),
    ],
)
def test_a_header_that_is_not_exactly_right_is_refused(change) -> None:
    refused(GOLDEN.read_bytes(), change)


def refused(good: bytes, change) -> None:
    start = len(BlockHeader.parse(good, len(good)).encode())
    head = json.loads(good[8:start])
    change(head)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 64)
    with pytest.raises(CorruptBlockError):
        BlockHeader.parse(len(text).to_bytes(8, "little") + text + good[start:], 8 + len(text) + len(good) - start)


def test_blocks_that_do_not_fit_together_arerefused(bank: Bank) -> None:
    good = samples.block(bank, "1" * 64)
    for change in (
        {"values": good.values[:1]},
        {"keys": good.keys[0], "values": good.values[0]},
        {"token_ids": good.token_ids[:3]},
        {"token_ids": good.token_ids.int()},
        {"positions": good.positions[0]},
        {"keys": good.keys[:, :, :0], "values": good.values[:, :, :0], "token_ids": good.token_ids[:0]},
        {"span": -1},
        {"span": 2.0},
    ):
        with pytest.raises(CompileError, match="does not fit together"):
            bank.put_block(replace(good, **change))
    for change in ({"keys": good.keys.float()}, {"values": good.values.half()}):
        with pytest.raises(BankMismatchError, match="key says bfloat16") as caught:
            bank.put_block(replace(good, **change))
        assert caught.value.field == "dtype"
    assert not bank.has_block(good.key)
    assert bank.verify(grace_s=0) == []


def test_check_file_reads_without_mapping(bank: Bank, block_path: Path) -> None:
    raw = block_path.read_bytes()
    header = check_file(block_path, len(raw), xxhash.xxh3_128_hexdigest(raw))
    assert header.key == samples.block(bank, samples.page("one")).key
    assert (header.span, header.shape, header.axes) == (5, (2, 2, 6, 4), 3)
