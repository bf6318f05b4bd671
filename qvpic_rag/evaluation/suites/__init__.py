"""Questions with known answers: generated facts, LongBench, and one's own."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from qvpic_rag.errors import ConfigError
from qvpic_rag.evaluation.suites.base import Paginator, Suite
from qvpic_rag.evaluation.suites.facts import Facts
from qvpic_rag.evaluation.suites.folder import Folder
from qvpic_rag.evaluation.suites.longbench import LongBench

__all__ = ["SUITES", "Paginator", "Suite", "open_suite"]

_KINDS: dict[str, type[Facts] | type[LongBench] | type[Folder]] = {
    kind.name: kind for kind in (Facts, LongBench, Folder)
}
SUITES = tuple(_KINDS)
"""What :func:`open_suite` can open."""


def open_suite(name: str, **options: Any) -> Suite:
    """A suite by name; its class says which options it has.

    Raises
    ------
    ConfigError
        The suite or an option is unknown, missing or out of range.
    """
    if name not in _KINDS:
        raise ConfigError(f"There is no suite {name!r}; use {', '.join(SUITES)}.")
    kind = _KINDS[name]
    known = {field.name: field.default is MISSING for field in fields(kind)}
    for option in options:
        if option not in known:
            raise ConfigError(f"The suite {name} has no option {option!r}; its options are {', '.join(known)}.")
    for option, required in known.items():
        if required and option not in options:
            raise ConfigError(f"The suite {name} needs the option {option!r}.")
    return kind(**options)
