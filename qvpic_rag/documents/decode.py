"""Bytes to text: UTF-8, or UTF-16 with a byte order mark; anything else is refused, never guessed."""

from __future__ import annotations

import codecs
import re

from qvpic_rag.errors import DocumentError

__all__ = ["SAMPLE_BYTES", "decode", "is_binary"]

SAMPLE_BYTES = 8192
"""How much of a file decides whether it is binary."""

# Control characters that no text encoding uses in text; tab, line ends, form feed, backspace and escape may occur.
_CONTROL = re.compile(rb"[\x00-\x07\x0e-\x1a\x1c-\x1f]")
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def decode(data: bytes, source: str) -> str:
    """Decode a text file; line ends become ``\\n`` and a byte order mark is dropped.

    Raises
    ------
    DocumentError
        The file is binary, or in another encoding.
    """
    encoding, start = next(((name, len(bom)) for bom, name in _BOMS if data.startswith(bom)), ("utf-8", 0))
    try:
        text = data[start:].decode(encoding)
    except UnicodeDecodeError as error:
        if start == 0 and is_binary(data):
            raise _binary(source) from error
        place = error.start + start
        found = f"byte 0x{data[place]:02x} at offset {place}"
        raise DocumentError(f"{source!r} is not {encoding.upper()} text ({found}); convert it to UTF-8.") from error
    if "\0" in text:
        raise _binary(source)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def is_binary(data: bytes) -> bool:
    """Whether the first bytes hold something that text does not; UTF-16 needs its byte order mark to pass as text."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return False
    return _CONTROL.search(data[:SAMPLE_BYTES]) is not None


def _binary(source: str) -> DocumentError:
    return DocumentError(f"{source!r} is a binary file, not text; convert it to UTF-8 text.")
