"""Settings: every wrong value is one sentence that names the field; profiles come from code and TOML."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from qvpic_rag.config import GenerateConfig, RenderProfile, RequestConfig, RouteConfig, check_dpis, check_storage
from qvpic_rag.errors import ConfigError

GLYPH = RenderProfile.load("glyph")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (RouteConfig, {"alpha": 0}),
        (RouteConfig, {"alpha": 1.01}),
        (RouteConfig, {"alpha": float("nan")}),
        (RouteConfig, {"alpha": "0.5"}),
        (RouteConfig, {"budget": -1}),
        (RouteConfig, {"budget": 1.5}),
        (RouteConfig, {"budget": True}),
        (RequestConfig, {"top_k": 0}),
        (RequestConfig, {"top_k": 2.0}),
        (RequestConfig, {"max_context_tokens": 0}),
        (RequestConfig, {"overflow": "truncate"}),
        (RequestConfig, {"on_miss": ""}),
        (GenerateConfig, {"max_new_tokens": 0}),
        (GenerateConfig, {"temperature": -0.1}),
        (GenerateConfig, {"top_p": 0}),
        (GenerateConfig, {"seed": -1}),
        (GenerateConfig, {"stop": ("a", "")}),
        (GenerateConfig, {"stop": (1,)}),
    ],
)
def test_wrong_values_name_the_field(kind: Any, values: dict[str, Any]) -> None:
    [name] = values
    with pytest.raises(ConfigError, match=rf"{kind.__name__}\.{name} must .*\.$"):
        kind(**values)


@pytest.mark.parametrize(
    "changes",
    [
        {"page_width": 0},
        {"page_height": float("inf")},
        {"margin_left": -1},
        {"font_size": 0},
        {"line_height": "10"},
        {"newline": "tab"},
        {"pad_to": 0},
        {"crop": "yes"},
        {"font": ""},
        {"name": ""},
        {"margin_left": 300, "margin_right": 300},
        {"margin_top": 420, "margin_bottom": 420},
    ],
    ids=str,
)
def test_wrong_profiles(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        dataclasses.replace(GLYPH, **changes)


@pytest.mark.parametrize("dpis", [(120, 72), (72, 72), (72,), (1, 72), (72, 100_000), (72.5, 120), (72, 96, 120)])
def test_wrong_resolutions(dpis: Any) -> None:
    with pytest.raises(ConfigError, match="dpis"):
        check_dpis(dpis)


def test_one_stop_string_needs_no_tuple() -> None:
    assert GenerateConfig(stop="\n").stop == ("\n",)


def test_profiles_survive_the_round_trip() -> None:
    for name in ("glyph", "glyph-literal", "demo"):
        profile = RenderProfile.load(name)
        assert RenderProfile.from_dict(profile.to_dict()) == profile


def test_a_profile_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    lines = [f"{key} = {value!r}".lower() for key, value in GLYPH.to_dict().items() if isinstance(value, int | float)]
    path.write_text("\n".join(['name = "mine"', *lines, "font_size = 12"]).replace("font_size = 9\n", ""))
    assert RenderProfile.load(path) == dataclasses.replace(GLYPH, name="mine", font_size=12)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("name = ", "not valid TOML"),
        ('name = "x"\ncolour = "red"', "no key 'colour'"),
        ('name = "x"', "incomplete"),
    ],
)
def test_broken_profiles(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        RenderProfile.load(path)


def test_a_profile_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="use demo, glyph-literal, glyph, smolglyph, or"):
        RenderProfile.load("nope")


@pytest.mark.parametrize(
    ("given", "pair"),
    [
        ("native", ("native", "native")),
        ("int8", ("int8", "int8")),
        ("int4,native", ("int4", "native")),
        (("int4", "int8"), ("int4", "int8")),
        (["native", "int4"], ("native", "int4")),
    ],
)
def test_storage_is_one_name_or_a_pair(given: object, pair: tuple[str, str]) -> None:
    assert check_storage(given) == pair


@pytest.mark.parametrize(
    "wrong", ["", "int2", "int8,", "int8,int8,int8", "int8, int4", ("int8",) * 3, (), None, 8, b"int8"]
)
def test_wrong_storage_names_what_is_allowed(wrong: object) -> None:
    with pytest.raises(ConfigError, match=r"storage must be native, int8 or int4, or a pair of them .*\.$"):
        check_storage(wrong)
