"""Presets: lists of methods that can all be made, for models with pictures and for text models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from qvpic_rag.baselines.spec import make_method, read_spec
from qvpic_rag.baselines.subject import Subject
from qvpic_rag.config import RenderProfile
from qvpic_rag.errors import ConfigError, UnsupportedModelError
from qvpic_rag.evaluation.presets import PRESETS, preset_methods
from qvpic_rag.models import load_model
from qvpic_rag.models.text import load_text_model
from qvpic_rag.render import Renderer
from tests.evaluation.readers import WordCounts

OVER_TEXT = ("q1", "q3")


@pytest.fixture(scope="module")
def pictures(tiny_folder: Callable[..., Path]) -> Subject:
    model = load_model(str(tiny_folder("qwen2_5_vl")), device="cpu")
    return Subject(model, Renderer(RenderProfile.load("demo")), WordCounts())


@pytest.fixture(scope="module")
def text(text_folder: Path) -> Subject:
    return Subject(load_text_model(str(text_folder), device="cpu"), None, WordCounts())


@pytest.mark.parametrize("preset", PRESETS)
def test_every_method_can_be_made(preset: str, pictures: Subject) -> None:
    methods = preset_methods(preset, pictures=True)
    assert [make_method(each, pictures).name for each in methods] == list(methods)
    assert len(set(methods)) == len(methods)


@pytest.mark.parametrize("preset", OVER_TEXT)
def test_every_method_over_text_can_be_made(preset: str, text: Subject, pictures: Subject) -> None:
    methods = preset_methods(preset, pictures=False)
    assert [make_method(each, text).name for each in methods] == list(methods)
    assert len(set(methods)) == len(methods)
    assert not any(read_spec(each).pictures for each in methods)


@pytest.mark.parametrize("preset", sorted(set(PRESETS) - set(OVER_TEXT)))
def test_presets_about_pictures(preset: str) -> None:
    with pytest.raises(ConfigError, match=f"The preset {preset} is about pictures; for a text model use q1, q3"):
        preset_methods(preset, pictures=False)


def test_no_such_preset() -> None:
    for name in ("q9", ""):
        with pytest.raises(ConfigError, match=r"There is no preset .*; use q1, q2, q3, q4, sensitivity"):
            preset_methods(name, pictures=True)


@pytest.mark.parametrize("spec", ["full@72", "prefix@120", "pic@72/native", "epic2@120", "qvpic"])
def test_pictures_are_refused_for_a_text_model(spec: str, text: Subject) -> None:
    with pytest.raises(UnsupportedModelError, match="reads no pictures"):
        make_method(spec, text)


def test_what_is_left_out_is_in_the_name() -> None:
    assert read_spec("pic@72").name == "pic@72/native"
    assert read_spec("qvpic").name == "qvpic"
    assert [read_spec(each).ranks for each in ("qvpic", "top4@text", "full@text", "pic@72")] == [1, 1, 0, 0]


@pytest.mark.parametrize(
    "spec",
    [
        "", "full", "full@", "full@7", "full@999", "full@72/native", "full@-72", "pic@72/natives", "pic@72/dummy-0",
        "epic@72", "epic0@72", "top0@text", "top4@72", "qvpic@120-72", "qvpic@72", "qvpic+alpha=2", "qvpic+alpha=x",
        "qvpic+speed=1", "qvpic/no", "QVPIC", "full @72",
    ],
)  # fmt: skip
def test_what_describes_no_method_is_refused_without_a_model(spec: str) -> None:
    with pytest.raises(ConfigError):
        read_spec(spec)
