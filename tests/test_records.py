"""Keys: every field counts, none can be mistaken for another, and the digest never changes by accident."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qvpic_rag.records import BlockKey, Page, Timing, stable_digest

KEY = BlockKey("m", "bfloat16", "x", "p", "r", "native", 72, "page", "default")
FIELDS = [field.name for field in dataclasses.fields(BlockKey)]
KEYS = st.builds(BlockKey, *[st.text(max_size=4)] * 6, st.integers(1, 600), *[st.text(max_size=4)] * 2)


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_is_part_of_the_key(name: str) -> None:
    other = dataclasses.replace(KEY, **{name: 120 if name == "dpi" else getattr(KEY, name) + "'"})
    assert other.digest != KEY.digest
    assert KEY.differing(other) == [name]


@given(first=KEYS, second=KEYS)
def test_digests_are_equal_only_for_equal_keys(first: BlockKey, second: BlockKey) -> None:
    assert (first.digest == second.digest) == (first == second)


def test_digests_are_stable_across_versions() -> None:
    """Stored banks depend on these."""
    assert KEY.digest == "995f61c94d6b76c893b4a579331deef9d897c1f59d82227d19ae359bea816014"
    assert (
        Page(("a", "b c"), "a b c", "s", 0).digest == "8c76884296cd4981663dd1413a7bca4fc5d6020ae2b47c2be5f6a535c1a3b892"
    )


def test_pages_that_look_alike_share_a_digest() -> None:
    assert Page(("a",), "a", "s", 0).digest == Page(("a",), "A", "other", 3).digest
    assert Page(("a", "b"), "", "", 0).digest != Page(("a b",), "", "", 0).digest


def test_digest_ignores_the_order_of_mappings_only() -> None:
    assert stable_digest({"a": 1, "b": 2}) == stable_digest({"b": 2, "a": 1})
    assert stable_digest([1, 2]) != stable_digest([2, 1])
    assert stable_digest("1") != stable_digest(1)


def test_compile_time_is_reported_only_where_there_was_one() -> None:
    assert "compile" not in Timing().to_dict()
    assert Timing(compile=3.0).to_dict()["compile"] == 3.0
