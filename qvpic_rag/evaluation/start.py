"""From what a user asks to be measured to runs: one for each model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qvpic_rag.errors import ConfigError
from qvpic_rag.evaluation.presets import preset_methods
from qvpic_rag.evaluation.rundir import RunFolder
from qvpic_rag.evaluation.runner import Plan, run
from qvpic_rag.evaluation.setup import check_methods, environment, set_up
from qvpic_rag.evaluation.suites import Suite, open_suite
from qvpic_rag.evaluation.suites.longbench import LongBench
from qvpic_rag.models.text import is_text_model

__all__ = ["Wanted", "measure"]

_ROOM = 1024
"""Tokens that a question and its answer may need besides the context, where nobody says how long contexts may be."""
_LEAST = 256  # tokens of a context that is still worth asking about


@dataclass(frozen=True)
class Wanted:
    """What is to be measured.

    Attributes
    ----------
    suite : str
        See :func:`~qvpic_rag.evaluation.suites.open_suite`.
    options : Mapping[str, Any]
        The suite's.
    models : tuple[str, ...]
        One run each.
    methods : tuple[str, ...]
        See :mod:`qvpic_rag.baselines.spec`; or those of ``preset``.
    preset : str | None
        One or several, with commas between, of :mod:`qvpic_rag.evaluation.presets`.
    setup : Mapping[str, Any]
        Of :func:`~qvpic_rag.evaluation.setup.set_up`.
    seed : int
        Of the suite ``facts``.
    max_new_tokens : int | None
        Longest answer, tokens; None: what the suite says.
    """

    suite: str
    options: Mapping[str, Any]
    models: tuple[str, ...]
    methods: tuple[str, ...]
    preset: str | None
    setup: Mapping[str, Any]
    plan: Plan
    seed: int
    max_new_tokens: int | None = None

    def __post_init__(self) -> None:
        if bool(self.methods) == bool(self.preset):
            raise ConfigError("Give either methods (such as full@120,pic@72/native,qvpic) or a preset.")
        if not self.models or len(set(self.models)) < len(self.models):
            raise ConfigError("Give at least one model, and each once.")


def measure(
    wanted: Wanted, out: Path, bar: Callable[[str], AbstractContextManager[Callable[[int, int, str], None]]]
) -> list[Path]:
    """Run what is wanted, going on where a run was left.

    Parameters
    ----------
    out : Path
        Folder of the run; with several models of one folder for each.
    bar : Callable
        Shows progress under a title.

    Returns
    -------
    list[Path]
        The runs' folders.
    """
    places = [out] if len(wanted.models) == 1 else [out / name for name in _names(wanted.models)]
    _check_places(out, places)
    # What can be wrong without a model is found out before the first one runs.
    methods = [
        wanted.methods or _methods(str(wanted.preset), pictures=not is_text_model(each)) for each in wanted.models
    ]
    for model, specs in zip(wanted.models, methods, strict=True):
        check_methods(model, specs, profile=wanted.setup.get("profile"), chunk_tokens=wanted.setup.get("chunk_tokens"))
    suite = _suite(wanted)
    for model, place, specs in zip(wanted.models, places, methods, strict=True):
        with bar(place.name) as progress:
            _one(wanted, suite, model, specs, place, progress)
    return places


def _one(
    wanted: Wanted,
    suite: Suite,
    name: str,
    methods: Sequence[str],
    place: Path,
    progress: Callable[[int, int, str], None],
) -> None:
    setup = set_up(name, methods, retrieves=wanted.suite == "folder", **wanted.setup)
    if isinstance(suite, LongBench) and suite.max_context is None:
        suite = replace(suite, max_context=_longest_context(setup.model.max_context, wanted.max_new_tokens or 0))
    settings = {
        "suite": {"name": suite.name, **suite.settings},
        **setup.settings,
        "preset": wanted.preset,
        "seed": wanted.seed,
        "max_new_tokens": wanted.max_new_tokens,
        "environment": environment(),
    }
    examples = list(suite.examples(setup.pages))  # before there is a folder: a wrong row must not leave one behind
    if wanted.max_new_tokens is not None:
        examples = [replace(example, max_new_tokens=wanted.max_new_tokens) for example in examples]
    with RunFolder.create(place, settings) as folder:
        run(folder, setup.model, setup.methods, examples, wanted.plan, progress)


def _longest_context(limit: int, answer: int) -> int:
    """Text tokens of a context, so that it fits a model that takes ``limit`` tokens with its question and answer."""
    longest = limit - _ROOM - answer
    if longest < _LEAST:
        raise ConfigError(
            f"The model takes {limit} tokens; with {_ROOM} for a question and {answer} more for its answer too little "
            "is left of a context. Lower max_new_tokens, or say with max_context how long contexts may be."
        )
    return longest


def _suite(wanted: Wanted) -> Suite:
    options = dict(wanted.options)
    if wanted.suite == "facts":
        options["seed"] = wanted.seed
    return open_suite(wanted.suite, **options)


def _check_places(out: Path, places: Sequence[Path]) -> None:
    """A folder holds one run, or those of several models below it; of both, reports would show one alone."""
    try:
        several, one = any(out.glob("*/run.json")), (out / "run.json").exists()
    except OSError as error:
        raise ConfigError(f"{out} cannot be a folder ({error.strerror}); use another --out.") from error
    if list(places) == [out] and several:
        raise ConfigError(f"{out} holds the runs of several models; use another --out for one.")
    if list(places) != [out] and one:
        raise ConfigError(f"{out} holds a run; use another --out for several models.")


def _methods(presets: str, *, pictures: bool) -> tuple[str, ...]:
    """The methods of all presets, each once."""
    found = [each for preset in presets.split(",") for each in preset_methods(preset, pictures=pictures)]
    return tuple(dict.fromkeys(found))


def _names(models: Sequence[str]) -> list[str]:
    """A folder's name for each model: letters, digits, dots and dashes of the last part of its own."""
    found: list[str] = []
    for model in models:
        name = re.sub(r"[^A-Za-z0-9.-]+", "-", Path(model).name).strip(".-") or "model"
        while name in found:
            name += "-2"
        found.append(name)
    return found
