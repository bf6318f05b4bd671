"""What a training run does: stages read from a TOML file, validated before anything is computed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from qvpic_rag.errors import ConfigError
from qvpic_rag.reader.facts import PAGES_PER_WORLD

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["DEMO_RECIPE", "Recipe", "Stage", "load_recipe", "read_stages"]

DEMO_RECIPE = Path(__file__).with_name("demo.toml")
RecipeT = TypeVar("RecipeT")


def _number(owner: str, name: str, value: object, low: float, high: float, *, whole: bool = False) -> None:
    kind = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
        noun = "a whole number" if whole else "a number"
        raise ConfigError(f"{owner}: {name} must be {noun} from {low:g} to {high:g}, not {value!r}.")


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
        About how many tokens (visual ones in ``see`` batches) a batch holds.
    rate, end_rate : float
        Multiples of the base learning rates: held, then falling linearly to ``end_rate`` over the last
        ``fall`` of the steps.
    fall : float
        Share of the steps.
    see : float
        Share of batches in which the vision tower alone names the characters of each visual token.
    pages : dict[str, float]
        Number of pages of a context -> share of the other batches.
    questions : dict[str, int]
        Number of pages -> questions per context.
    framed : float
        Share of questions that arrive inside a framework's prompt.
    transcribe : bool
        One-page contexts also ask for the page's text.
    isolated : float
        Share of batches whose pages see only the prefix and themselves. That is nearly, but not exactly, what linked
        caches are: a page compiled alone stands right behind the prefix, a page of a batch where it is linked.
    freeze_vision : bool
        The vision tower stays as it is; its embeddings are computed once per shelf.
    own_look : float
        Share of worlds drawn in the look of the profile ``demo``.
    worlds, shelf_steps : int
        Worlds on a shelf, and steps until it is replaced.
    """

    name: str
    steps: int
    tokens: int
    rate: float = 1.0
    end_rate: float = 0.1
    fall: float = 0.3
    see: float = 0.0
    pages: dict[str, float] = field(default_factory=dict)
    questions: dict[str, int] = field(default_factory=dict)
    framed: float = 0.0
    transcribe: bool = False
    isolated: float = 0.0
    freeze_vision: bool = False
    own_look: float = 0.5
    worlds: int = 40
    shelf_steps: int = 100

    def __post_init__(self) -> None:
        owner = f"stage {self.name!r}"
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"{owner}: name must be a non-empty string.")
        for name, most in (("steps", 10**8), ("tokens", 10**6), ("worlds", 10**4), ("shelf_steps", 10**8)):
            _number(owner, name, getattr(self, name), 1, most, whole=True)
        for name in ("rate", "end_rate"):
            _number(owner, name, getattr(self, name), 0, 100)
        for name in ("fall", "see", "framed", "isolated", "own_look"):
            _number(owner, name, getattr(self, name), 0, 1)
        for name in ("transcribe", "freeze_vision"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{owner}: {name} must be true or false, not {getattr(self, name)!r}.")
        for name in ("pages", "questions"):
            if not isinstance(getattr(self, name), dict):
                raise ConfigError(f"{owner}: {name} must be a table, such as {{ 1 = 1 }}, not {getattr(self, name)!r}.")
        for count, share in self.pages.items():
            if not count.isdecimal() or not 1 <= int(count) <= PAGES_PER_WORLD:
                raise ConfigError(f"{owner}: pages must name numbers from 1 to {PAGES_PER_WORLD}, not {count!r}.")
            _number(owner, f"pages.{count}", share, 0, 1000)
            if count not in self.questions:
                raise ConfigError(f"{owner}: questions must name every number of pages in pages; {count} is missing.")
            _number(owner, f"questions.{count}", self.questions[count], 1, 1000, whole=True)
        if self.freeze_vision and (self.see or not self.pages):
            raise ConfigError(f"{owner}: see must be 0 where freeze_vision is true, since the tower learns nothing.")
        if self.see < 1 and not sum(self.pages.values()):
            raise ConfigError(f"{owner}: say how many pages contexts have, such as pages = {{ 1 = 1.0 }}.")

    def rate_at(self, step: int) -> float:
        """The learning rate's multiple at a step of this stage."""
        begin = self.steps * (1 - self.fall)
        if step <= begin:
            return self.rate
        share = (step - begin) / max(1.0, self.steps - begin)
        return self.rate + (self.end_rate - self.rate) * share


@dataclass(frozen=True)
class Recipe:
    """A whole run.

    Attributes
    ----------
    seed : int
        Decides weights and data.
    looks : int
        Number of ways in which pages are drawn.
    muon_rate, adam_rate : float
        Base learning rates: of weight matrices (Muon), and of everything else (AdamW).
    stages : tuple[Stage, ...]
        In order.
    """

    seed: int
    looks: int
    muon_rate: float
    adam_rate: float
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        _number("recipe", "seed", self.seed, 0, 2**31, whole=True)
        _number("recipe", "looks", self.looks, 1, 1000, whole=True)
        for name in ("muon_rate", "adam_rate"):
            _number("recipe", name, getattr(self, name), 0, 10)
        names = [stage.name for stage in self.stages]
        if not names or len(set(names)) < len(names):
            raise ConfigError("A recipe needs stages with different names.")

    def to_dict(self) -> dict[str, Any]:
        """JSON-able values."""
        return asdict(self)


def load_recipe(path: Path) -> Recipe:
    """Read a recipe; see :func:`read_stages` for errors."""
    return read_stages(path, Recipe, Stage)


def read_stages(path: Path, recipe: Callable[..., RecipeT], stage: Callable[..., Any]) -> RecipeT:
    """Build a recipe from a TOML file with one ``[[stage]]`` table per stage.

    Parameters
    ----------
    recipe, stage : type
        Dataclasses; the recipe's field ``stages`` is a tuple of the other.

    Raises
    ------
    ConfigError
        The file cannot be read, or holds unknown keys or wrong values.
    """
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"The recipe {path} cannot be read ({error}); name a TOML file of stages.") from error
    stages = found.pop("stage", [])
    if not isinstance(stages, list) or not all(isinstance(each, dict) for each in stages):
        raise ConfigError(f"{path}: write every stage under a line of its own that says [[stage]].")
    kinds: tuple[tuple[str, Any, list[dict[str, Any]]], ...] = (("recipe", recipe, [found]), ("stage", stage, stages))
    for owner, kind, entries in kinds:
        known = {each.name for each in fields(kind)} - {"stages"}
        for entry in entries:
            if unknown := sorted(set(entry) - known):
                raise ConfigError(f"{path}: a {owner} has no {', '.join(unknown)}; it has {', '.join(sorted(known))}.")
    try:
        return recipe(**found, stages=tuple(stage(**each) for each in stages))
    except TypeError as error:
        raise ConfigError(f"{path}: {error}; see a recipe that comes with the package.") from error
