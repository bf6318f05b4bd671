"""What a run is made of: a model, pages and methods, and what run.json says of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qvpic_rag.config import RenderProfile
from qvpic_rag.embed import Embedder
from qvpic_rag.errors import ConfigError, ModelNotFoundError, UnsupportedModelError
from qvpic_rag.evaluation import setup
from qvpic_rag.evaluation.pages import RenderedPages, TextChunks
from qvpic_rag.evaluation.setup import environment, set_up
from tests.evaluation.readers import WordCounts


@pytest.fixture
def embedders(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Which were loaded, on which device; none of them is."""
    loaded: list[tuple[str, str]] = []

    def load(name: str, *, device: str) -> Embedder:
        loaded.append((name, device))
        return WordCounts()

    monkeypatch.setattr(setup, "load_embedder", load)
    return loaded


@pytest.fixture
def unloadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model may be loaded in this test."""

    def load(*name: object, **options: object) -> None:
        raise AssertionError("A model was loaded.")

    monkeypatch.setattr(setup, "load_model", load)
    monkeypatch.setattr(setup, "load_text_model", load)


def test_the_bundled_reader(embedders: list[tuple[str, str]]) -> None:
    found = set_up("demo", ["full@72", "pic@72"], device="cpu")
    assert isinstance(found.pages, RenderedPages)
    assert [method.name for method in found.methods] == ["full@72", "pic@72/native"]
    assert not embedders
    assert found.pages.embedder is None
    assert json.loads(json.dumps(found.settings)) == found.settings
    assert found.settings == {
        "model": {
            "name": "demo",
            "fingerprint": found.model.checkpoint.fingerprint,
            "dtype": "float32",
            "device": "cpu",
            "max_context": 8192,
            "profile": RenderProfile.load("demo").to_dict(),
            "chunk_tokens": None,
        },
        "methods": ["full@72", "pic@72/native"],
        "embedder": None,
    }


def test_a_vision_model(tiny_folder: Callable[..., Path], embedders: list[tuple[str, str]]) -> None:
    folder = tiny_folder("qwen2_5_vl")
    found = set_up(str(folder), ["full@text"], device="cpu", dtype="bfloat16")
    assert found.settings["model"]["name"] == str(folder.resolve())
    assert found.settings["model"]["dtype"] == "bfloat16"
    assert found.settings["model"]["profile"] == RenderProfile.load("glyph").to_dict()
    assert set_up(str(folder), ["full@text"], profile="demo").settings["model"]["profile"]["name"] == "demo"
    assert not embedders


def test_a_text_model(text_folder: Path, embedders: list[tuple[str, str]]) -> None:
    found = set_up(str(text_folder), ["full@text", "pic@text"], device="cpu", chunk_tokens=32)
    assert isinstance(found.pages, TextChunks)
    assert [method.name for method in found.methods] == ["full@text", "pic@text/native"]
    assert found.settings["model"]["profile"] is None
    assert found.settings["model"]["chunk_tokens"] == 32
    assert len(found.pages.pages("1" * 40, "s")[0].text) == 32
    assert set_up(str(text_folder), ["full@text"]).settings["model"]["chunk_tokens"] == 256
    assert not embedders


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"methods": ["full@text"]}, []),
        ({"methods": ["full@text"], "embedder": "mine"}, []),
        ({"methods": ["full@text"], "retrieves": True}, ["BAAI/bge-m3"]),
        ({"methods": ["full@text", "top4@text"]}, ["BAAI/bge-m3"]),
        ({"methods": ["full@text", "top4@text"], "embedder": "mine"}, ["mine"]),
    ],
)
def test_an_embedder_is_loaded_where_it_is_needed(
    text_folder: Path, embedders: list[tuple[str, str]], options: dict[str, Any], expected: list[str]
) -> None:
    found = set_up(str(text_folder), device="cpu", **options)
    assert embedders == [(name, "cpu") for name in expected]
    assert found.settings["embedder"] == ("words" if expected else None)
    assert (found.pages.embedder is not None) == bool(expected)


def test_the_bundled_reader_has_a_small_embedder(embedders: list[tuple[str, str]]) -> None:
    set_up("demo", ["qvpic"], device="cpu")
    assert embedders == [("demo", "cpu")]


@pytest.mark.usefixtures("unloadable")
@pytest.mark.parametrize("spec", ["full@72", "pic@120/native", "qvpic", "prefix@72", "epic2@72"])
def test_a_text_model_reads_no_pictures(text_folder: Path, spec: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"reads no pictures, which .* is over; choose methods over text"):
        set_up(str(text_folder), ["full@text", spec])


@pytest.mark.usefixtures("unloadable")
def test_what_is_wrong_is_refused_before_anything_is_loaded(text_folder: Path) -> None:
    for twice in (["full@72", "full@72"], ["pic@72", "pic@72/native"]):
        with pytest.raises(ConfigError, match="is given twice; give each once"):
            set_up("demo", twice)
    with pytest.raises(ConfigError, match="There is no method 'ful@72'"):
        set_up("demo", ["ful@72"])
    with pytest.raises(ConfigError, match="No render profile 'none'"):
        set_up("demo", ["full@72"], profile="none")
    with pytest.raises(ConfigError, match="it has no render profile; leave it out"):
        set_up(str(text_folder), ["full@text"], profile="glyph")
    for tokens in (15, 0, 16.5, True):
        with pytest.raises(ConfigError, match="at least 16 tokens"):
            set_up(str(text_folder), ["full@text"], chunk_tokens=tokens)  # type: ignore[arg-type]


def test_models_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        set_up(str(tmp_path / "none"), ["full@72"])
    with pytest.raises(ConfigError):
        set_up("demo", ["full@72"], device="toaster")


def test_the_environment() -> None:
    found = environment()
    assert json.loads(json.dumps(found)) == found
    assert list(found) == [
        "python", "torch", "transformers", "qvpic_rag", "processor", "cores", "threads", "platform", "accelerator",
    ]  # fmt: skip
    assert found["threads"] == 1
    assert found["processor"]
