"""The few tables of a TrueType or OpenType file that layout needs.

Pillow gives advances rounded to whole pixels by the font's hinting and cannot say which characters a font has, so both
are read from the file: ``cmap`` (character to glyph) and ``hmtx`` (advance of a glyph in font units).
Table formats: the OpenType specification, version 1.9.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

__all__ = ["FontTables", "read_tables"]

# (platform, encoding) of a Unicode subtable, best first: the first ones reach beyond the basic plane.
_UNICODE = ((3, 10), (0, 6), (0, 4), (3, 1), (0, 3), (0, 2), (0, 1), (0, 0))


@dataclass(frozen=True)
class FontTables:
    """What a font file says about its characters.

    Attributes
    ----------
    ascent : float
        Height of the ascender above the baseline, in em.
    advances : dict[int, float]
        Unhinted advance in em of every code point that the font has a glyph for.
    """

    ascent: float
    advances: dict[int, float]


def read_tables(path: Path) -> FontTables:
    """Read the first font of a file.

    Raises
    ------
    ValueError
        The file is no outline font with a Unicode character map (bitmap and colour-bitmap fonts are refused: they
        cannot be scaled).
    OSError
        The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            tables = _directory(file)
            if not tables.keys() & {b"glyf", b"CFF ", b"CFF2"}:
                raise ValueError("it holds no outlines")
            em = struct.unpack_from(">H", _table(file, tables, b"head"), 18)[0]
            header = _table(file, tables, b"hhea")
            ascent, metrics = struct.unpack_from(">h", header, 4)[0], struct.unpack_from(">H", header, 34)[0]
            widths = np.frombuffer(_table(file, tables, b"hmtx"), dtype=">u2", count=2 * metrics)[::2]
            glyphs = _cmap(_table(file, tables, b"cmap"))
    except (struct.error, IndexError) as error:
        raise ValueError(f"its tables are damaged ({error})") from error
    if em == 0 or metrics == 0:
        raise ValueError("its metrics are empty")
    # Glyphs past the last metric share its advance.
    em_widths = (widths.astype(np.float64) / em).tolist()
    advances = {code: em_widths[min(glyph, metrics - 1)] for code, glyph in glyphs.items()}
    return FontTables(ascent=ascent / em, advances=advances)


def _directory(file: BinaryIO) -> dict[bytes, tuple[int, int]]:
    """Tag -> (offset, length); of a collection, its first font's."""
    start = 0
    if file.read(4) == b"ttcf":
        file.seek(12)
        start = struct.unpack(">I", file.read(4))[0]
    file.seek(start)
    magic, count = struct.unpack(">4sH", file.read(6))
    if magic not in (b"\x00\x01\x00\x00", b"OTTO", b"true"):
        raise ValueError("it is not a TrueType or OpenType file")
    file.seek(start + 12)
    records = struct.iter_unpack(">4sIII", file.read(16 * count))
    return {tag: (offset, length) for tag, _, offset, length in records}


def _table(file: BinaryIO, tables: dict[bytes, tuple[int, int]], tag: bytes) -> bytes:
    if tag not in tables:
        raise ValueError(f"its table {tag.decode()} is missing")
    offset, length = tables[tag]
    file.seek(offset)
    return file.read(length)


def _cmap(data: bytes) -> dict[int, int]:
    """Code point -> glyph of the widest Unicode subtable, glyph 0 (missing) left out."""
    count = struct.unpack_from(">H", data, 2)[0]
    found = {}
    for platform, encoding, offset in struct.iter_unpack(">HHI", data[4 : 4 + 8 * count]):
        if struct.unpack_from(">H", data, offset)[0] in (4, 12):
            found[platform, encoding] = offset
    for key in _UNICODE:
        if key in found:
            offset = found[key]
            read = _format_4 if struct.unpack_from(">H", data, offset)[0] == 4 else _format_12
            return {code: glyph for code, glyph in read(data, offset).items() if glyph}
    raise ValueError("it has no Unicode character map")


def _format_4(data: bytes, offset: int) -> dict[int, int]:
    """Segments of the basic plane."""
    segments = struct.unpack_from(">H", data, offset + 6)[0] // 2

    def words(position: int, dtype: str) -> list[int]:
        values: list[int] = np.frombuffer(data, dtype=dtype, count=segments, offset=position).tolist()
        return values

    base = offset + 14
    ends = words(base, ">u2")
    starts = words(base + 2 * segments + 2, ">u2")
    deltas = words(base + 4 * segments + 2, ">i2")
    ranges_at = base + 6 * segments + 2
    glyphs: dict[int, int] = {}
    for index, (start, end, delta, shift) in enumerate(zip(starts, ends, deltas, words(ranges_at, ">u2"), strict=True)):
        for code in range(start, min(end, 0xFFFE) + 1):
            glyph = code
            if shift:
                at = ranges_at + 2 * index + shift + 2 * (code - start)
                glyph = struct.unpack_from(">H", data, at)[0]
                if not glyph:
                    continue
            glyphs[code] = (glyph + delta) & 0xFFFF
    return glyphs


def _format_12(data: bytes, offset: int) -> dict[int, int]:
    """Groups of consecutive code points, all planes."""
    count = struct.unpack_from(">I", data, offset + 12)[0]
    glyphs: dict[int, int] = {}
    for start, end, glyph in struct.iter_unpack(">III", data[offset + 16 : offset + 16 + 12 * count]):
        if end > 0x10FFFF:
            raise ValueError("its character map is damaged")
        glyphs.update(zip(range(start, end + 1), range(glyph, glyph + end - start + 1), strict=True))
    return glyphs
