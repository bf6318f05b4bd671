"""A model folder to a tokenizer and functions from token batches to vectors: through FlagEmbedding or transformers."""

from __future__ import annotations

import importlib
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging as transformers_logging

from qvpic_rag.embed.locate import HEADS
from qvpic_rag.embed.settings import Settings
from qvpic_rag.errors import MissingDependencyError, ModelNotFoundError, UnsupportedModelError

__all__ = ["Forward", "Heads", "Loaded", "load_flag", "load_plain"]

Forward = Callable[[Mapping[str, torch.Tensor]], torch.Tensor]
"""Padded ``input_ids``, ``attention_mask`` (and more) ``[batch, tokens]`` to vectors ``[batch, dimension]``."""

Heads = Callable[[Mapping[str, torch.Tensor]], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
"""The same to those vectors, lexical weights ``[batch, tokens]`` (0 or above), and a vector for each token after the
first ``[batch, tokens - 1, dimension]`` (L2-normalised)."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """A loaded embedding model; ``heads`` is None where it has only the one vector."""

    tokenizer: Any
    forward: Forward
    heads: Heads | None = None


def load_flag(name: str, folder: Path, settings: Settings, device: str) -> Loaded:
    """BGE-M3 through FlagEmbedding's ``BGEM3FlagModel``.

    The loaded model's forward pass is called directly: ``BGEM3FlagModel.encode`` runs the first batch twice, to find a
    batch size that fits, and draws progress bars.
    """
    _check_heads(name, folder)
    with _quiet():
        try:
            flag = importlib.import_module("FlagEmbedding")
        except ImportError as error:
            raise MissingDependencyError(
                f"FlagEmbedding does not import ({error}); run pip install 'FlagEmbedding>=1.4' 'transformers<5.24'."
            ) from error
        with _loading(name):
            m3 = flag.BGEM3FlagModel(str(folder), use_fp16=False, devices=device)
            m3.model.float().to(device).eval()

    def forward(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        # m3 itself is kept alive here: when it is collected, it moves its model to the CPU.
        vectors: torch.Tensor = m3.model(batch, return_dense=True)["dense_vecs"]
        return vectors

    def heads(batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        found = m3.model(batch, return_dense=True, return_sparse=True, return_colbert_vecs=True)
        return found["dense_vecs"], found["sparse_vecs"].squeeze(-1), found["colbert_vecs"]

    return Loaded(m3.tokenizer, forward, heads)


def load_plain(name: str, folder: Path, settings: Settings, device: str) -> Loaded:
    """Any encoder that transformers knows, pooled as ``settings`` say."""
    with _quiet(), _loading(name):
        # Explicit, so that transformers does not ask on the terminal whether to run the model's code.
        model, report = AutoModel.from_pretrained(
            folder, dtype=torch.float32, trust_remote_code=False, output_loading_info=True
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedModelError(f"The embedder {name!r} is an encoder-decoder; use an encoder or a decoder model.")
    # The pooler is a head that sentence embeddings do not use; anything else missing would be random numbers.
    missing = [key for key in (*report["missing_keys"], *map(str, report["mismatched_keys"])) if "pooler" not in key]
    if missing:
        raise ModelNotFoundError(
            f"The embedder {name!r} has no usable weights for {min(missing)} ({len(missing)} missing); get it again."
        )
    model.to(device).eval()
    pool = _POOL[settings.pooling]

    def forward(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return pool(model(**batch).last_hidden_state, batch["attention_mask"])

    return Loaded(tokenizer, forward)


def _cls(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return states[:, 0]  # padding is on the right


def _mean(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weights = mask.unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


def _max(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return states.masked_fill(mask.unsqueeze(-1) == 0, float("-inf")).amax(1)


def _last_token(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return states[torch.arange(len(states), device=states.device), mask.sum(1) - 1]


_POOL: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cls": _cls,
    "mean": _mean,
    "max": _max,
    "lasttoken": _last_token,
}


def _check_heads(name: str, folder: Path) -> None:
    """Both heads exist and hold tensors only: whatever a FlagEmbedding release calls, it unpickles nothing else."""
    for head in HEADS:
        if not (folder / head).is_file():
            raise ModelNotFoundError(f"The embedder {name!r} lacks {head}; BGE-M3 needs all its files, get it again.")
        try:
            torch.load(folder / head, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as error:
            raise ModelNotFoundError(
                f"The embedder {name!r} has a {head} that is damaged or holds more than tensors; get it again."
            ) from error


@contextmanager
def _loading(name: str) -> Iterator[None]:
    """Turn what the libraries raise while loading into one sentence."""
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, pickle.UnpicklingError, SafetensorError) as error:
        if "trust_remote_code" in str(error):
            raise UnsupportedModelError(
                f"The embedder {name!r} brings its own Python code, which is not run; use one that transformers knows."
            ) from error
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ModelNotFoundError(f"The embedder {name!r} cannot be loaded ({reason}); get it again.") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings, notices and progress bars of the libraries while a model loads."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
