"""Packed blocks in files (format version 2): what only they have; test_blockfile.py holds what all blocks have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qvpic_rag.bank.blockfile import load_block, write_temporary
from qvpic_rag.errors import BankMismatchError, CompileError, CorruptBlockError
from tests.bank import samples
from tests.bank.test_blockfile import GOLDENS, golden_block, refused

storages = pytest.mark.parametrize("storage", ["int8", "int4"])


@settings(max_examples=40, deadline=None)
@given(
    storage=st.sampled_from(["int8", "int4"]),
    dtype=st.sampled_from(["bfloat16", "float16", "float32"]),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 130), st.integers(1, 9)),
    axes=st.integers(1, 3),
)
def test_any_packed_block_comes_back(tmp_path_factory, storage, dtype, shape, axes) -> None:
    folder = tmp_path_factory.getbasetemp() / "packed"
    folder.mkdir(exist_ok=True)
    recipe = samples.recipe(dtype=dtype, storage=(storage, storage))
    block = samples.block(recipe, "1" * 64, shape=shape, axes=axes)
    written = write_temporary(folder / f"{block.key.digest}.tmp", block)
    found = load_block(written.path, block.key, written.nbytes, written.checksum)
    assert samples.same(found, block)
    assert (found.tokens, found.nbytes) == (shape[2], block.nbytes)
    assert found.keys.codes.data_ptr() % 64 == 0
    assert all(tensor.data_ptr() % tensor.itemsize == 0 for tensor in samples.tensors(found).values())
    written.path.unlink()


@storages
def test_every_flipped_byte_of_a_packed_block_is_noticed(tmp_path: Path, storage: str) -> None:
    block = golden_block(storage)
    written = write_temporary(tmp_path / "block.tmp", block)
    good = written.path.read_bytes()
    with written.path.open("r+b", buffering=0) as file:
        for at, byte in enumerate(good):
            for value in (byte ^ 1 << (at % 8), byte):
                file.seek(at)
                file.write(bytes([value]))
                if value != byte:
                    with pytest.raises(CorruptBlockError):
                        load_block(written.path, block.key, written.nbytes, written.checksum)
    assert samples.same(load_block(written.path, block.key, written.nbytes, written.checksum), block)


@storages
@pytest.mark.parametrize(
    "change",
    [
        lambda head: head["__metadata__"].update(version="1"),
        lambda head: head["__metadata__"].update(storage="native"),
        lambda head: head["__metadata__"].update(storage="int2"),
        lambda head: head["__metadata__"].update(storage=["int8"]),
        lambda head: head["__metadata__"].update(dtype="float8"),
        lambda head: head["__metadata__"].pop("storage"),
        lambda head: head["keys.codes"].update(dtype="F16"),
        lambda head: head["keys.scales"].update(shape=[1, 2, 2, 4]),
        lambda head: head["keys.scales"].update(shape=[1, 2, 3, 3]),
        lambda head: head["values.scales"].update(shape=[1, 2, 66]),
        lambda head: head["positions"].update(shape=[3, 67]),
        lambda head: head.pop("values.scales"),
        lambda head: head.update(keys=head["keys.codes"]),
    ],
)
def test_a_packed_header_that_is_not_exactly_right_is_refused(storage, change) -> None:
    refused(GOLDENS[storage].read_bytes(), change)


@pytest.mark.parametrize(
    ("says", "holds"), [("int8", "native"), ("native", "int8"), ("int8", "int4"), ("int4", "int8")]
)
def test_a_block_in_another_form_than_its_key_says_isrefused(tmp_path: Path, says: str, holds: str) -> None:
    block = golden_block(holds)
    with pytest.raises(BankMismatchError, match=f"keys are {holds}, but its key says {says}") as caught:
        write_temporary(tmp_path / "block.tmp", replace(block, key=replace(block.key, storage=says)))
    assert caught.value.field == "storage"
    with pytest.raises(BankMismatchError, match="cannot be stored as 'int2'"):
        write_temporary(tmp_path / "block.tmp", replace(block, key=replace(block.key, storage="int2")))
    assert list(tmp_path.iterdir()) == []


@storages
def test_packed_tensors_that_do_not_fit_together_arerefused(tmp_path: Path, storage: str) -> None:
    block = golden_block(storage)
    for name in ("keys", "values"):
        held = getattr(block, name)
        for change in (
            {"codes": held.codes[..., :1]},
            {"codes": held.codes.float()},
            {"scales": held.scales[:, :, :1]},
            {"scales": held.scales.float()},
        ):
            with pytest.raises(CompileError, match=f"its {name}.* instead of"):
                write_temporary(tmp_path / "block.tmp", replace(block, **{name: replace(held, **change)}))
    with pytest.raises(CompileError, match="does not fit together"):
        write_temporary(
            tmp_path / "block.tmp", replace(block, values=replace(block.values, shape=torch.Size((1, 2, 66, 5))))
        )
