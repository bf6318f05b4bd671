"""One frozen, validated configuration per stage.

A wrong value raises :class:`~qvpic_rag.errors.ConfigError` on construction, naming the field, the value and what is
allowed. Unknown keys in TOML are refused.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from qvpic_rag.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "GenerateConfig",
    "RenderProfile",
    "RequestConfig",
    "RouteConfig",
    "byte_count",
    "check_dpis",
    "check_storage",
]

_STORAGES = ("native", "int8", "int4")
_PROFILES = Path(__file__).parent / "assets" / "profiles"


def _number(owner: str, name: str, value: object, low: float, high: float, *, whole: bool = False) -> None:
    """Raise unless ``low <= value <= high`` (booleans and NaN are not numbers)."""
    kind = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
        noun = "a whole number" if whole else "a number"
        raise ConfigError(f"{owner}.{name} must be {noun} from {low:g} to {high:g}, not {value!r}.")


def _choice(owner: str, name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{owner}.{name} must be one of {', '.join(allowed)}, not {value!r}.")


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "PIB": 2**50}


def byte_count(text: str) -> int | None:
    """A number of bytes as people write it (``20GB``, ``1.5 GiB``, ``1000``); None for ``none``.

    Raises
    ------
    ConfigError
        It is something else.
    """
    if text.strip().lower() == "none":
        return None
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGTP]?I?B)?", text.strip().upper())
    if match is None:
        raise ConfigError(f"A size is a number and a unit, such as 20GB, 500MiB or none, not {text!r}.")
    return int(float(match[1]) * _UNITS[match[2] or ""])


def check_dpis(dpis: tuple[int, int]) -> tuple[int, int]:
    """Validate ``(low, high)`` dots per inch, low below high; returned as a tuple of ints."""
    values = tuple(dpis) if isinstance(dpis, tuple | list) else ()
    if len(values) != 2:
        raise ConfigError(f"dpis must be a pair (low, high) such as (72, 120), not {dpis!r}.")
    for name, value in zip(("low", "high"), values, strict=True):
        _number("dpis", name, value, 24, 600, whole=True)
    if values[0] >= values[1]:
        raise ConfigError(f"dpis must be (low, high) with low below high, not {values}.")
    return (int(values[0]), int(values[1]))


def check_storage(storage: object) -> tuple[str, str]:
    """Validate the storage formats ``(low, high)`` of the two resolutions.

    A string is ``"low,high"``, or one name for both.
    """
    values = storage
    if isinstance(storage, str):
        values = storage.split(",") if "," in storage else (storage, storage)
    if not isinstance(values, tuple | list) or len(values) != 2 or any(value not in _STORAGES for value in values):
        raise ConfigError(
            f"storage must be {', '.join(_STORAGES[:-1])} or {_STORAGES[-1]}, or a pair of them (low, high), not "
            f"{storage!r}."
        )
    return (values[0], values[1])


@dataclass(frozen=True)
class RenderProfile:
    """How a text becomes pages. Lengths are points (1/72 inch), independent of resolution.

    Attributes
    ----------
    name : str
        What the profile is called in messages.
    page_width, page_height : float
        Page size before cropping, points.
    margin_left, margin_right, margin_top, margin_bottom : float
        Points.
    font_size, line_height : float
        Points; ``line_height`` is the distance between baselines.
    font : str
        ``auto`` (Verdana where the system has it, else the bundled DejaVu Sans), ``bundled``, or a font file's path.
    fallback_fonts : tuple[str, ...]
        Font files tried, in order, for characters that ``font`` lacks, before the ones found on the system.
    newline : str
        ``break`` starts a new line; ``literal`` draws a red backslash-n and goes on, as Glyph's protocol does.
    crop : bool
        Crop the page on the right and the last page at the bottom to what is drawn.
    pad_to : int
        Pad width and height with white to a multiple of this many pixels (1: no padding).
    """

    name: str
    page_width: float
    page_height: float
    margin_left: float
    margin_right: float
    margin_top: float
    margin_bottom: float
    font_size: float
    line_height: float
    font: str = "auto"
    fallback_fonts: tuple[str, ...] = ()
    newline: str = "break"
    crop: bool = True
    pad_to: int = 1

    def __post_init__(self) -> None:
        owner = "RenderProfile"
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"{owner}.name must be a non-empty string, not {self.name!r}.")
        for name in ("page_width", "page_height"):
            _number(owner, name, getattr(self, name), 8, 20_000)
        for name in ("margin_left", "margin_right", "margin_top", "margin_bottom"):
            _number(owner, name, getattr(self, name), 0, 5_000)
        for name in ("font_size", "line_height"):
            _number(owner, name, getattr(self, name), 1, 500)
        _number(owner, "pad_to", self.pad_to, 1, 512, whole=True)
        _choice(owner, "newline", self.newline, ("break", "literal"))
        if not isinstance(self.crop, bool):
            raise ConfigError(f"{owner}.crop must be true or false, not {self.crop!r}.")
        if not isinstance(self.font, str) or not self.font:
            raise ConfigError(f"{owner}.font must be auto, bundled or a font file's path, not {self.font!r}.")
        object.__setattr__(self, "fallback_fonts", tuple(self.fallback_fonts))
        if self.page_width - self.margin_left - self.margin_right < self.font_size:
            raise ConfigError(f"{owner} {self.name!r}: the margins leave no width to write in; make the page wider.")
        if self.page_height - self.margin_top - self.margin_bottom < self.line_height:
            raise ConfigError(f"{owner} {self.name!r}: the margins leave no room for one line; make the page higher.")

    @property
    def lines_per_page(self) -> int:
        """Number of text lines on a full page."""
        room = self.page_height - self.margin_top - self.margin_bottom
        return int(room / self.line_height + 1e-6)

    @property
    def text_width(self) -> float:
        """Width available to a line, points."""
        return self.page_width - self.margin_left - self.margin_right

    def to_dict(self) -> dict[str, Any]:
        """Fields as JSON-able values."""
        return {**asdict(self), "fallback_fonts": list(self.fallback_fonts)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RenderProfile:
        """Inverse of :meth:`to_dict`; unknown or missing keys raise ``ConfigError``."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigError(f"A render profile has no key {unknown[0]!r}; its keys are {', '.join(sorted(known))}.")
        try:
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"The render profile is incomplete: {error}.") from error

    @classmethod
    def load(cls, name_or_path: str | Path) -> RenderProfile:
        """A bundled profile by name (``glyph``, ``glyph-literal``, ``demo``) or a TOML file by path."""
        if not isinstance(name_or_path, str | os.PathLike):
            raise ConfigError(f"A render profile is given by name or path, not {name_or_path!r}.")
        bundled = {path.stem: path for path in sorted(_PROFILES.glob("*.toml"))}
        path = bundled.get(str(name_or_path), Path(name_or_path))
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            names = ", ".join(bundled)
            raise ConfigError(
                f"No render profile {str(name_or_path)!r}; use {names}, or a TOML file's path."
            ) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"The render profile {str(path)!r} is not valid TOML: {error}.") from error
        return cls.from_dict(values)


