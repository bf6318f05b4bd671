"""Font files: which ones a profile uses, and which of them draws a character.

The chain of a profile is: its font, its ``fallback_fonts``, the bundled DejaVu Sans, then the fonts of
:data:`SYSTEM_FALLBACKS` that the system has, in that fixed order. The first font that has a character draws it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections.abc import Sequence
from functools import cache, cached_property, lru_cache
from pathlib import Path

from PIL import ImageFont, features

from qvpic_rag.config import RenderProfile
from qvpic_rag.errors import ConfigError
from qvpic_rag.render.sfnt import FontTables, read_tables

__all__ = ["BUNDLED_FONT", "SYSTEM_FALLBACKS", "Face", "FontChain", "has_raqm", "system_font"]

logger = logging.getLogger(__name__)

BUNDLED_FONT = Path(__file__).parents[1] / "assets" / "fonts" / "DejaVuSans.ttf"

# fmt: off
_NOTO_SCRIPTS = (
    "arabic", "hebrew", "devanagari", "bengali", "tamil", "telugu", "kannada", "malayalam", "gujarati", "gurmukhi",
    "oriya", "sinhala", "thai", "lao", "khmer", "myanmar", "tibetan", "ethiopic", "georgian", "armenian", "cherokee",
    "mongolian", "syriac", "thaana", "symbols", "symbols2", "math",
)
# fmt: on
# File names, lower case. Broad coverage first, then CJK, then single scripts, then what macOS and Windows bring.
SYSTEM_FALLBACKS = (
    "notosans-regular.ttf",
    "notosanscjk-regular.ttc",
    "notosanscjksc-regular.otf",
    "notosanssc-regular.otf",
    "sourcehansanssc-regular.otf",
    "wqy-zenhei.ttc",
    "wqy-microhei.ttc",
    "droidsansfallbackfull.ttf",
    "droidsansfallback.ttf",
    *(f"notosans{script}-regular.ttf" for script in _NOTO_SCRIPTS),
    "notoemoji-regular.ttf",
    "symbola.ttf",
    "unifont.ttf",
    "arial unicode.ttf",
    "hiragino sans gb.ttc",
    "applesdgothicneo.ttc",
    "geezapro.ttc",
    "msyh.ttc",
    "simsun.ttc",
    "msgothic.ttc",
    "malgun.ttf",
    "nirmala.ttf",
    "segoeui.ttf",
    "seguisym.ttf",
    "seguiemj.ttf",
)


def has_raqm() -> bool:
    """Whether this Pillow shapes complex scripts (its raqm layout needs the FriBiDi library)."""
    return bool(features.check_feature("raqm"))


def _system_folders() -> list[Path]:
    home = Path.home()
    if sys.platform == "win32":
        folders = [Path(os.environ.get("WINDIR", "C:/Windows")) / "Fonts"]
        if local := os.environ.get("LOCALAPPDATA"):
            folders.append(Path(local) / "Microsoft" / "Windows" / "Fonts")
        return folders
    if sys.platform == "darwin":
        return [Path("/System/Library/Fonts"), Path("/Library/Fonts"), home / "Library" / "Fonts"]
    return [
        Path("/usr/share/fonts"),
        Path("/usr/local/share/fonts"),
        home / ".local" / "share" / "fonts",
        home / ".fonts",
    ]


@cache
def _system_fonts() -> dict[str, Path]:
    """Lower-case file name -> path; of several with one name the first folder's, then the first by path."""
    found: dict[str, Path] = {}
    for folder in _system_folders():
        paths = [Path(root) / name for root, _, names in os.walk(folder) for name in names]
        for path in sorted(paths):
            if path.suffix.lower() in (".ttf", ".ttc", ".otf"):
                found.setdefault(path.name.lower(), path)
    return found


def system_font(name: str) -> Path | None:
    """Path of a font file of the system by its file name, lower case; None if it is not there."""
    return _system_fonts().get(name)


