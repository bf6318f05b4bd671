"""JSON: what Python writes comes back, what only Python reads is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qvpic_rag.evaluation.strict_json import strict_json

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(VALUES)
def test_values_come_back(value: Any) -> None:
    assert strict_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b'"\xff"', "utf-8"),
        (b"NaN", "NaN is no number"),
        (b"[-Infinity]", "-Infinity is no number"),
        (b"1e999", "1e999 is too large"),
        (b"[-1e999]", "-1e999 is too large"),
        (b"9223372036854775808", "does not fit 64 bits"),
        (b"-9223372036854775809", "does not fit 64 bits"),
        (b"1" * 400, "does not fit 64 bits"),
        (b"1" * 10_000, "does not fit 64 bits"),
        (b'{"a": 1, "b": 2, "a": 1}', "the key 'a' stands twice in an object"),
        (b'[{"x": {"": 1, "": 2}}]', "the key '' stands twice in an object"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        strict_json(data)
    assert len(str(caught.value)) < 200
