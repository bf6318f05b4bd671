"""Recipes: wrong ones are refused by the name of what is wrong, and learning rates fall as they should."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qvpic_rag.errors import ConfigError
from qvpic_rag.reader.recipe import DEMO_RECIPE, Recipe, Stage, load_recipe

HEAD = "seed = 1\nlooks = 2\nmuon_rate = 0.02\nadam_rate = 0.003\n"
STAGE = '[[stage]]\nname = "letters"\nsteps = 10\ntokens = 100\nsee = 1.0\n'


def load(tmp_path: Path, text: str) -> Recipe:
    path = tmp_path / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return load_recipe(path)


def test_the_recipe_of_the_package() -> None:
    recipe = load_recipe(DEMO_RECIPE)
    assert len(recipe.stages) >= 2
    assert recipe.stages[0].see == 1
    assert "16" in recipe.stages[-1].pages
    assert not recipe.stages[-1].freeze_vision
    assert json.loads(json.dumps(recipe.to_dict()))["stages"][0]["name"] == recipe.stages[0].name


def test_defaults_and_values(tmp_path: Path) -> None:
    more = "pages = { 1 = 0.5, 4 = 0.5 }\nquestions = { 1 = 2, 4 = 3 }\n"
    recipe = load(tmp_path, HEAD + STAGE.replace("see = 1.0", "see = 0.5") + more)
    assert (recipe.seed, recipe.looks, recipe.muon_rate, recipe.adam_rate) == (1, 2, 0.02, 0.003)
    [stage] = recipe.stages
    assert stage == Stage("letters", 10, 100, see=0.5, pages={"1": 0.5, "4": 0.5}, questions={"1": 2, "4": 3})


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": 1.5}, "steps"),
        ({"steps": True}, "steps"),
        ({"tokens": -1}, "tokens"),
        ({"worlds": 0}, "worlds"),
        ({"shelf_steps": "many"}, "shelf_steps"),
        ({"rate": -0.1}, "rate"),
        ({"rate": "fast"}, "rate"),
        ({"end_rate": float("nan")}, "end_rate"),
        ({"fall": True}, "fall"),
        ({"fall": 1.5}, "fall"),
        ({"see": float("inf")}, "see"),
        ({"see": 2}, "see"),
        ({"framed": None}, "framed"),
        ({"framed": 1.1}, "framed"),
        ({"isolated": -1}, "isolated"),
        ({"own_look": 11}, "own_look"),
        ({"transcribe": "no"}, "transcribe"),
        ({"freeze_vision": 1}, "freeze_vision"),
        ({"see": 1.0, "freeze_vision": True}, "freeze_vision"),
        ({"see": 0.5}, "pages"),
        ({"see": 0.5, "pages": {"2": 1.0}}, "questions"),
        ({"see": 0.5, "pages": {"2": 1.0, "4": 1.0}, "questions": {"2": 4}}, "questions"),
        ({"see": 0.5, "pages": {"two": 1.0}, "questions": {"two": 4}}, "pages"),
        ({"see": 0.5, "pages": {"17": 1.0}, "questions": {"17": 4}}, "pages"),
        ({"see": 0.5, "pages": 5}, "pages"),
        ({"see": 0.5, "pages": {"2": 1.0}, "questions": 3}, "questions"),
        ({"tokens": 10**9}, "tokens"),
        ({"see": 0.5, "pages": {"2": "x"}, "questions": {"2": 4}}, "pages"),
        ({"see": 0.5, "pages": {"2": 0.0}, "questions": {"2": 4}}, "pages"),
        ({"see": 0.5, "pages": {"2": 1.0}, "questions": {"2": 0}}, "questions"),
    ],
    ids=str,
)
def test_a_wrong_value_names_stage_and_field(values: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=rf"stage 'letters': .*\b{field}\b"):
        Stage(**{"name": "letters", "steps": 10, "tokens": 100, "see": 1.0, **values})


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"seed": "x"}, "seed"),
        ({"looks": 0}, "looks"),
        ({"looks": "many"}, "looks"),
        ({"muon_rate": -1.0}, "muon_rate"),
        ({"muon_rate": "fast"}, "muon_rate"),
        ({"adam_rate": float("nan")}, "adam_rate"),
    ],
    ids=str,
)
def test_a_wrong_value_of_the_recipe_names_the_field(values: dict[str, Any], field: str) -> None:
    right = {"seed": 1, "looks": 2, "muon_rate": 0.02, "adam_rate": 0.003, "stages": (Stage("a", 1, 1, see=1.0),)}
    assert Recipe(**right)
    with pytest.raises(ConfigError, match=rf"\b{field}\b"):
        Recipe(**{**right, **values})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD + STAGE + "colour = 3\n", "a stage has no colour; it has end_rate, fall"),
        ("pages = 3\n" + HEAD + STAGE, "a recipe has no pages; it has adam_rate, looks, muon_rate, seed"),
        (HEAD, "needs stages"),
        (HEAD + STAGE + STAGE, "different names"),
        (STAGE, "seed"),
        (HEAD + STAGE.replace("steps = 10\n", ""), "steps"),
        (HEAD + STAGE + "steps", "cannot be read"),
        (
            HEAD + STAGE.replace("steps = 10", "steps = 0"),
            "stage 'letters': steps must be a whole number from 1 .*, not 0",
        ),
        (HEAD + "stage = 3\n", "stage"),
        (HEAD + STAGE.replace("[[stage]]", "[stage]"), r"\[\[stage\]\]"),
    ],
)
def test_wrong_files(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        load(tmp_path, text)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    for path in (tmp_path / "none.toml", tmp_path, tmp_path / "latin.toml"):
        with pytest.raises(ConfigError, match=r"The recipe .* cannot be read .*; name a TOML file of stages"):
            load_recipe(path)


RATES = st.floats(0, 10)


@given(steps=st.integers(1, 500), rates=st.tuples(RATES, RATES).map(sorted), fall=st.floats(0, 1))
@settings(deadline=None, derandomize=True)
def test_the_rate_is_held_and_then_falls(steps: int, rates: list[float], fall: float) -> None:
    end, rate = rates
    stage = Stage("a", steps, 1, rate=rate, end_rate=end, fall=fall, see=1.0)
    found = [stage.rate_at(step) for step in range(steps)]
    assert found[0] == rate
    assert all(end - 1e-9 <= each <= rate + 1e-9 for each in found)
    assert all(later <= earlier + 1e-9 for earlier, later in pairwise(found))
    assert all(found[step] == rate for step in range(steps) if step <= steps * (1 - fall))
    if steps * fall >= 1:
        assert stage.rate_at(steps) == pytest.approx(end, abs=1e-6)


def test_rates_of_a_small_stage() -> None:
    stage = Stage("a", 10, 1, rate=1.0, end_rate=0.2, fall=0.4, see=1.0)
    assert [stage.rate_at(step) for step in range(11)] == pytest.approx([1] * 7 + [0.8, 0.6, 0.4, 0.2])
