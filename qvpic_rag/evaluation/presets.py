"""The paper's comparisons as lists of methods, and what it leaves open."""

from __future__ import annotations

from qvpic_rag.errors import ConfigError

__all__ = ["PRESETS", "preset_methods"]

_CONDITIONINGS = ("prefix-free", "dummy-2", "dummy-4", "dummy-8", "dummy-16", "native-short", "native")
_SWEEP = (72, 96, 120, 144, 168)
_ALPHAS = ("0.35", "0.5", "0.65", "0.8", "0.95")
_BUDGETS = (1, 2, 4, 8)
_PAIRS = ("72-96", "72-144", "96-120", "96-144")

_TEXT = {
    "q1": ("full@text", *(f"pic@text/{name}" for name in _CONDITIONINGS)),
    "q3": (
        "full@text", "pic@text/prefix-free", "pic@text/dummy-4", "pic@text/native-short", "pic@text/native",
        "epic2@text", "epic4@text", "prefix@text", "top4@text",
    ),
}  # fmt: skip
_PICTURES = {
    "q1": tuple(
        method for dpi in (72, 120) for method in (f"full@{dpi}", *(f"pic@{dpi}/{name}" for name in _CONDITIONINGS))
    ),
    "q2": (
        "full@text", "pic@text/native", *(f"full@{dpi}" for dpi in _SWEEP), *(f"pic@{dpi}/native" for dpi in _SWEEP),
        "qvpic",
    ),
    "q3": (
        "full@text", "full@72", "full@120", "pic@text/prefix-free", "pic@text/native", "pic@72/prefix-free",
        "pic@72/native", "pic@120/prefix-free", "pic@120/native", "epic2@text", "epic4@text", "epic2@120", "epic4@120",
        "prefix@120", "top4@text", "qvpic/prefix-free", "qvpic",
    ),
    "q4": ("full@120", "pic@72/native", "pic@120/prefix-free", "pic@120/native", "qvpic"),
    "sensitivity": (
        "full@72", "full@120", *(f"qvpic+alpha={a}+budget={b}" for b in _BUDGETS for a in _ALPHAS),
        *(f"qvpic@{pair}" for pair in _PAIRS), "qvpic",
    ),
}  # fmt: skip

PRESETS = tuple(_PICTURES)
"""``q1`` conditioning at two resolutions, ``q2`` F1 against time to first token over resolutions, ``q3`` all kinds of
methods and the four-way ablation, ``q4`` the same few methods on several models, ``sensitivity`` alpha, budget and
resolutions."""


def preset_methods(name: str, *, pictures: bool) -> tuple[str, ...]:
    """A preset's methods, in their forms over text where the model reads no pictures.

    Raises
    ------
    ConfigError
        There is no such preset, or it is about pictures alone.
    """
    if name not in PRESETS:
        raise ConfigError(f"There is no preset {name!r}; use {', '.join(PRESETS)}.")
    if not pictures and name not in _TEXT:
        raise ConfigError(f"The preset {name} is about pictures; for a text model use {', '.join(_TEXT)}.")
    return (_PICTURES if pictures else _TEXT)[name]
