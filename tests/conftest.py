"""Shared fixtures: tiny random models built once a session, and pictures of pages."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Read by transformers when it is imported: no network, and remote code goes to a folder of this run.
os.environ["HF_HUB_OFFLINE"] = "1"
_modules = tempfile.mkdtemp(prefix="qvpic-modules-")
atexit.register(shutil.rmtree, _modules, ignore_errors=True)
os.environ["HF_MODULES_CACHE"] = _modules
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402
from transformers import PreTrainedModel  # noqa: E402
from transformers.utils import logging as transformers_logging  # noqa: E402

from qvpic_rag import QVPIC  # noqa: E402
from qvpic_rag.demo import demo_documents  # noqa: E402
from tests.tiny import (  # noqa: E402
    TEXT_FAMILIES,
    build_refused_model,
    build_tiny_model,
    build_tiny_text_model,
    load_tiny_model,
    load_tiny_text_model,
    page_images,
)

# Models this small are slower on two threads than on one, much slower on a busy machine.
torch.set_num_threads(1)
transformers_logging.disable_progress_bar()


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``tiny_folder(family, **options)``: a checkpoint folder, built on first use. Read it, never change it."""
    folders: dict[str, Path] = {}

    def folder(family: str, **options: Any) -> Path:
        name = repr((family, sorted(options.items())))
        if name not in folders:
            build = build_tiny_text_model if family in TEXT_FAMILIES else build_tiny_model
            folders[name] = build(family, tmp_path_factory.mktemp(family), **options)
        return folders[name]

    return folder


@pytest.fixture(scope="session")
def tiny_model(tiny_folder: Callable[..., Path]) -> Callable[..., PreTrainedModel]:
    """``tiny_model(family, dtype="float32", **options)``: the loaded model, shared by all tests; leave it as it is."""
    models: dict[tuple[Path, str], PreTrainedModel] = {}

    def model(family: str, dtype: str = "float32", **options: Any) -> PreTrainedModel:
        key = (tiny_folder(family, **options), dtype)
        if key not in models:
            load = load_tiny_text_model if family in TEXT_FAMILIES else load_tiny_model
            models[key] = load(*key)
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


@pytest.fixture(scope="session")
def demo_bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bank of the bundled documents. Read it, never change it; copy it to write."""
    folder = tmp_path_factory.mktemp("demo") / "bank"
    with QVPIC.from_pretrained("demo", folder) as rag:
        rag.ingest(demo_documents(), progress=False)
    return folder
