"""What a bank was made with, as stored, and the comparison that refuses anything else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from qvpic_rag.config import check_storage
from qvpic_rag.errors import BankError, BankMismatchError, ConfigError
from qvpic_rag.records import Recipe

__all__ = ["check_recipe", "decode_recipe", "encode_recipe", "summary"]

_INTEGERS = ("dimension",)
_OTHERS = ("system_prompt", "profile", "dpis", "storage", *_INTEGERS)
_NATIVE = ["native", "native"]  # recipes that say nothing of storage are from before there was another form

# In the order in which a user can act on them. Names and paths alone (model, revision, embedder) are not compared: what
# they stand for is, through its digest, and the same model may lie in another folder.
_COMPARED: tuple[tuple[str, Callable[[Recipe], object], Callable[[Recipe], str]], ...] = (
    ("model", lambda r: r.fingerprint, lambda r: f"{r.model!r} (fingerprint {_short(r.fingerprint)})"),
    ("dtype", lambda r: r.dtype, lambda r: r.dtype),
    ("system_prompt", lambda r: r.system_prompt, lambda r: _short(repr(r.system_prompt), 60)),
    ("prefix", lambda r: r.prefix, lambda r: _short(r.prefix)),
    ("processor", lambda r: r.processor, lambda r: _short(r.processor)),
    ("profile", lambda r: r.profile_digest, lambda r: f"{r.profile.get('name', '')!r} ({_short(r.profile_digest)})"),
    ("dpis", lambda r: tuple(r.dpis), lambda r: f"{tuple(r.dpis)}"),
    ("storage", lambda r: tuple(r.storage), lambda r: ",".join(r.storage)),
    ("conditioning", lambda r: r.conditioning, lambda r: _short(repr(r.conditioning), 60)),
    ("embedder", lambda r: r.embedder_digest, lambda r: f"{r.embedder!r} ({_short(r.embedder_digest)})"),
    ("dimension", lambda r: r.dimension, lambda r: str(r.dimension)),
)

_MEANING = {
    "model": "another model",
    "dtype": "another dtype",
    "system_prompt": "another system prompt",
    "prefix": "another chat-template prefix",
    "processor": "other image-processor settings",
    "profile": "another render profile, renderer version or fonts",
    "dpis": "other resolutions (DPI)",
    "storage": "another storage format",
    "conditioning": "another conditioning",
    "embedder": "another embedding model",
    "dimension": "another embedding length",
}


def _short(text: str, length: int = 12) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def encode_recipe(recipe: Recipe) -> str:
    """The recipe as JSON."""
    values = {**asdict(recipe), "profile": dict(recipe.profile), "dpis": list(recipe.dpis)}
    values["storage"] = list(recipe.storage)
    if values["storage"] == _NATIVE:
        del values["storage"]
    return json.dumps(values, sort_keys=True, ensure_ascii=True)


def decode_recipe(text: str, path: Path) -> Recipe:
    """Inverse of :func:`encode_recipe`; ``BankError`` when the text is not a recipe."""
    try:
        values: dict[str, Any] = json.loads(text)
        low, high = values["dpis"]
        storage = values.get("storage", _NATIVE)
        recipe = Recipe(**{**values, "dpis": (low, high), "storage": check_storage(storage)})
        strings = [getattr(recipe, f.name) for f in fields(Recipe) if f.name not in _OTHERS]
        numbers = [recipe.dimension, low, high]
        sound = all(isinstance(value, str) for value in strings) and all(type(value) is int for value in numbers)
        if not sound or not isinstance(recipe.profile, dict):
            raise TypeError("a field has the wrong type")
    except (ValueError, TypeError, KeyError, RecursionError, ConfigError) as error:
        raise BankError(
            f"The recipe stored in the bank at {str(path)!r} is damaged ({error}): restore the bank from a backup, or "
            f"make it again with `qvpic ingest PATH --bank DIR --model MODEL`."
        ) from error
    return recipe


def check_recipe(stored: Recipe, wanted: Recipe, path: Path) -> None:
    """Raise ``BankMismatchError`` naming the first field in which the bank's recipe is not the wanted one."""
    for field, value, show in _COMPARED:
        if value(stored) != value(wanted):
            raise BankMismatchError(
                f"The bank at {str(path)!r} was made with {_MEANING[field]}: it holds {show(stored)}, asked "
                f"for is {show(wanted)}; use the bank's own {field}, or make another bank with "
                f"`qvpic ingest PATH --bank DIR --model MODEL`.",
                field=field,
            )


def summary(recipe: Recipe) -> dict[str, Any]:
    """The fields that tell a reader what the bank is for; without the digests of its parts."""
    return {
        "model": recipe.model,
        "revision": recipe.revision,
        "fingerprint": recipe.fingerprint,
        "dtype": recipe.dtype,
        "system_prompt": recipe.system_prompt,
        "profile": recipe.profile.get("name", ""),
        "dpis": list(recipe.dpis),
        "storage": list(recipe.storage),
        "conditioning": recipe.conditioning,
        "embedder": recipe.embedder,
        "dimension": recipe.dimension,
    }
