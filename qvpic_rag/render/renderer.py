"""Text to pages, pages to pictures."""

from __future__ import annotations

import threading
import unicodedata
import warnings
from collections import Counter

from PIL import Image

from qvpic_rag.config import RenderProfile
from qvpic_rag.errors import ConfigError, UndrawableError
from qvpic_rag.records import Page, stable_digest
from qvpic_rag.render.characters import clean, has_shaped
from qvpic_rag.render.fonts import FontChain
from qvpic_rag.render.layout import Layout
from qvpic_rag.render.raster import Raster
from qvpic_rag.render.shaping import Metrics

__all__ = ["Renderer"]

# Part of every block key: grows whenever the same lines are drawn differently or the same text breaks differently.
_VERSION = 1
_MIDDLE = 0.27  # em above the baseline: half the height of a small letter
_LISTED = 20  # code points that a warning spells out


class _Replacements(dict[int, str]):
    """For :meth:`str.translate`: what is drawn in place of a character, filled in as characters turn up.

    Itself where a font has it; its canonical decomposition where fonts have that; a space for an odd space; else its
    code point in brackets, such as ``[U+1F600]``.
    """

    def __init__(self, chain: FontChain) -> None:
        super().__init__()
        self.chain = chain
        self.undrawable: set[str] = set()

    def __missing__(self, code: int) -> str:
        character = chr(code)
        decomposed = unicodedata.normalize("NFD", character)
        if character in "\t\n\f\u200c\u200d" or self.chain.face_of(character) is not None:
            drawn = character
        elif decomposed != character and all(self.chain.face_of(part) is not None for part in decomposed):
            drawn = decomposed
        elif unicodedata.category(character) == "Zs":
            drawn = " "
        else:
            self.undrawable.add(character)
            drawn = f"[U+{code:04X}]"
        self[code] = drawn
        return drawn


class Renderer:
    """Lays text out in pages and draws them, with one profile. Safe to use from several threads.

    Layout happens once, in points; :meth:`image` only scales it. Sources: Glyph's rendering protocol
    (arXiv 2510.17800, its published configuration) for the ``glyph`` profiles.

    Parameters
    ----------
    profile : RenderProfile
        Page, margins, font and newline markup.
    strict : bool
        Raise :class:`UndrawableError` for a character that no font draws, instead of drawing its code point in
        brackets and warning.

    Raises
    ------
    ConfigError
        A font that the profile names cannot be used.
    """

    def __init__(self, profile: RenderProfile, *, strict: bool = False) -> None:
        self.profile = profile
        self.strict = strict
        self._chain = FontChain(profile)
        metrics = Metrics(self._chain, profile.font_size)
        self._replacements = _Replacements(self._chain)
        self._metrics = metrics
        self._layout = Layout(profile, metrics, self._drawable)
        self._raster = Raster(profile, self._chain, metrics)
        self._lock = threading.Lock()

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of what decides a picture besides its lines: version, profile, bytes of the profile's fonts.

        The profile's name and the fonts' paths are left out: they change nothing that is drawn. So are the fonts found
        on the system for characters that the profile's fonts lack, and whether Pillow can shape: installing a font
        must not make every bank unusable. What no font draws is spelt out in the lines themselves.
        """
        profile = self.profile.to_dict()
        for name in ("name", "font", "fallback_fonts"):
            del profile[name]
        return stable_digest({"renderer": _VERSION, "profile": profile, "fonts": self._chain.digests})

    def pages(self, text: str, source: str) -> list[Page]:
        """Break a text into pages; see the modules ``characters`` and ``layout`` for the rules.

        Parameters
        ----------
        text : str
            Any text. An empty or blank one has no pages; a form feed ends a page; blank pages are left out.
        source : str
            Goes into every page.

        Returns
        -------
        list[Page]
            ``Page.text`` is the cleaned text between a page's first and last drawn character.

        Warns
        -----
        UserWarning
            Once, listing the code points that no font draws, with counts.

        Raises
        ------
        UndrawableError
            With ``strict``, in place of the warning.
        """
        cleaned = clean(text)
        with self._lock:
            problem = self._problem(cleaned, source)
            if problem and self.strict:
                raise UndrawableError(problem)
            sections = [section for section in cleaned.split("\f") if section and not section.isspace()]
            found = [page for section in sections for page in self._layout.pages(section)]
        if problem:
            warnings.warn(problem, stacklevel=2)
        return [
            Page(lines=tuple(map(self._drawable, lines)), text=shown, source=source, number=n)
            for n, (lines, shown) in enumerate(found)
        ]

    def image(self, page: Page, dpi: int) -> Image.Image:
        """Draw a page.

        Parameters
        ----------
        page : Page
            Only its lines matter. A page with fewer lines than the profile allows is cropped at the bottom, where the
            profile crops.
        dpi : int
            Dots per inch, 24 to 600.

        Returns
        -------
        PIL.Image.Image
            RGB.

        Raises
        ------
        ConfigError
            The resolution is out of range.
        """
        if isinstance(dpi, bool) or not isinstance(dpi, int) or not 24 <= dpi <= 600:
            raise ConfigError(f"dpi must be a whole number from 24 to 600, not {dpi!r}.")
        with self._lock:
            return self._raster.image([self._drawable(line) for line in page.lines], dpi)

    def centres(self, page: Page) -> list[tuple[str, float, float]]:
        """Where each character of a page stands, spaces included, in reading order.

        Returns
        -------
        list[tuple[str, float, float]]
            ``(character, x, y)``: the middle of its advance, and the middle of a small letter, in points from the
            page's upper left corner. Lines that need shaping (joining scripts, accents) have no such places.
        """
        profile, metrics = self.profile, self._metrics
        found = []
        for number, line in enumerate(page.lines):
            y = profile.margin_top + number * profile.line_height + (self._chain.ascent - _MIDDLE) * profile.font_size
            x = profile.margin_left
            for character in line:
                width = metrics.width(character)
                found.append((character, x + width / 2, y))
                x += width
        return found

    def _drawable(self, text: str) -> str:
        return text if text.isascii() else text.translate(self._replacements)

    def _problem(self, text: str, source: str) -> str:
        """One sentence on what cannot be drawn as it should be, or ""."""
        if text.isascii():
            return ""
        characters = set(text)
        self._drawable("".join(sorted(characters)))
        missing = Counter({each: text.count(each) for each in characters & self._replacements.undrawable})
        if missing:
            ranked = sorted(missing.items(), key=lambda item: (-item[1], item[0]))
            listed = ", ".join(f"U+{ord(each):04X} ({count})" for each, count in ranked[:_LISTED])
            more = f" and {len(ranked) - _LISTED} more" if len(ranked) > _LISTED else ""
            return (
                f"No font draws {missing.total()} characters of {source!r}, which stand on the page as their code "
                f"points in brackets: {listed}{more}; install a font that has them, or name one in the profile's "
                "fallback_fonts, then remove the document and ingest it again."
            )
        if not self._chain.raqm and has_shaped(text):
            return (
                f"{source!r} has letters that join or reorder, and this Pillow cannot shape them, so they stand on "
                "the page unjoined; install the FriBiDi library (libfribidi) for Pillow's raqm layout."
            )
        return ""
