"""What the names of methods say, read as far as a report needs it.

Names are specifications as users type them, such as ``pic@72/native``; :mod:`qvpic_rag.baselines.spec` makes methods of
them. A report reads more names than can be run: a name that is not understood stands in tables by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CONDITIONINGS", "MethodName", "media", "reference"]

CONDITIONINGS = ("prefix-free", "dummy-2", "dummy-4", "dummy-8", "dummy-16", "native-short", "native")
"""From nothing before a page to the model's whole native prefix, in the order of the paper's figure."""

_FAMILIES = ("full", "pic", "epic", "qvpic", "top", "prefix")
_SPECIFICATION = re.compile(
    r"(?P<family>[a-z]+)(?P<count>\d*)"
    r"(@(?P<medium>text|\d+(-\d+)?))?"
    r"(/(?P<conditioning>[a-z0-9-]+))?"
    r"(?P<options>(\+[a-z]+=[a-z0-9.]+)*)"
)


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
        One of :data:`CONDITIONINGS` for cached pages, else "".
    options : Mapping[str, str]
        QV-PIC's ``alpha``, ``budget`` and ``router``, its defaults included.
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
            options = {"alpha": "0.65", "budget": "4", "router": "dense"}
            options |= dict(option.split("=") for option in found["options"].split("+")[1:])
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

    def is_qvpic(self, **differing: Any) -> bool:
        """Whether this is QV-PIC with its defaults but for what is named: ``medium``, ``conditioning`` or an option.

        A name given ``None`` may have any value.
        """
        parts = {"medium": self.medium, "conditioning": self.conditioning, **self.options}
        defaults = {"medium": "72-120", "conditioning": "native", "alpha": "0.65", "budget": "4", "router": "dense"}
        wanted = defaults | differing
        return self.family == "qvpic" and all(
            wanted.get(name) is None or wanted[name] == value for name, value in parts.items()
        )


def media(methods: Iterable[MethodName], family: str) -> list[str]:
    """The media that a family's methods read: text first, then resolutions from low to high."""
    found = {each.medium for each in methods if each.family == family}
    return sorted(found, key=lambda medium: int(medium) if medium.isdecimal() else -1)


def reference(methods: Iterable[str]) -> str | None:
    """What differences and ratios are against: full prefill at the highest resolution, else of text, else None."""
    found = [each for each in map(MethodName.read, methods) if each.family == "full"]
    return max(found, key=lambda each: each.dpi or 0).name if found else None
