"""What the names of methods say, read as far as a report needs it.

Names are specifications as users type them, such as ``pic@72/native``; :mod:`qvpic_rag.baselines.spec` makes methods of
them. A report reads more names than can be run: a name that is not understood stands in tables by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["MethodName", "defaults", "media", "reference"]

_FAMILIES = ("full", "pic", "epic", "qvpic", "top", "prefix")
_SPECIFICATION = re.compile(
    r"(?P<family>[a-z]+)(?P<count>\d*)"
    r"(@(?P<medium>text|\d+(-\d+)?))?"
    r"(/(?P<conditioning>[a-z0-9-]+))?"
    r"(?P<options>(\+[a-z_]+=[a-z0-9.]+)*)"
)
_DEFAULTS = {"alpha": "0.65", "budget": "4", "router": "dense"}  # QV-PIC's


@dataclass(frozen=True)
class MethodName:
    """A name and its parts.

    Attributes
    ----------
    name : str
        As it was typed.
    family : str
        ``full``, ``pic``, ``epic``, ``qvpic``, ``top``, ``prefix``; ``other`` where the name is not understood.
    medium : str
        ``text``, a resolution such as ``72``, a pair such as ``72-120`` for QV-PIC, or "".
    conditioning : str
        What stands before a page when it is compiled, of caches of pages: ``native``, ``native-short``,
        ``prefix-free`` or ``dummy-K``; else "".
    options : Mapping[str, str]
        QV-PIC's ``alpha``, ``budget`` and ``router``, its defaults included, and whatever else its name sets.
    """

    name: str
    family: str
    medium: str = ""
    conditioning: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, name: str) -> MethodName:
        """The parts of a name."""
        found = _SPECIFICATION.fullmatch(name)
        if found is None or found["family"] not in _FAMILIES:
            return cls(name, "other")
        family, medium, conditioning = found["family"], found["medium"] or "", found["conditioning"] or ""
        options: dict[str, str] = {}
        if family == "qvpic":
            medium = medium or "72-120"
            options = dict(_DEFAULTS)
            options |= dict(option.split("=") for option in found["options"].split("+")[1:])
            try:
                options |= {each: f"{float(options[each]):g}" for each in ("alpha", "budget")}  # 0.650 is 0.65
            except ValueError:
                return cls(name, "other")
        if family in ("pic", "qvpic"):
            conditioning = conditioning or "native"
        return cls(name, family, medium, conditioning, options)

    @property
    def dpi(self) -> int | None:
        """The resolution, of a method that has one."""
        return int(self.medium) if self.medium.isdecimal() else None

    @property
    def pair(self) -> tuple[str, str]:
        """QV-PIC's low and high resolution; the same twice where there is one."""
        low, _, high = self.medium.partition("-")
        return low, high or low

    @property
    def strength(self) -> tuple[int, int]:
        """Orders conditionings as the paper's figure does: nothing, longer and longer dummies, the native prefix."""
        kind, _, count = self.conditioning.partition("-")
        places = {"prefix-free": 0, "native-short": 2, "native": 3}
        return places.get(self.conditioning, 1), int(count) if kind == "dummy" and count.isdecimal() else 0

    def is_qvpic(self, **differing: Any) -> bool:
        """Whether this is QV-PIC with its defaults but for what is named: ``medium``, ``conditioning`` or an option.

        A name given ``None`` may have any value. An option that has no default, such as ``token_budget``, differs.
        """
        parts = {"medium": self.medium, "conditioning": self.conditioning, **self.options}
        wanted = {"medium": "72-120", "conditioning": "native", **_DEFAULTS, **differing}
        return self.family == "qvpic" and all(
            name in wanted and wanted[name] in (None, value) for name, value in parts.items()
        )


def media(methods: Iterable[MethodName], family: str) -> list[str]:
    """The media that a family's methods read: text first, then resolutions from low to high."""
    found = {each.medium for each in methods if each.family == family}
    return sorted(found, key=lambda medium: int(medium) if medium.isdecimal() else -1)


def defaults(methods: Iterable[MethodName]) -> list[MethodName]:
    """QV-PIC with its defaults at whatever resolutions: for each pair the method, under the shortest of its names."""
    found: dict[str, MethodName] = {}
    for each in methods:
        held = found.get(each.medium)
        if each.is_qvpic(medium=None) and (held is None or len(each.name) < len(held.name)):
            found[each.medium] = each
    return list(found.values())


def reference(methods: Iterable[str]) -> str | None:
    """What differences and ratios are against: full prefill at the highest resolution, else of text, else None."""
    found = [each for each in map(MethodName.read, methods) if each.family == "full"]
    return max(found, key=lambda each: each.dpi or 0).name if found else None
