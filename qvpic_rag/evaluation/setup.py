"""The model of a run, and everything that is measured on it."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from qvpic_rag import __version__
from qvpic_rag.baselines.base import Method
from qvpic_rag.baselines.spec import Spec, make_method, read_spec
from qvpic_rag.baselines.subject import Subject
from qvpic_rag.config import RenderProfile
from qvpic_rag.embed import Embedder, load_embedder
from qvpic_rag.errors import ConfigError, UnsupportedModelError
from qvpic_rag.evaluation.pages import RenderedPages, TextChunks
from qvpic_rag.models import BUNDLED, LanguageModel, load_model
from qvpic_rag.models.text import SMOLLM2, is_text_model, load_text_model

__all__ = ["CHUNK_TOKENS", "Setup", "check_methods", "environment", "set_up"]

CHUNK_TOKENS = 256
"""Longest chunk of a text model's context, tokens."""


@dataclass(frozen=True, eq=False)
class Setup:
    """One model with its pages and methods. ``settings`` goes into ``run.json``."""

    model: LanguageModel
    pages: RenderedPages | TextChunks
    methods: tuple[Method, ...]
    settings: Mapping[str, Any]


def set_up(
    name: str,
    methods: Sequence[str],
    *,
    retrieves: bool = False,
    embedder: str | None = None,
    profile: str | None = None,
    chunk_tokens: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    trust_remote_code: bool = False,
) -> Setup:
    """Load a model and make methods for it.

    Parameters
    ----------
    name : str
        What :func:`~qvpic_rag.models.load_model` or :func:`~qvpic_rag.models.text.load_text_model` takes.
    methods : Sequence[str]
        See :mod:`qvpic_rag.baselines.spec`.
    retrieves : bool
        Whether the suite finds pages by embedding, so that there must be an embedder whatever the methods.
    embedder : str, optional
        ``demo`` with the bundled reader and with SmolLM2, else ``BAAI/bge-m3``; loaded where it is needed.
    profile : str, optional
        Render profile: the bundled reader's own, else ``glyph``.
    chunk_tokens : int, optional
        Longest chunk of a text model's context, tokens; :data:`CHUNK_TOKENS` by default.

    Raises
    ------
    ConfigError
        A method is none, is given twice, or the text model is given a render profile.
    UnsupportedModelError
        A method is over pictures and the model reads none.
    """
    specs = check_methods(name, methods, profile=profile, chunk_tokens=chunk_tokens)
    text = is_text_model(name)
    longest = CHUNK_TOKENS if chunk_tokens is None else chunk_tokens
    drawn = None if text else RenderProfile.load(profile or (name if name in BUNDLED else "glyph"))
    model: LanguageModel
    if text:
        model = load_text_model(name, device=device, dtype=dtype)
    else:
        model = load_model(name, device=device, dtype=dtype, trust_remote_code=trust_remote_code)
    vectors: Embedder | None = None
    if retrieves or any(spec.ranks for spec in specs):
        own = "demo" if name in BUNDLED or name == SMOLLM2 else "BAAI/bge-m3"
        vectors = load_embedder(embedder or own, device=str(model.device))
    pages: RenderedPages | TextChunks = (
        TextChunks(model.tokenizer, longest, vectors)
        if drawn is None
        else RenderedPages(drawn, model.tokenizer, vectors)
    )
    subject = Subject(model, pages if isinstance(pages, RenderedPages) else None, vectors)
    return Setup(
        model,
        pages,
        tuple(make_method(each, subject) for each in methods),
        {
            "model": {
                "name": model.checkpoint.name,
                "fingerprint": model.checkpoint.fingerprint,
                "dtype": str(model.dtype).removeprefix("torch."),
                "device": str(model.device),
                "max_context": model.max_context,
                "profile": None if drawn is None else drawn.to_dict(),
                "chunk_tokens": longest if text else None,
            },
            "methods": [spec.name for spec in specs],
            "embedder": None if vectors is None else vectors.name,
        },
    )


def check_methods(
    name: str, methods: Sequence[str], *, profile: str | None = None, chunk_tokens: int | None = None
) -> list[Spec]:
    """Read methods and find out what is wrong with them for a model that is not loaded yet.

    Parameters and errors are those of :func:`set_up`; ``chunk_tokens`` is None where nobody gave it.
    """
    specs = [read_spec(each) for each in methods]
    names = [spec.name for spec in specs]
    if again := {each for each in names if names.count(each) > 1}:
        raise ConfigError(f"The method {min(again)} is given twice; give each once.")
    text = is_text_model(name)
    if text and (over := [spec.name for spec in specs if spec.pictures]):
        raise UnsupportedModelError(
            f"Model {name!r} reads no pictures, which {over[0]} is over; choose methods over text (such as full@text)."
        )
    if text and profile is not None:
        raise ConfigError(f"Model {name!r} reads no pictures, so it has no render profile; leave it out.")
    if not text and chunk_tokens is not None:
        raise ConfigError(f"Model {name!r} reads pages, so its context has no chunks; leave chunk_tokens out.")
    if chunk_tokens is not None and (
        isinstance(chunk_tokens, bool) or not isinstance(chunk_tokens, int) or chunk_tokens < 16
    ):
        raise ConfigError(f"Chunks must be allowed at least 16 tokens, not {chunk_tokens!r}.")
    return specs


def environment() -> dict[str, Any]:
    """The machine and the software, for ``run.json``."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "qvpic_rag": __version__,
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "platform": f"{platform.system()} {platform.machine()}",
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
