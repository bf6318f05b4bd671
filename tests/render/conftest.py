"""Renderers that do not depend on the fonts of the machine that runs the tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qvpic_rag.config import RenderProfile
from qvpic_rag.render import Renderer, fonts
from tests.render.tinyfont import write_font


@pytest.fixture(autouse=True)
def no_system_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "_system_fonts", dict)


@pytest.fixture
def make() -> Callable[..., Renderer]:
    """``make("glyph", strict=False, **changes of the profile)``."""

    def build(profile: str = "glyph", *, strict: bool = False, **changes: Any) -> Renderer:
        return Renderer(dataclasses.replace(RenderProfile.load(profile), **changes), strict=strict)

    return build


@pytest.fixture(scope="session")
def cjk_font(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A font with the CJK block, its punctuation and nothing else, each character one em wide."""
    codes = [*range(0x3000, 0x3040), *range(0x4E00, 0x5000), *range(0xFF00, 0xFF5F)]
    return write_font(tmp_path_factory.mktemp("fonts") / "cjk.ttf", map(chr, codes))
