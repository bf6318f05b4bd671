"""Lines of a run's files made records again; a line that is none is named in one sentence."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from qvpic_rag.errors import InputError
from qvpic_rag.evaluation.records import Answered, Example

__all__ = ["record"]

_T = TypeVar("_T")
_PAGE = {"lines": list, "text": str, "source": str, "number": int}
_ROUTED = {"dpi": (int, type(None)), "score": (int, float), "rank": int, "promoted": bool, "tokens": int, "place": int}


def record(cls: type[_T], line: bytes, where: str) -> _T:
    """The record that a line of JSON holds; ``where`` names the line in messages.

    Raises
    ------
    InputError
        The line is no JSON object with the record's fields, of the right types.
    """
    try:
        values = json.loads(line, parse_constant=_refused)
    except ValueError as error:
        raise InputError(f"{where} is not valid JSON ({error}); remove that line and run again.") from error
    if not isinstance(values, dict):
        raise InputError(f"{where} is not a JSON object; remove that line and run again.")
    known = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise InputError(f"{where} has the unknown field {name!r}; it was written by another version.")
    for name, field in known.items():
        if name in values:
            if not _fits(values[name], str(field.type)):
                raise InputError(f"{where}: {name} must be {field.type}, not {values[name]!r:.60}.")
        elif field.default is MISSING:
            raise InputError(f"{where} lacks the field {name!r}; remove that line and run again.")
        else:
            values[name] = field.default
    if cls is Example:
        for page in values["pages"]:
            _check(page, _PAGE, f"{where}: a page")
            if not _fits(page["lines"], "tuple[str, ...]"):
                raise InputError(f"{where}: the lines of a page must be texts.")
        places = [] if values["evidence"] is None else values["evidence"]
        if not all(isinstance(place, int) and 0 <= place < len(values["pages"]) for place in places):
            raise InputError(f"{where}: evidence must be places in its pages, not {places!r:.60}.")
        if values["missed"] and values["evidence"] is None:
            raise InputError(f"{where}: evidence that is not known cannot be missed.")
        return Example.from_dict(values)  # type: ignore[return-value]
    if cls is Answered:
        for routed in values["route"]:
            _check(routed, _ROUTED, f"{where}: a page of the route")
        values["route"] = tuple(values["route"])
    return cls(**values)


def _refused(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _fits(value: Any, declared: str) -> bool:
    """Whether a JSON value can be what a field is declared as."""
    if declared.endswith(" | None"):
        return value is None or _fits(value, declared.removesuffix(" | None"))
    if declared == "tuple[str, ...]":
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    if declared.startswith("tuple["):
        return isinstance(value, list)
    if declared == "Mapping[str, float]":
        return isinstance(value, dict) and all(_fits(each, "float") for each in value.values())
    if declared == "bool":
        return isinstance(value, bool)
    kinds: dict[str, Any] = {"str": str, "int": int, "float": (int, float)}
    return isinstance(value, kinds[declared]) and not isinstance(value, bool)


def _check(value: Any, wanted: dict[str, Any], where: str) -> None:
    if not isinstance(value, dict) or any(not isinstance(value.get(name), kind) for name, kind in wanted.items()):
        raise InputError(f"{where} must have {', '.join(wanted)}, not {value!r:.60}.")
