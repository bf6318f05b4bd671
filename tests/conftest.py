"""Shared fixtures: tiny random models built once a session, and pictures of pages."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Read by transformers when it is imported: no network, and remote code goes to a folder of this run.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("HF_MODULES_CACHE", tempfile.mkdtemp(prefix="qvpic-modules-"))
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from PIL import Image
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from tests.tiny import build_refused_model, build_tiny_model, load_tiny_model, page_images

torch.set_num_threads(2)
transformers_logging.disable_progress_bar()


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``tiny_folder(family, **options)``: a checkpoint folder, built on first use. Read it, never change it."""
    folders: dict[str, Path] = {}

    def folder(family: str, **options: Any) -> Path:
        name = repr((family, sorted(options.items())))
        if name not in folders:
            folders[name] = build_tiny_model(family, tmp_path_factory.mktemp(family), **options)
        return folders[name]

    return folder


@pytest.fixture(scope="session")
def tiny_model(tiny_folder: Callable[..., Path]) -> Callable[..., PreTrainedModel]:
    """``tiny_model(family, dtype="float32", **options)``: the loaded model, shared by the session; leave it as it is."""
    models: dict[tuple[Path, str], PreTrainedModel] = {}

    def model(family: str, dtype: str = "float32", **options: Any) -> PreTrainedModel:
        key = (tiny_folder(family, **options), dtype)
        if key not in models:
            models[key] = load_tiny_model(*key)
        return models[key]

    return model


@pytest.fixture(scope="session")
def refused_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``refused_folder(kind)``: a folder that the engine must refuse."""
    return lambda kind: build_refused_model(kind, tmp_path_factory.mktemp(kind))


@pytest.fixture(scope="session")
def make_page_images() -> Callable[..., list[Image.Image]]:
    """``make_page_images(count)``: deterministic text-like RGB pictures in two alternating sizes."""
    return page_images
