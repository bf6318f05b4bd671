"""JSON objects a line, with errors that name file and line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from reprlib import repr as shown
from typing import Any

from qvpic_rag.errors import InputError
from qvpic_rag.evaluation.strict_json import strict_json

__all__ = ["Row", "json_rows"]


@dataclass(frozen=True)
class Row:
    """One entry of a file; ``where`` says which, for messages."""

    where: str
    values: Mapping[str, Any]

    def wrong(self, problem: str) -> InputError:
        """An error about this row."""
        return InputError(f"{self.where}: {problem}.")

    def text(self, name: str) -> str:
        """A field that must hold text.

        Raises
        ------
        InputError
            It is missing, blank, or something else.
        """
        if name not in self.values:
            raise self.wrong(f"the field {name!r} is missing")
        value = self.values[name]
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(f"{name!r} must be a text that is not empty, not {shown(value)}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A field that must hold a text, or a list of texts, one at least.

        Raises
        ------
        InputError
            It is missing, empty, or something else.
        """
        value = self.values.get(name)
        if not isinstance(value, list):
            return (self.text(name),)
        if not value or any(not isinstance(v, str) or not v.strip() for v in value):
            raise self.wrong(f"{name!r} must hold one text at least and none that is empty, not {shown(value)}")
        return tuple(value)


def json_rows(data: bytes, source: str) -> Iterator[Row]:
    """The objects of a JSONL file (UTF-8); empty lines are passed over.

    Raises
    ------
    InputError
        A line is no JSON object, or has a key twice.
    """
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"{source}, line {number}"
        try:
            values = strict_json(line)
        except ValueError as error:  # not UTF-8, or not JSON as it should be
            raise InputError(f"{where}: this is no JSON object in UTF-8 ({error}).") from error
        if not isinstance(values, dict):
            raise InputError(f"{where}: a JSON object is needed, not {type(values).__name__}.")
        yield Row(where, values)
