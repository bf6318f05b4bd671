"""What callers give an engine, checked and brought into one form."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import IO

from qvpic_rag.config import RenderProfile
from qvpic_rag.documents import Failure, LeftOut, read_documents
from qvpic_rag.errors import ConfigError, InputError
from qvpic_rag.models import BUNDLED
from qvpic_rag.records import Document, Message, Recipe

__all__ = ["check_arguments", "conversation", "documents_of", "profile_of"]


def check_arguments(model: object, bank: object, **texts: object) -> None:
    """Refuse what is no name, path or text before it goes where it would be misread."""
    if not isinstance(model, str) or not model.strip() or "\0" in model:
        raise ConfigError(f"model must be 'demo', a folder or a hub id, not {model!r}.")
    if not isinstance(bank, str | os.PathLike) or not os.fspath(bank) or "\0" in str(bank):
        raise ConfigError(f"bank must be the path of a folder, such as './bank', not {bank!r}.")
    for name, value in texts.items():
        if not isinstance(value, str | None):
            raise ConfigError(f"{name} must be a string, not {type(value).__name__}.")


def profile_of(profile: str | RenderProfile | None, known: Recipe | None, model: str) -> RenderProfile:
    """The render profile that is meant: the one given, else the bank's, else the model's own."""
    if isinstance(profile, RenderProfile):
        return profile
    if profile is not None:
        return RenderProfile.load(profile)
    if known is not None:
        return RenderProfile.from_dict(known.profile)
    return RenderProfile.load(model if model in BUNDLED else "glyph")  # a bundled reader has one of its own


def documents_of(
    items: Sequence[str | os.PathLike[str] | Document], stdin: IO[bytes] | IO[str] | None
) -> Iterable[Document | Failure | LeftOut]:
    """Records as they are, paths read; in the order given."""
    paths: list[str | os.PathLike[str]] = []
    for item in items:
        if isinstance(item, str) and "\n" in item:
            raise InputError("A string is a path here; give a text as Document(text=..., source=...).")
        if isinstance(item, Document):
            yield from read_documents(paths, stdin=stdin) if paths else ()
            paths = []
            yield item
        elif isinstance(item, str | os.PathLike):
            paths.append(item)
        else:
            raise InputError(f"Give paths or Document records to ingest, not {type(item).__name__}.")
    yield from read_documents(paths, stdin=stdin) if paths else ()


def conversation(question: str, system: str | None, history: Sequence[Message]) -> tuple[Message, ...]:
    """The chat turns; per-request instructions open the first user turn, where they follow the pages."""
    turns = [*(history or ()), Message("user", question)]
    if not all(isinstance(turn, Message) and isinstance(turn.content, str) for turn in turns):
        raise InputError("history must hold Message records with text, such as Message('user', 'Hello.').")
    wrong = [turn for turn in turns if turn.role not in ("user", "assistant")]
    if wrong:
        raise InputError(f"history holds a {wrong[0].role!r} turn; give instructions through system= instead.")
    if turns[0].role != "user":
        raise InputError("history must begin with a user turn.")
    if system is not None:
        turns[0] = Message("user", f"{system}\n\n{turns[0].content}")
    return tuple(turns)
