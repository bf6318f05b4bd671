"""JSON as files of questions and of runs may hold it; what Python reads besides is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

__all__ = ["strict_json"]

_WHOLE = 2**63  # whole numbers fit 64 bits


def strict_json(data: bytes) -> Any:
    """The value that UTF-8 bytes hold.

    Raises
    ------
    ValueError
        They are no JSON; or an object has a key twice, a number is none or is too large, or values are nested deeper
        than they can be read.
    """
    try:
        return json.loads(
            data.decode("utf-8"),
            parse_constant=_constant,
            parse_float=_float,
            parse_int=_int,
            object_pairs_hook=_object,
        )
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text:.20} is too large")
    return value


def _int(text: str) -> int:
    value = int(text) if len(text) <= 20 else _WHOLE
    if not -_WHOLE <= value < _WHOLE:
        raise ValueError(f"the whole number {text:.30} does not fit 64 bits")
    return value


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r:.60} stands twice in an object")
    return values