@dataclass(frozen=True)
class RouteConfig:
    """Which pages are read at high resolution; :mod:`qvpic_rag.route` states the rules.

    Attributes
    ----------
    alpha : float
        Share of the relevance to cover at high resolution, in (0, 1]; the paper's is 0.65.
    budget : int
        Most pages at high resolution (0: every page at low resolution); the paper's is 4.
    token_budget : int | None
        Most tokens that high resolutions may add to a request's low ones, in place of ``budget``, which then has no
        effect; None: ``budget`` holds.
    router : str
        What pages are scored by: ``dense`` (cosines of embeddings, the paper's) or ``hybrid`` (those fused with
        BGE-M3's lexical and multi-vector scores, see :mod:`qvpic_rag.relevance`). It does not decide which pages are
        retrieved.
    """

    alpha: float = 0.65
    budget: int = 4
    token_budget: int | None = None
    router: str = "dense"

    def __post_init__(self) -> None:
        _number("RouteConfig", "alpha", self.alpha, 0, 1)
        if self.alpha == 0:
            raise ConfigError("RouteConfig.alpha must be above 0; to keep every page at low resolution set budget=0.")
        _number("RouteConfig", "budget", self.budget, 0, 1_000_000, whole=True)
        if self.token_budget is not None:
            _number("RouteConfig", "token_budget", self.token_budget, 0, 100_000_000, whole=True)
        _choice("RouteConfig", "router", self.router, ("dense", "hybrid"))


@dataclass(frozen=True)
class RequestConfig:
    """How a request is put together.

    Attributes
    ----------
    top_k : int
        Pages retrieved.
    max_context_tokens : int | None
        Limit on prefix, pages, question and answer together; None: the model's own context length.
    overflow : str
        ``drop`` leaves out the lowest-ranked pages and says so; ``error`` raises ``ContextOverflowError``.
    on_miss : str
        ``compile`` compiles a page missing from the bank and says so; ``low`` reads the low resolution of a page whose
        high one is not stored, and compiles only what has neither; ``error`` raises ``MissingBlockError``.
    max_waiting : int
        Questions that may wait for the model; one more raises ``QueueFullError``.
    """

    top_k: int = 8
    max_context_tokens: int | None = None
    overflow: str = "drop"
    on_miss: str = "compile"
    max_waiting: int = 1024

    def __post_init__(self) -> None:
        _number("RequestConfig", "top_k", self.top_k, 1, 100_000, whole=True)
        if self.max_context_tokens is not None:
            _number("RequestConfig", "max_context_tokens", self.max_context_tokens, 1, 100_000_000, whole=True)
        _choice("RequestConfig", "overflow", self.overflow, ("drop", "error"))
        _choice("RequestConfig", "on_miss", self.on_miss, ("compile", "low", "error"))
        _number("RequestConfig", "max_waiting", self.max_waiting, 0, 1_000_000, whole=True)


@dataclass(frozen=True)
class GenerateConfig:
    """How an answer is generated.

    ``temperature=0`` is greedy, others go from 0.0001 to 100; ``seed`` matters only when sampling.
    ``stop`` strings end the answer and are not part of it.
    """

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: str | tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _number("GenerateConfig", "max_new_tokens", self.max_new_tokens, 1, 1_000_000, whole=True)
        if self.temperature != 0:  # below this, probabilities are not finite any more
            _number("GenerateConfig", "temperature", self.temperature, 1e-4, 100)
        _number("GenerateConfig", "top_p", self.top_p, 0, 1)
        if self.top_p == 0:
            raise ConfigError("GenerateConfig.top_p must be above 0; use temperature=0 for greedy answers.")
        if self.seed is not None:
            _number("GenerateConfig", "seed", self.seed, 0, 2**63 - 1, whole=True)
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        if not isinstance(stop, tuple | list) or any(not isinstance(text, str) or not text for text in stop):
            raise ConfigError(f"GenerateConfig.stop must hold non-empty strings, not {self.stop!r}.")
        object.__setattr__(self, "stop", tuple(stop))
