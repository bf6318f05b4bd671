"""Banks of smaller blocks, from end to end on the bundled reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from qvpic_rag import QVPIC, Document
from qvpic_rag.demo import demo_documents
from qvpic_rag.errors import BankMismatchError, ConfigError
from qvpic_rag.packing import storage_of
from tests.bank import samples

BADGE = "What is the badge code of Omar Reyes?"


@pytest.mark.parametrize("storage", ["int8", "int4", ("int4", "int8")])
def test_a_smaller_bank_answers(tmp_path: Path, demo_bank: Path, storage: str | tuple[str, str]) -> None:
    with QVPIC.open(demo_bank) as native:
        size, usage = sum(native.bank.stats().block_bytes.values()), native.ask(BADGE, max_new_tokens=32).usage
    with QVPIC.from_pretrained("demo", tmp_path / "bank", storage=storage) as rag:
        rag.ingest(demo_documents(), progress=False)
        answer = rag.ask(BADGE, max_new_tokens=32)
        assert answer.text == "TB-209"
        assert answer.route.compiled == ()
        assert answer.usage == usage, "the cache in use is the model's, however blocks are stored"
        assert sum(rag.bank.stats().block_bytes.values()) < 0.5 * size
        assert rag.bank.verify(grace_s=0) == []
        recipe = rag.bank.recipe
    with QVPIC.open(tmp_path / "bank") as again:
        assert again.bank.recipe == recipe
        assert again.ask(BADGE, max_new_tokens=32).text == "TB-209"
    pair = (storage, storage) if isinstance(storage, str) else storage
    assert recipe.storage == pair


def test_what_was_just_compiled_is_what_is_loaded(tmp_path: Path) -> None:
    with QVPIC.from_pretrained("demo", tmp_path / "bank", storage="int8,native") as rag:
        [page] = rag.engine.layout("The badge code of Omar Reyes is TB-209.")
        compiled = {block.key.dpi: block for block in rag.engine.compile([(page, 72), (page, 120)])}
        assert {dpi: storage_of(block.keys) for dpi, block in compiled.items()} == {72: "int8", 120: "native"}
        assert storage_of(rag.engine.prefix.keys) == "native"
        for block in compiled.values():
            rag.bank.put_block(block)
            assert samples.same(rag.bank.get_block(block.key), block)
        context = [Document("The badge code of Omar Reyes is TB-209.", "note")]
        first, second = (rag.ask(BADGE, context=context, max_new_tokens=32) for _ in range(2))
        assert first.text == second.text


def test_another_storage_than_the_banks_is_refused(demo_bank: Path, tmp_path: Path) -> None:
    with pytest.raises(
        BankMismatchError, match=r"another storage format: it holds native,native, .* int8,int8"
    ) as caught:
        QVPIC.open(demo_bank, storage="int8")
    assert caught.value.field == "storage"
    with pytest.raises(ConfigError, match="native, int8 or int4"):
        QVPIC.from_pretrained("demo", tmp_path / "none", storage="fp8")
    assert not (tmp_path / "none").exists()
