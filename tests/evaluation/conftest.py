"""A tiny text model, built once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import build_tiny_text_model


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Llama, its tokenizer and chat template. Read it, never change it."""
    return build_tiny_text_model("llama", tmp_path_factory.mktemp("llama"))
