"""A run's settings, and lines of its files made records again; what is none of them is named in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from reprlib import repr as shown
from typing import Any, TypeVar

from qvpic_rag.config import RenderProfile
from qvpic_rag.errors import ConfigError, InputError
from qvpic_rag.evaluation.records import Answered, Example
from qvpic_rag.evaluation.strict_json import strict_json

__all__ = ["FORMAT", "check_settings", "record"]

_T = TypeVar("_T")
FORMAT = 1
_SETTINGS = {
    "suite": "dict", "model": "dict", "methods": "tuple[str, ...]", "environment": "dict", "embedder": "str | None",
    "preset": "str | None", "seed": "int", "started": "str",
}  # fmt: skip
_NEEDED = ("suite", "model", "methods")
_PAGE = {"lines": "tuple[str, ...]", "text": "str", "source": "str", "number": "int"}
_ROUTED = {
    "dpi": "int | None", "score": "float", "rank": "int", "promoted": "bool", "tokens": "int", "place": "int",
}  # fmt: skip
_RANGES = {"f1": (0, 1), "em": (0, 1), "callers": (1, None), "max_new_tokens": (1, None), "dpi": (24, 600)}
_ANY_SIGN = ("score",)
"""No other number can be negative."""


def check_settings(settings: Any, where: str) -> None:
    """Whether this is what ``run.json`` holds; ``where`` names the file in messages.

    Raises
    ------
    InputError
        It describes no run, is damaged or of a newer version.
    """
    if not isinstance(settings, dict) or not _fits(settings.get("format"), "int") or settings["format"] < 1:
        raise InputError(f"{where} does not describe a run; name the --out of `qvpic eval run`.")
    if settings["format"] > FORMAT:
        raise InputError(f"{where} was written by a newer qvpic-rag; upgrade qvpic-rag to read it.")
    for name, declared in _SETTINGS.items():
        if name not in settings and name in _NEEDED:
            raise InputError(f"{where} has no {name}; the run is damaged, use another --out.")
        if name in settings and not _fits(settings[name], declared):
            raise InputError(
                f"{where}: {name} cannot be {shown(settings[name])}; the run is damaged, use another --out."
            )
    for name in ("suite", "model"):
        if not isinstance(settings[name].get("name", ""), str):
            raise InputError(f"{where}: the {name}'s name must be text; the run is damaged, use another --out.")
    profile = settings["model"].get("profile")
    try:
        if profile is not None:
            RenderProfile.from_dict(profile if isinstance(profile, dict) else {})
    except ConfigError as error:
        raise InputError(f"{where}: the model's profile is none ({error}); use another --out.") from error


def record(cls: type[_T], line: bytes, where: str) -> _T:
    """The record that a line of JSON holds; ``where`` names the line in messages.

    Raises
    ------
    InputError
        The line is no JSON object with the record's fields, of the right types.
    """
    try:
        values = strict_json(line)
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
                raise InputError(f"{where}: {name} must be {field.type}, not {shown(values[name])}.")
            _check_range(values[name], name, where)
        elif field.default is MISSING:
            raise InputError(f"{where} lacks the field {name!r}; remove that line and run again.")
        else:
            values[name] = field.default
    if cls is Example:
        for page in values["pages"]:
            _check(page, _PAGE, f"{where}: a page")
        places = [] if values["evidence"] is None else values["evidence"]
        if not all(_fits(place, "int") and 0 <= place < len(values["pages"]) for place in places):
            raise InputError(f"{where}: evidence must be places in its pages, not {shown(places)}.")
        if values["missed"] and values["evidence"] is None:
            raise InputError(f"{where}: evidence that is not known cannot be missed.")
        return Example.from_dict(values)  # type: ignore[return-value]
    if cls is Answered:
        for routed in values["route"]:
            _check(routed, _ROUTED, f"{where}: a page of the route")
        values["route"] = tuple(values["route"])
    return cls(**values)


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
    if declared in ("bool", "dict"):
        return isinstance(value, bool if declared == "bool" else dict)
    kinds: dict[str, Any] = {"str": str, "int": int, "float": (int, float)}
    return isinstance(value, kinds[declared]) and not isinstance(value, bool)


def _check(value: Any, wanted: Mapping[str, str], where: str) -> None:
    if not isinstance(value, dict) or not all(
        name in value and _fits(value[name], kind) for name, kind in wanted.items()
    ):
        raise InputError(f"{where} must have {', '.join(wanted)}, not {shown(value)}.")
    for name in wanted:
        _check_range(value[name], name, where)


def _check_range(value: Any, name: str, where: str) -> None:
    for each in value.values() if name == "stages" else [value]:
        if isinstance(each, int | float) and name not in _ANY_SIGN:
            least, most = _RANGES.get(name, (0, None))
            if each < least or (most is not None and each > most):
                upper = " or more" if most is None else f" to {most}"
                raise InputError(f"{where}: {name} must be {least}{upper}, not {each!r}.")
