"""Digests of weights and configuration: what makes two checkpoints the same model.

Hashing gigabytes takes seconds, so each file's SHA-256 is remembered by path, size, times and inode in the user's cache
folder. Losing that memory costs time, never correctness.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qvpic_rag.records import stable_digest

__all__ = ["config_digest", "files_digest", "model_fingerprint", "weight_files"]

_log = logging.getLogger(__name__)

# Bookkeeping that changes without the model changing.
_VOLATILE = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "_commit_hash", "_attn_implementation")


def _memory_path() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "qvpic-rag" / "digests.json"


def _remembered() -> dict[str, str]:
    try:
        memory = json.loads(_memory_path().read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):  # RuntimeError: a user without a home
        return {}
    return memory if isinstance(memory, dict) else {}


def _remember(memory: dict[str, str]) -> None:
    try:
        path = _memory_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(memory, file)
        Path(temporary).replace(path)
    except (OSError, RuntimeError) as error:
        _log.debug("file digests are not remembered: %s", error)


def _hash_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def files_digest(paths: Sequence[Path]) -> str:
    """SHA-256 (hex) over the names and contents of files, in name order; each file's hash is remembered."""
    memory, parts, changed = _remembered(), {}, False
    for path in sorted(paths, key=lambda p: p.name):
        real = path.resolve()
        status = real.stat()
        # The change time and inode tell a file put in another's place with its size and modification time.
        tag = "|".join(map(str, (real, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)))
        if tag not in memory:
            memory[tag] = _hash_file(real)
            changed = True
        parts[path.name] = memory[tag]
    if changed:
        _remember(memory)
    return stable_digest(parts)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint folder, in name order."""
    return sorted(folder.glob("*.safetensors"))


def _without_volatile(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _without_volatile(v) for k, v in value.items() if k not in _VOLATILE}
    if isinstance(value, list | tuple):
        return [_without_volatile(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def config_digest(config: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of a configuration, without the keys that change while the model does not."""
    return stable_digest(_without_volatile(config))


def model_fingerprint(where: str, config: Any) -> str:
    """SHA-256 (hex) of architecture and weights; a hub commit stands for the weights where there is one."""
    revision = getattr(config, "_commit_hash", None)
    weights = revision or files_digest(weight_files(Path(where)))
    return stable_digest({"config": config_digest(config.to_dict()), "weights": weights})