@lru_cache(maxsize=256)
def _file_digest(path: Path, size: int, modified: int) -> str:
    """SHA-256 (hex) of a file's bytes; size and modification time make a changed file a new entry."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


class Face:
    """One font file, its tables read when first asked for.

    Attributes
    ----------
    path : Path
        The file.
    required : bool
        Whether the profile names it; a damaged font that was only found on the system is passed over.
    """

    def __init__(self, path: Path, *, required: bool) -> None:
        self.path = path
        self.required = required

    @cached_property
    def tables(self) -> FontTables:
        """Characters and metrics; of a damaged system font, none.

        Raises
        ------
        ConfigError
            The profile names this font and it cannot be used.
        """
        try:
            tables = read_tables(self.path)
            ImageFont.truetype(str(self.path), 16)
        except (OSError, ValueError) as error:
            if self.required:
                raise ConfigError(
                    f"The font {str(self.path)!r} cannot be used ({error}); name a TrueType or OpenType file, "
                    "or 'bundled'."
                ) from error
            logger.info("passing over the font %s: %s", self.path, error)
            return FontTables(ascent=0.0, advances={})
        return tables

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the file's bytes."""
        status = self.path.stat()
        return _file_digest(self.path, status.st_size, status.st_mtime_ns)


class FontChain:
    """The fonts of a profile, in the order in which they are asked for a character.

    Attributes
    ----------
    faces : tuple[Face, ...]
        In order; everywhere else a font is an index into them.
    raqm : bool
        Whether scripts that need it are shaped.
    sized : Callable[[int, float, bool], ImageFont.FreeTypeFont]
        ``sized(face, pixels per em, shaped)``, remembered.
    """

    def __init__(self, profile: RenderProfile) -> None:
        named = [_primary(profile.font), *map(Path, profile.fallback_fonts)]
        system = _system_fonts()
        found = [BUNDLED_FONT, *(system[name] for name in SYSTEM_FALLBACKS if name in system)]
        paths = dict.fromkeys([*named, *found])
        self.faces = tuple(Face(path, required=path in named or path == BUNDLED_FONT) for path in paths)
        for face in self.faces[: len(dict.fromkeys(named))]:
            _ = face.tables  # a font that the profile names must be usable: say so now, not at the first odd character
        self.raqm = has_raqm()
        self._faces_by_character: dict[str, int | None] = {}
        # Not shared between chains: FreeType's faces are not safe to use from two threads at once.
        self.sized = lru_cache(maxsize=64)(self._sized)

    def _sized(self, face: int, pixels: float, shaped: bool) -> ImageFont.FreeTypeFont:
        """A font at a size in pixels per em; without ``shaped``, or without raqm, characters stand one by one."""
        engine = ImageFont.Layout.RAQM if shaped and self.raqm else ImageFont.Layout.BASIC
        return ImageFont.truetype(str(self.faces[face].path), pixels, layout_engine=engine)

    @property
    def ascent(self) -> float:
        """Height of the first font's ascender, em."""
        return self.faces[0].tables.ascent

    def face_of(self, character: str) -> int | None:
        """Index of the first font that has the character."""
        try:
            return self._faces_by_character[character]
        except KeyError:
            index = self.face_of_all(character)
            self._faces_by_character[character] = index
            return index

    def face_of_all(self, characters: Sequence[str]) -> int | None:
        """Index of the first font that has every one of the characters."""
        codes = [ord(character) for character in characters]
        for index, face in enumerate(self.faces):
            if all(code in face.tables.advances for code in codes):
                return index
        return None

    @property
    def digests(self) -> list[str]:
        """SHA-256 (hex) of the profile's own fonts and the bundled one, in order."""
        return [face.digest for face in self.faces if face.required]


def _primary(font: str) -> Path:
    """The file of :attr:`RenderProfile.font`."""
    if font == "auto":
        return _system_fonts().get("verdana.ttf", BUNDLED_FONT)
    if font == "bundled":
        return BUNDLED_FONT
    return Path(font)
