"""A font file with a square for every character asked for, so that tests need no installed fonts."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

__all__ = ["write_font"]

_EM = 1000


def write_font(path: Path, characters: Iterable[str], *, advance: int = _EM) -> Path:
    """Write a TrueType font: ``advance`` font units (1000 per em) for each character, a 600-unit square as picture."""
    codes = sorted({ord(character) for character in characters})
    groups = b"".join(struct.pack(">III", code, code, 1) for code in codes)
    subtable = struct.pack(">HHIII", 12, 0, 16 + len(groups), 0, len(codes)) + groups
    square = struct.pack(">hhhhhHH", 1, 100, 0, 700, 600, 3, 0) + bytes([1] * 4)
    square += struct.pack(">4h4h", 100, 0, 600, 0, 0, 600, 0, -600)
    square += b"\0" * (-len(square) % 4)
    tables = {
        b"cmap": struct.pack(">HHHHI", 0, 1, 3, 10, 12) + subtable,
        b"glyf": square,
        b"head": struct.pack(
            ">IIIIHHQQhhhhHHhhh", 0x10000, 0x10000, 0, 0x5F0F3CF5, 3, _EM, 0, 0, 0, 0, 700, 600, 0, 8, 2, 1, 0
        ),
        b"hhea": struct.pack(">IhhhHhhhhhh8xhH", 0x10000, 800, -200, 0, advance, 0, 0, 700, 1, 0, 0, 0, 1),
        b"hmtx": struct.pack(">Hhh", advance, 0, 100),
        b"loca": struct.pack(">III", 0, 0, len(square)),
        b"maxp": struct.pack(">IHHHHHHHHHHHHHH", 0x10000, 2, 4, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0),
    }
    offset = 12 + 16 * len(tables)
    directory, body = b"", b""
    for tag, data in sorted(tables.items()):
        directory += struct.pack(">4sIII", tag, 0, offset + len(body), len(data))
        body += data + b"\0" * (-len(data) % 4)
    path.write_bytes(struct.pack(">IHHHH", 0x10000, len(tables), 64, 2, 48) + directory + body)
    return path
