"""What a training run of smolglyph does: stages read from a TOML file, validated before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qvpic_rag.errors import ConfigError
from qvpic_rag.reader.recipe import read_stages

__all__ = ["KINDS", "RECIPE", "TASKS", "Recipe", "Stage", "load_recipe"]

RECIPE = Path(__file__).with_name("smolglyph.toml")
KINDS = ("prose", "facts", "words", "codes")
"""Kinds of page to look at: corpus, generated facts, the vocabulary's words at random, codes and odd characters."""
TASKS = ("repeat", "facts", "continue", "own", "words")
"""What is asked about pages: their text, their facts, what follows, what SmolLM2 would say, and all of it of pages that
are text and no picture."""
_GENTLE = 0.003  # more than this breaks the tower when its gradients come through the language model
_MOST_PAGES = 8
_LIMITS = {"steps": 10**9, "tokens": 10**6, "questions": 100, "sheets": 10**5, "shelf_steps": 10**9}
# An adapter of a larger rank would be too large to be exported.
_RANGES = {"seed": (0, 2**31), "looks": (1, 1000), "rank": (1, 64), "answers": (1, 10**5)}


@dataclass(frozen=True)
class Stage:
    """One stage of training.

    Attributes
    ----------
    name : str
        Unique in the recipe.
    steps : int
        Optimiser steps.
    tokens : int
        About how many tokens a batch holds: visual ones where the vision tower is alone, else all.
    muon, adam, lora : float
        Learning rates: of the vision tower's matrices, of its other parameters and the character head, and of the
        low-rank updates. 0 leaves them as they are.
    end_rate, fall : float
        Rates are held, then fall linearly to ``end_rate`` of themselves over the last ``fall`` of the steps.
    look : float
        Tokens of pages that are only looked at, as a share of ``tokens``: 1 where the vision tower is alone.
    kinds : dict[str, float]
        Kind of page, of :data:`KINDS` -> share of the pages that are looked at.
    tasks : dict[str, float]
        Task, of :data:`TASKS` -> share of the steps.
    pages : dict[str, float]
        Number of pages of a context that is asked about facts -> share of these contexts.
    questions : int
        Questions per context.
    isolated : float
        Share of contexts whose pages do not see each other, as in a bank of page caches.
    high : float
        Share of pages at the high resolution.
    own_look : float
        Share of pages drawn in the profile's own look.
    sheets, shelf_steps : int
        Pages on a shelf, and steps until it is replaced.
    """

    name: str
    steps: int
    tokens: int
    muon: float = 0.0
    adam: float = 0.0
    lora: float = 0.0
    end_rate: float = 0.1
    fall: float = 0.3
    look: float = 1.0
    kinds: dict[str, float] = field(default_factory=dict)
    tasks: dict[str, float] = field(default_factory=dict)
    pages: dict[str, float] = field(default_factory=lambda: {"1": 1.0})
    questions: int = 4
    isolated: float = 0.0
    high: float = 0.3
    own_look: float = 0.5
    sheets: int = 240
    shelf_steps: int = 40

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"A stage's name must be a non-empty string, not {self.name!r}.")
        for name, most in _LIMITS.items():
            _whole(f"stage {self.name!r}", name, getattr(self, name), 1, most)
        for name in ("muon", "adam", "lora", "end_rate", "fall", "look", "isolated", "high", "own_look"):
            _share(self.name, name, getattr(self, name))
        for name, allowed in (("kinds", KINDS), ("tasks", TASKS), ("pages", _page_counts())):
            _shares(self.name, name, getattr(self, name), allowed)
        if not self.pages:
            raise ConfigError(f"stage {self.name!r}: say how many pages contexts have, such as pages = {{ 1 = 1.0 }}.")
        if self.look < 1 and not self.tasks:
            raise ConfigError(f"stage {self.name!r}: say what is asked, such as tasks = {{ repeat = 1.0 }}.")
        if self.look > 0 and not self.kinds:
            raise ConfigError(f"stage {self.name!r}: say which pages are seen, such as kinds = {{ prose = 1.0 }}.")
        if self.look > 0 and not (self.muon or self.adam):
            raise ConfigError(f"stage {self.name!r}: look must be 0 where the vision tower stays as it is.")
        if not (self.muon or self.adam or self.lora):
            raise ConfigError(f"stage {self.name!r}: muon, adam or lora must be above 0, or nothing is learnt.")
        if self.look < 1 and self.muon > _GENTLE:
            raise ConfigError(f"stage {self.name!r}: muon must be at most {_GENTLE} where tasks are trained.")

    def rate_at(self, step: int) -> float:
        """The learning rates' multiple at a step of this stage."""
        begin = self.steps * (1 - self.fall)
        if step <= begin:
            return 1.0
        return 1.0 + (self.end_rate - 1.0) * (step - begin) / max(1.0, self.steps - begin)


@dataclass(frozen=True)
class Recipe:
    """A whole run.

    Attributes
    ----------
    seed : int
        Decides weights and data.
    looks : int
        Number of ways in which pages are drawn.
    rank : int
        Of the low-rank updates.
    answers : int
        SmolLM2's own answers that are collected before the first stage that trains on them.
    stages : tuple[Stage, ...]
        In order.
    profile : str
        Name or TOML file of the render profile.
    sections : tuple[int, ...]
        See :class:`~qvpic_rag.models.smolglyph.model.Tower`. That they add up to the rotary pairs of the language
        model's heads is checked where that model is known.
    """

    seed: int
    looks: int
    rank: int
    answers: int
    stages: tuple[Stage, ...]
    profile: str = "smolglyph"
    sections: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            _whole("recipe", name, getattr(self, name), least, most)
        sections = tuple(self.sections) if isinstance(self.sections, list | tuple) else (-1,)
        if len(sections) % 3 or not all(_is_whole(each) and each >= 0 for each in sections):
            raise ConfigError(
                "recipe: sections must be whole numbers of at least 0 for time, row and column in turn, such as "
                f"[8, 12, 12], not {self.sections!r}."
            )
        object.__setattr__(self, "sections", sections)
        names = [stage.name for stage in self.stages]
        if not names or len(set(names)) < len(names):
            raise ConfigError("A recipe needs stages with different names.")


def _page_counts() -> tuple[str, ...]:
    return tuple(str(count) for count in range(1, _MOST_PAGES + 1))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole(owner: str, name: str, value: Any, least: int, most: int) -> None:
    if not _is_whole(value) or not least <= value <= most:
        raise ConfigError(f"{owner}: {name} must be a whole number from {least} to {most}, not {value!r}.")


def _share(stage: str, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigError(f"stage {stage!r}: {name} must be a number from 0 to 1, not {value!r}.")


def _shares(stage: str, name: str, values: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(values, dict) or set(values) - set(allowed):
        raise ConfigError(f"stage {stage!r}: {name} must be a table of shares of {', '.join(allowed)}, not {values!r}.")
    for key, value in values.items():
        _share(stage, f"{name}.{key}", value)
    if values and not sum(values.values()):
        raise ConfigError(f"stage {stage!r}: the shares of {name} are all 0.")


def load_recipe(path: Path = RECIPE) -> Recipe:
    """Read a recipe; see :func:`qvpic_rag.reader.recipe.read_stages` for errors."""
    return read_stages(path, Recipe, Stage)
