"""An example put to a method."""

from __future__ import annotations

from qvpic_rag.baselines.base import Request
from qvpic_rag.config import GenerateConfig
from qvpic_rag.errors import CompileError, ContextOverflowError, GenerationError
from qvpic_rag.evaluation.records import Example

__all__ = ["FAILURES", "request_of"]

FAILURES = (CompileError, ContextOverflowError, GenerationError)
"""What one example can do to one method; everything else is wrong with the run."""


def request_of(example: Example) -> Request:
    """The request that every method gets; answers are greedy."""
    return Request(
        example.pages,
        example.before,
        example.after,
        example.query,
        GenerateConfig(max_new_tokens=example.max_new_tokens),
    )
