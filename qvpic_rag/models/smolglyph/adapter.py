"""What is shipped of smolglyph, and how it becomes an ordinary model folder on the user's machine.

The adapter is one safetensors file: vision tower with merger, and low-rank updates of the language model, bfloat16. On
first use it is joined with SmolLM2's weights from their package and written to the user's cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from qvpic_rag.errors import ConfigError, ModelNotFoundError
from qvpic_rag.models.smolglyph import ADAPTER
from qvpic_rag.models.smolglyph.base import SHA256, Base, load_base, silent
from qvpic_rag.models.smolglyph.lora import Lora
from qvpic_rag.models.smolglyph.model import Tower, build_model, build_tokenizer, processor

__all__ = ["LIMIT", "assemble", "save_adapter", "smolglyph_folder"]

LIMIT = 24_000_000
"""Bytes that an adapter may have."""

_FORMAT = 1
_VISUAL, _LORA = "visual.", "lora."


def save_adapter(
    visual: Mapping[str, Tensor], lora: Mapping[str, Tensor], about: Mapping[str, Any], folder: Path
) -> None:
    """Write an adapter; other files in the folder, such as a card, stay.

    Parameters
    ----------
    visual, lora : Mapping[str, Tensor]
        State of the vision tower and of :class:`~qvpic_rag.models.smolglyph.lora.Lora`.
    about : Mapping[str, Any]
        JSON-able: ``tower`` (:meth:`Tower.to_dict`), ``rank`` and ``base``, the digest of the language model.

    Raises
    ------
    ConfigError
        It would be larger than :data:`LIMIT`.
    """
    tensors = {f"{_VISUAL}{name}": value for name, value in visual.items()}
    tensors |= {f"{_LORA}{name}": value for name, value in lora.items()}
    tensors = {name: value.detach().to(torch.bfloat16).contiguous() for name, value in tensors.items()}
    size = sum(value.nbytes for value in tensors.values())
    if size > LIMIT:
        raise ConfigError(f"The adapter would have {size} bytes, more than {LIMIT}; train it with a smaller rank.")
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{ADAPTER}.part"
    save_file(tensors, part, {"smolglyph": json.dumps({**about, "format": _FORMAT})})
    part.replace(folder / ADAPTER)


def _read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(folder / ADAPTER, framework="pt") as file:
            about = json.loads((file.metadata() or {})["smolglyph"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ModelNotFoundError(f"{folder} holds no smolglyph adapter ({error}); name an exported one.") from error
    if about.get("format") != _FORMAT:
        raise ModelNotFoundError(f"The adapter in {folder} is of another version; install the qvpic-rag it came with.")
    return tensors, about


def assemble(adapter: Path, folder: Path, *, base: Base | None = None) -> None:
    """Join an adapter with SmolLM2 and write an ordinary Hugging Face folder, bfloat16; whole or not at all.

    Parameters
    ----------
    adapter : Path
        Folder of the adapter.
    folder : Path
        To be written. If it is there when all is done, because another process was quicker, it stays as it is.
    base : Base, optional
        The language model; by default SmolLM2 from its package.

    Raises
    ------
    ModelNotFoundError
        ``adapter`` holds none, or one of another language model.
    ConfigError
        The folder cannot be written.
    MissingDependencyError
        The package with SmolLM2 is not installed.
    """
    tensors, about = _read(adapter)
    base = base or load_base()
    if about["base"] != base.digest:
        raise ModelNotFoundError(f"The adapter in {adapter} was made for other weights than SmolLM2's.")
    try:
        model = _joined(base, tensors, about)
    except (RuntimeError, KeyError, TypeError) as error:
        raise ModelNotFoundError(f"The adapter in {adapter} does not fit its own description ({error}).") from error
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
        try:
            made.chmod(0o755)
            with silent():
                model.to(torch.bfloat16).save_pretrained(made)
            build_tokenizer(base).save_pretrained(made)
            settings = json.dumps(processor(), indent=1)
            (made / "preprocessor_config.json").write_text(settings, encoding="utf-8")
            try:
                made.rename(folder)
            except OSError:
                if not (folder / "config.json").is_file():
                    raise
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        raise ConfigError(
            f"The model smolglyph cannot be written to {folder} ({error}); free some space or name another folder."
        ) from error


def _joined(base: Base, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> Any:
    """The model with the adapter's tower, and its updates added to the language model's weights in float32."""
    model = build_model(base, Tower(**about["tower"]), seed=0)
    lora = Lora(model.config.text_config, about["rank"], seed=0)
    for module, head in ((model.model.visual, _VISUAL), (lora, _LORA)):
        module.load_state_dict(
            {name.removeprefix(head): value.float() for name, value in tensors.items() if name.startswith(head)}
        )
    with torch.no_grad():
        updates = lora.updates(model.config.text_config)
        for layer, update in zip(model.model.language_model.layers, updates, strict=True):
            for name, value in update.items():
                getattr(layer.self_attn, name).weight.add_(value)
    return model


def smolglyph_folder(adapter: Path) -> Path:
    """The model of an adapter, assembled in the user's cache; made on first use, which takes some seconds and 0.3 GB.

    Its name is the SHA-256 of the adapter and of SmolLM2, so a new adapter never meets an old folder.

    Raises
    ------
    ModelNotFoundError, ConfigError, MissingDependencyError
        See :func:`assemble`.
    """
    try:
        content = (adapter / ADAPTER).read_bytes()
    except OSError as error:
        raise ModelNotFoundError(f"{adapter} holds no smolglyph adapter ({error.strerror}).") from error
    key = hashlib.sha256(hashlib.sha256(content).digest() + bytes.fromhex(SHA256)).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "qvpic-rag" / f"smolglyph-{key[:32]}"
    if not (folder / "config.json").is_file():
        assemble(adapter, folder)
    return folder
