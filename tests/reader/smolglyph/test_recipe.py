"""Recipes: what is refused, and the bundled one."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qvpic_rag.errors import ConfigError
from qvpic_rag.reader.smolglyph.recipe import Stage, load_recipe

SEE: dict[str, Any] = {"name": "a", "steps": 10, "tokens": 100, "adam": 0.1, "kinds": {"prose": 1.0}}
ASK: dict[str, Any] = SEE | {"look": 0.25, "tasks": {"repeat": 1.0}, "lora": 0.001}


def test_the_bundled_recipe() -> None:
    recipe = load_recipe()
    total = sum(stage.steps * stage.tokens for stage in recipe.stages)
    alone = sum(stage.steps * stage.tokens for stage in recipe.stages if stage.look == 1)
    assert alone > total / 2  # most of the time goes to reading alone
    assert all(0.2 <= stage.look <= 0.3 for stage in recipe.stages if stage.tasks)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"steps": 0}, "steps"),
        ({"tokens": 1.5}, "tokens"),
        ({"sheets": True}, "sheets"),
        ({"name": ""}, "name"),
        ({"muon": -0.1}, "muon"),
        ({"fall": 1.2}, "fall"),
        ({"isolated": "yes"}, "isolated"),
        ({"high": float("nan")}, "high"),
        ({"kinds": {"poems": 1.0}}, "kinds"),
        ({"kinds": ["prose"]}, "kinds"),
        ({"kinds": {"prose": 0}}, "kinds"),
        ({"kinds": {}}, "kinds"),
        ({"tasks": {"sing": 1.0}}, "tasks"),
        ({"tasks": {}}, "tasks"),
        ({"tokens": 10**20}, "tokens must be a whole number from 1 to 1000000"),
        ({"lora": 10**400}, "lora"),
        ({"pages": {"9": 1.0}}, "pages"),
        ({"pages": {}}, "pages"),
        ({"pages": {"1": "x"}}, "pages"),
        ({"muon": 0.02}, "muon"),
        ({"adam": 0.0}, "look"),
        ({"adam": 0.0, "lora": 0.0, "look": 0.0}, "muon, adam or lora must be above 0"),
    ],
)
def test_wrong_values_name_their_field(change: dict[str, Any], said: str) -> None:
    Stage(**ASK)
    with pytest.raises(ConfigError, match=said):
        Stage(**(ASK | change))


def test_the_tower_may_learn_fast_alone() -> None:
    assert Stage(**(SEE | {"muon": 0.02})).muon == 0.02


@given(steps=st.integers(1, 500), end=st.floats(0, 1), fall=st.floats(0, 1))
def test_rates_are_held_and_then_fall(steps: int, end: float, fall: float) -> None:
    stage = Stage(**(SEE | {"steps": steps, "end_rate": end, "fall": fall}))
    rates = [stage.rate_at(step) for step in range(steps + 1)]
    assert rates[0] == 1
    assert all(a >= b - 1e-9 for a, b in pairwise(rates))
    assert all(end - 1e-9 <= rate <= 1 for rate in rates)


HEAD = "seed = 1\nlooks = 2\nrank = 4\nanswers = 2\n"
STAGE = "[[stage]]\nname = 'a'\nsteps = 3\ntokens = 100\nadam = 0.1\nkinds = { prose = 1.0 }\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seed = ", "cannot be read"),
        (HEAD, "stages"),
        (HEAD + STAGE + STAGE, "different names"),
        (HEAD + "color = 3\n" + STAGE, "color"),
        (HEAD + STAGE + "color = 3\n", "color"),
        (HEAD.replace("rank = 4", "rank = 0") + STAGE, "rank"),
        (HEAD.replace("seed = 1", "seed = 'x'") + STAGE, "seed"),
        (HEAD.replace("rank = 4\n", "") + STAGE, "rank"),
        (HEAD.replace("seed = 1", f"seed = {2**70}") + STAGE, "seed must be a whole number from 0 to 2147483648"),
        (HEAD.replace("rank = 4", f"rank = {10**12}") + STAGE, "rank must be a whole number from 1 to 64"),
        (HEAD.replace("looks = 2", f"looks = {10**12}") + STAGE, "looks must be a whole number from 1 to 1000"),
        (HEAD.replace("answers = 2", f"answers = {10**12}") + STAGE, "answers must be a whole number from 1 to"),
        (HEAD + "sections = [5]\n" + STAGE, "sections"),
        (HEAD + "sections = [8, 12, true]\n" + STAGE, "sections"),
        (HEAD + "sections = [8, 12, -1]\n" + STAGE, "sections"),
        (HEAD + "sections = 8\n" + STAGE, "sections"),
        (HEAD + STAGE.replace("[[stage]]", "[stage]"), r"\[\[stage\]\]"),
        (HEAD + "stage = 3\n", r"\[\[stage\]\]"),
    ],
)
def test_wrong_files_say_what_is_wrong(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(HEAD + STAGE)
    assert load_recipe(path).stages[0].steps == 3
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_recipe(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_recipe(tmp_path / "none.toml")
