"""One model and one embedder in memory, however engines of a process are opened."""

from __future__ import annotations

import gc
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qvpic_rag import QVPIC, shared_embedder
from qvpic_rag.models import BUNDLED, load_model
from qvpic_rag.pipeline import facade
from qvpic_rag.pipeline.shared import Shared


def test_a_new_bank_and_every_later_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(BUNDLED["demo"], "reader")
    with QVPIC.from_pretrained("./reader", "bank", embedder="demo", profile="demo") as first:
        for options in ({}, {"device": "cpu"}, {"dtype": "float32"}):
            with QVPIC.from_pretrained(str(tmp_path / "reader"), "bank", **options) as again:  # type: ignore[arg-type]
                assert again.engine.model is first.engine.model
                assert again.engine.embedder is first.engine.embedder
        with QVPIC.open("bank") as opened, QVPIC.from_pretrained("reader", "other", embedder="demo") as other:
            assert opened.engine.model is other.engine.model is first.engine.model
        assert shared_embedder("demo") is shared_embedder("demo", device="cpu") is first.engine.embedder
        with QVPIC.from_pretrained("./reader", "half", embedder="demo", dtype="bfloat16") as half:
            assert half.engine.model is not first.engine.model


def test_a_hub_name_and_the_commit_that_it_stood_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new bank is asked for a name; it remembers the commit, and asks for that when it is opened again."""
    loaded: list[str | None] = []

    def load(name: str, *, revision: str | None, **options: Any) -> Any:
        loaded.append(revision)
        model = load_model("demo", **options)
        model.checkpoint = replace(model.checkpoint, name=name, revision="c0ffee")
        return model

    monkeypatch.setattr(facade, "load_model", load)
    with QVPIC.from_pretrained("someone/reader", tmp_path / "bank", embedder="demo") as first:
        with QVPIC.from_pretrained("someone/reader", tmp_path / "bank") as again:
            assert again.engine.model is first.engine.model
        with QVPIC.open(tmp_path / "bank") as opened:
            assert opened.engine.model is first.engine.model
        with QVPIC.from_pretrained("someone/reader", tmp_path / "other", embedder="demo", revision="v2") as second:
            assert second.engine.model is not first.engine.model
    assert loaded == [None, "v2"]


class Thing:
    """Something that can be referred to weakly."""


def test_nothing_is_kept_that_nobody_uses() -> None:
    shared: Shared[Thing] = Shared()
    made: list[int] = []

    def load(name: str, **options: object) -> Thing:
        made.append(1)
        return Thing()

    first = shared.get(load, "a", x=1)
    assert shared.get(load, "a", x=1) is first
    shared.put(first, load, "a", x=2)
    assert shared.get(load, "a", x=2) is first
    assert shared.get(load, "b", x=1) is not first
    assert len(made) == 2
    del first
    gc.collect()
    shared.get(load, "a", x=2)
    assert len(made) == 3


def test_a_folder_that_changed_is_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    shared: Shared[Thing] = Shared()
    first = shared.get(_load, "m")
    assert shared.get(_load, "./m") is first
    assert shared.get(_load, str(tmp_path / "m")) is first
    (tmp_path / "m" / "config.json").write_text('{"x": 1}')
    assert shared.get(_load, "m") is not first


def _load(name: str) -> Thing:
    return Thing()
