"""Tokenizer, looks, and random readers: a small one to train, one of the default size to export."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from qvpic_rag.models import VisionLanguageModel, load_model
from qvpic_rag.reader import pictures
from qvpic_rag.reader.export import export_reader, new_reader
from qvpic_rag.reader.lessons import Prompts
from qvpic_rag.reader.network import Dimensions, build_model
from qvpic_rag.reader.pictures import Look, looks
from qvpic_rag.reader.tokens import build_tokenizer
from qvpic_rag.render.fonts import BUNDLED_FONT
from tests.cli.conftest import run as run

SMALL = Dimensions(
    text_hidden=64, text_layers=2, text_mlp=96, text_heads=4, text_kv_heads=2, vision_hidden=48, vision_layers=2
)


def _shaken(model: Any) -> Any:
    """With weights off the values that hide mistakes: norms of one, biases of nought."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return model


@pytest.fixture(autouse=True)
def _denormals() -> Iterator[None]:
    """Training flushes denormal numbers to zero in this process; other tests should not."""
    yield
    torch.set_flush_denormal(False)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return build_tokenizer()


@pytest.fixture
def fresh(tokenizer: Any) -> Any:
    """A small reader to train."""
    return build_model(SMALL, len(tokenizer), seed=0)


@pytest.fixture(scope="session")
def small(tokenizer: Any) -> Any:
    """A small reader that no test may change."""
    return _shaken(build_model(SMALL, len(tokenizer), seed=0)).eval().requires_grad_(False)


@pytest.fixture
def same_font(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundled font wherever one of the system is asked for: tests run on machines that have none."""
    monkeypatch.setattr(pictures, "system_font", lambda name: BUNDLED_FONT)


@pytest.fixture(scope="session")
def look() -> Look:
    """The look that readers are trained for."""
    return looks(1, 0)[0]


@pytest.fixture(scope="session")
def new() -> tuple[Any, Prompts]:
    """A random reader of the default size with its prompts; leave it as it is."""
    model, prompts = new_reader(5)
    return _shaken(model).eval().requires_grad_(False), prompts


@pytest.fixture(scope="session")
def prompts(new: tuple[Any, Prompts]) -> Prompts:
    return new[1]


@pytest.fixture(scope="session")
def exported(new: tuple[Any, Prompts], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That reader's folder. Read it, never change it."""
    folder = tmp_path_factory.mktemp("exported") / "reader"
    export_reader(new[0].state_dict(), folder)
    return folder


@pytest.fixture(scope="session")
def engine(exported: Path) -> VisionLanguageModel:
    """That reader as the engine loads it, float32."""
    return load_model(str(exported), device="cpu", dtype="float32")
