"""What callers give to a store, checked before anything is embedded or stored."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from langchain_core.documents import Document
from qvpic_rag.errors import ConfigError, DocumentError, InputError
from qvpic_rag.render import Renderer, is_blank

from langchain_qvpic.entries import Vector

__all__ = ["documents_of", "listed", "no_other_options", "normalised"]


def documents_of(
    texts: Iterable[str],
    metadatas: Iterable[Mapping[str, Any] | None] | None,
    ids: Iterable[str | None] | None,
    renderer: Renderer,
) -> list[Document]:
    """Documents with ids.

    Raises
    ------
    InputError
        The lengths differ, an id is there twice, or metadata are not what JSON can hold.
    DocumentError
        A text has nothing to draw or, where the renderer is strict, characters that no font draws.
    """
    given = listed("texts", texts)
    names = [None] * len(given) if ids is None else listed("ids", ids)
    metas = [None] * len(given) if metadatas is None else listed("metadatas", metadatas)
    for what, items in (("metadatas", metas), ("ids", names)):
        if len(items) != len(given):
            raise InputError(f"There are {len(given)} texts and {len(items)} {what}; give one per text.")
    if not all(isinstance(each, str | None) for each in names):
        raise InputError("An id is not a string; give strings, or None for a random one.")
    names = [each or str(uuid.uuid4()) for each in names]
    if len(set(names)) != len(names):
        raise InputError("An id is given twice; give each document its own.")
    for name, text, metadata in zip(names, given, metas, strict=True):
        if not isinstance(text, str) or is_blank(text):
            raise DocumentError(
                "A text to add is empty, or not a string with something to draw; leave out documents without text."
            )
        if renderer.strict:  # lays the text out, which is a small part of what compiling it takes
            renderer.pages(text, name)
        if not (metadata is None or _survives_json(metadata)):
            raise InputError(
                f"The metadata of document {name!r} would not survive being stored as JSON; give a mapping of strings, "
                "numbers, booleans, None, lists and mappings with string keys."
            )
    return [
        Document(id=name, page_content=text, metadata=dict(metadata or {}))
        for name, text, metadata in zip(names, given, metas, strict=True)
    ]


def _survives_json(metadata: object) -> bool:
    try:
        return isinstance(metadata, Mapping) and json.loads(json.dumps(dict(metadata), allow_nan=False)) == metadata
    except (TypeError, ValueError, RecursionError):
        return False


def listed(name: str, items: Any) -> list[Any]:
    """A list of what an argument holds, which a string or a single thing does not."""
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise InputError(f"Give {name} as a list, not as {type(items).__name__}.")
    return list(items)


def normalised(rows: Sequence[Any], count: int) -> Vector:
    """float32 ``[count, dimension]`` of length one each, of what an embedding model gave."""
    try:
        matrix = np.asarray(rows, np.float32)
    except (TypeError, ValueError):  # no numbers, or rows of several lengths
        matrix = np.empty(0, np.float32)
    if matrix.ndim != 2 or not np.isfinite(matrix).all() or not np.linalg.norm(matrix, axis=1).all():
        raise InputError("An embedding is not a row of finite numbers other than zero; check the embedding model.")
    if len(matrix) != count:
        raise InputError(f"The embedding model gave {len(matrix)} vectors for {count} texts; check it.")
    return np.asarray(matrix / np.linalg.norm(matrix, axis=1, keepdims=True), np.float32)


def no_other_options(given: Mapping[str, Any], method: str, known: str) -> None:
    """Refuse keywords that a method does not have."""
    if given:
        raise ConfigError(f"{method} has no option {min(given)!r}; there are {known}.")
