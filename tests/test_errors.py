"""Errors keep what they say, wherever they travel."""

from __future__ import annotations

import pickle

import pytest

from qvpic_rag import errors
from qvpic_rag.errors import BankMismatchError

KINDS = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_errors_cross_process_borders(kind: type[Exception]) -> None:
    """A process pool whose worker raised an error that cannot be unpickled waits for ever."""
    raised = kind("What.", field="dtype") if kind is BankMismatchError else kind("What.")
    again = pickle.loads(pickle.dumps(raised))
    assert type(again) is kind
    assert str(again) == "What."
    assert vars(again) == vars(raised)
