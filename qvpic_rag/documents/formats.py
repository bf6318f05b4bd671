"""One reader per file type: bytes and the source's name in, plain text out."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from qvpic_rag.documents.decode import decode
from qvpic_rag.documents.html import html_text
from qvpic_rag.documents.pdf import pdf_text
from qvpic_rag.errors import DocumentError

__all__ = ["READERS"]

_DELIMITERS = ",;\t|"
_SNIFFED_ROWS = 50


def _html(data: bytes, source: str) -> str:
    return html_text(decode(data, source), source)


def _csv(data: bytes, source: str) -> str:
    """One ``header: value`` line per filled cell, an empty line between rows.

    The first row is the header if there are more rows, its cells are filled and all different, and none is a number;
    else the columns are called ``column 1``, ``column 2`` and so on.
    """
    text = decode(data, source)
    rows = [row for row in _csv_rows(text, _delimiter(text), source) if any(cell.strip() for cell in row)]
    header: list[str] = []
    if len(rows) > 1 and _is_header(rows[0]):
        header = [" ".join(cell.split()) for cell in rows.pop(0)]
    return "\n\n".join("\n".join(_csv_lines(row, header)) for row in rows)


def _csv_lines(row: list[str], header: list[str]) -> Iterator[str]:
    for place, cell in enumerate(row):
        value = " ".join(cell.split())
        if value:
            name = header[place] if place < len(header) else f"column {place + 1}"
            yield f"{name}: {value}"


def _csv_rows(text: str, delimiter: str, source: str) -> Iterator[list[str]]:
    try:
        yield from csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    except csv.Error as error:
        raise DocumentError(f"{source!r} is not a readable CSV file ({error}); check its quotation marks.") from error


def _delimiter(text: str) -> str:
    """The delimiter that gives most of the first rows the same number of columns, more than one; else a comma."""
    sample = list(islice(io.StringIO(text, newline=""), _SNIFFED_ROWS))
    best, best_rank = _DELIMITERS[0], (0.0, 0)
    for delimiter in _DELIMITERS:
        try:
            widths = [len(row) for row in csv.reader(sample, delimiter=delimiter) if row]
        except csv.Error:
            continue  # reading the whole file with the chosen delimiter reports it
        width = max(sorted(set(widths)), key=widths.count, default=1)
        rank = (widths.count(width) / len(widths), width) if width > 1 else (0.0, 0)
        if rank > best_rank:
            best, best_rank = delimiter, rank
    return best


def _is_header(row: list[str]) -> bool:
    cells = [cell.strip() for cell in row]
    return all(cells) and len(set(cells)) == len(cells) and not any(_is_number(cell) for cell in cells)


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True


def _json(data: bytes, source: str) -> str:
    """``path: value`` lines such as ``staff[0].name: Marta``; a list of objects is a list of records."""
    return _records([_parse(decode(data, source), source)], source)


def _json_lines(data: bytes, source: str) -> str:
    lines = enumerate(decode(data, source).split("\n"), start=1)
    return _records([_parse(line, source, f"line {number}") for number, line in lines if line.strip()], source)


def _parse(text: str, source: str, place: str = "") -> Any:
    if not text.strip():
        raise DocumentError(f"{source!r} is empty; give a file that holds text.")
    try:
        # Numbers stay as they are written: 1.10 is not 1.1 to a reader.
        return json.loads(text, parse_float=str, parse_int=str, parse_constant=str)
    except json.JSONDecodeError as error:
        where = place or f"line {error.lineno}"
        raise DocumentError(f"{source!r} is not valid JSON ({error.msg} at {where}, column {error.colno}).") from error
    except RecursionError as error:
        raise _too_deep(source) from error


def _records(values: list[Any], source: str) -> str:
    """Records with an empty line between them, each without the number it has in the list."""
    if len(values) == 1 and isinstance(values[0], list) and all(isinstance(item, dict) for item in values[0]):
        values = values[0]
    try:
        text = "\n\n".join("\n".join(_flat(value, "")) for value in values)
    except RecursionError as error:
        raise _too_deep(source) from error
    # An escaped half of a surrogate pair is no character.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _flat(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for place, item in enumerate(value):
            yield from _flat(item, f"{path}[{place}]")
    else:
        text = value if isinstance(value, str) else json.dumps(value)
        yield f"{path}: {text}" if path else text


def _too_deep(source: str) -> DocumentError:
    return DocumentError(f"{source!r} is nested too deeply; flatten it or split it into files.")


READERS: dict[str, Callable[[bytes, str], str]] = {
    ".txt": decode,
    ".md": decode,
    ".markdown": decode,
    ".html": _html,
    ".htm": _html,
    ".csv": _csv,
    ".json": _json,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".pdf": pdf_text,
}
"""Reader by file ending, lower case."""
