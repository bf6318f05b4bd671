"""The model family x dtype table that every equivalence test runs over: one row per family, one case per dtype."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

__all__ = ["CASES", "NATIVE", "ROWS", "TEXT_ROWS", "Case", "Row", "cases", "families", "row"]


@dataclass(frozen=True)
class Row:
    """What a test has to know about a family.

    Attributes
    ----------
    family : str
        ``config.model_type``.
    axes : int
        Position axes: 3 for M-RoPE, 1 for plain rotary positions.
    unrotated : str
        Submodule of ``self_attn`` whose output is the key before rotation.
    remote : bool
        Whether the code comes with the checkpoint.
    logits : float
        Largest logit difference between two exact paths in float32.
    """

    family: str
    axes: int
    unrotated: str
    remote: bool = False
    logits: float = 1e-4


@dataclass(frozen=True)
class Case:
    """A row at one dtype.

    Attributes
    ----------
    row : Row
    dtype : str
        ``float32`` or ``bfloat16``.
    logits : float | None
        Absolute tolerance of logits against the exact path at the same dtype; ``None`` where rounding decides and the
        error against float32 is compared instead (``ratio``).
    keys : float
        Relative tolerance of keys, against the largest key.
    ratio : float
        Most that the error against float32 may be, as a multiple of full prefill's error at the same dtype.
    """

    row: Row
    dtype: str
    logits: float | None
    keys: float
    ratio: float

    @property
    def family(self) -> str:
        return self.row.family

    @property
    def name(self) -> str:
        return f"{self.family}-{'fp32' if self.dtype == 'float32' else 'bf16'}"


ROWS = (
    Row("glm4v", axes=3, unrotated="k_proj"),
    Row("glm46v", axes=3, unrotated="k_proj"),
    Row("qwen2_vl", axes=3, unrotated="k_proj"),
    Row("qwen2_5_vl", axes=3, unrotated="k_proj"),
    Row("qwen3_vl", axes=3, unrotated="k_norm"),
    Row("llava_onevision", axes=1, unrotated="k_proj"),
    Row("llava_onevision2", axes=1, unrotated="k_norm", remote=True),
)
NATIVE = tuple(entry for entry in ROWS if not entry.remote)
TEXT_ROWS = (
    Row("llama", axes=1, unrotated="k_proj"),
    Row("mistral", axes=1, unrotated="k_proj"),
    Row("qwen2", axes=1, unrotated="k_proj"),
    Row("qwen3", axes=1, unrotated="k_norm"),
)
"""Models that read no pictures."""


def _cases(rows: tuple[Row, ...]) -> tuple[Case, ...]:
    return tuple(
        case
        for entry in rows
        for case in (
            Case(entry, "float32", logits=entry.logits, keys=1e-6, ratio=1.0),
            Case(entry, "bfloat16", logits=None, keys=2**-7, ratio=2.0),
        )
    )


CASES = _cases(ROWS)


def row(family: str) -> Row:
    """The row of ``family``."""
    return next(entry for entry in ROWS if entry.family == family)


def cases(*, dtype: str | None = None, remote: bool = True, text: bool = False) -> pytest.MarkDecorator:
    """Parametrise a test's ``case`` over the table, with ids such as ``qwen3_vl-bf16``; ``text`` adds text models."""
    rows = CASES + _cases(TEXT_ROWS) if text else CASES
    chosen = [c for c in rows if dtype in (None, c.dtype) and (remote or not c.row.remote)]
    return pytest.mark.parametrize("case", chosen, ids=[c.name for c in chosen])


def families(*, remote: bool = True, text: bool = False) -> pytest.MarkDecorator:
    """Parametrise a test's ``family`` over the table's rows; ``text`` adds text models."""
    rows = (ROWS if remote else NATIVE) + (TEXT_ROWS if text else ())
    return pytest.mark.parametrize("family", [entry.family for entry in rows])
