"""Which characters of a text are drawn, and how they group.

The rules, in the order in which :func:`clean` applies them:

- CRLF, CR, NEL, vertical tab, line and paragraph separator are a newline; a form feed ends the page.
- Information separators (U+001C to U+001F) and breaking Unicode spaces are a plain space.
- Characters without a picture are removed: soft hyphen, zero-width space, word joiner, byte order mark, direction
  marks, variation selectors, tags, the remaining control characters. ZWJ and ZWNJ stay inside scripts that they shape.
- A lone surrogate becomes U+FFFD.
- The rest is composed (Unicode NFC), so that a letter and its accents find the font's own glyph.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache

__all__ = [
    "CJK_TOKEN",
    "clean",
    "cluster_pattern",
    "has_cjk",
    "has_rtl",
    "has_shaped",
    "is_blank",
    "needs_shaping",
]

_NEWLINES = re.compile("\r\n|[\r\v\x85\u2028\u2029]")
_SPACES = re.compile("[\x1c-\x1f\u1680\u2000-\u2006\u2008-\u200a\u205f]")
_REMOVED = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u034f\u061c\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f"
    "\ufe00-\ufe0f\ufeff\ufff9-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_SURROGATES = re.compile("[\ud800-\udfff]")

_RTL = "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff"
# Scripts whose letters join, reorder or stack, so that a word cannot be drawn character by character.
_SHAPED = (
    _RTL + "\u0900-\u109f\u1100-\u11ff\u1700-\u18af\u1900-\u1aaf\u1b00-\u1cff\ua800-\ua8ff\ua900-\ua95f\ua980-\uaaff"
    "\uabc0-\uabff\U00011000-\U00011fff"
)
_JOINERS = "\u200c\u200d"
_STRAY_JOINER = re.compile(f"(?<![{_SHAPED}])[{_JOINERS}]+")
_OPEN = "（［｛「『【〈《〔〖〘"
_CLOSE = "、。，．・：；？！）］｝」』】〉》〕〗〙ー々ゝゞヽヾ"
_CJK = (
    "\u2e80-\u2fdf\u3000-\u303f\u3040-\u30ff\u3100-\u312f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff00-\uff9f\U00020000-\U0003ffff"
)
_HAS_CJK = re.compile(f"[{_CJK}]")
_HAS_RTL = re.compile(f"[{_RTL}]")
_HAS_SHAPED = re.compile(f"[{_SHAPED}]")
# One token of text in which a line may break between any two CJK characters, except before closing and after opening
# punctuation. Without CJK the second alternative alone matches whole words.
CJK_TOKEN = f"[{_OPEN}]*[{_CJK}][{_CLOSE}]*|[^ \t\n{_CJK}]+"
# A cluster longer than this is cut: a page of nothing but accents must not become one glyph.
_MOST_MARKS = 31


def clean(text: str) -> str:
    """The text that is laid out: see the module's rules. ``\\n`` and ``\\f`` are its only control characters.

    Tabs are kept; layout draws them as four spaces.
    """
    text = _NEWLINES.sub("\n", text)
    text = _SPACES.sub(" ", text)
    text = _REMOVED.sub("", text)
    if text.isascii():
        return text
    text = _STRAY_JOINER.sub("", text)
    text = _SURROGATES.sub("\ufffd", text)
    return unicodedata.normalize("NFC", text)


def is_blank(text: str) -> bool:
    """Whether a text has nothing to draw, and so no pages."""
    return not clean(text).strip()


def has_cjk(text: str) -> bool:
    """Whether a line may break without spaces somewhere in the text."""
    return not text.isascii() and _HAS_CJK.search(text) is not None


def has_rtl(text: str) -> bool:
    """Whether the text has characters that run from right to left."""
    return not text.isascii() and _HAS_RTL.search(text) is not None


def has_shaped(text: str) -> bool:
    """Whether the text has letters of scripts that join, reorder or stack."""
    return not text.isascii() and _HAS_SHAPED.search(text) is not None


@cache
def _marks() -> str:
    """Body of a character class of all combining marks."""
    planes = (*range(0x20000), *range(0xE0100, 0xE01F0))
    codes = [code for code in planes if unicodedata.category(chr(code))[0] == "M"]
    groups: list[list[int]] = []
    for code in codes:
        if groups and groups[-1][1] == code - 1:
            groups[-1][1] = code
        else:
            groups.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in groups)


@cache
def cluster_pattern() -> re.Pattern[str]:
    """Matches a character with the marks and joiners that belong to it."""
    extend = _marks() + _JOINERS
    return re.compile(f"(?s:.)[{extend}]{{0,{_MOST_MARKS}}}")


@cache
def _shaping_pattern() -> re.Pattern[str]:
    return re.compile(f"[{_marks()}{_JOINERS}{_SHAPED}]")


def needs_shaping(text: str) -> bool:
    """Whether the text cannot be drawn character by character."""
    return not text.isascii() and _shaping_pattern().search(text) is not None
