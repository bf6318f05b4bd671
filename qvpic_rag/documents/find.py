"""From a path, folder or pattern to the files it names, in a fixed order."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qvpic_rag.errors import DocumentError

__all__ = ["Found", "find", "reason"]


@dataclass(frozen=True)
class Found:
    """A file to read, a path that leads to none (``error``), or a file in a folder that no reader is for."""

    source: str
    error: DocumentError | None = None
    readable: bool = True


def find(path: str, suffixes: Sequence[str]) -> Iterator[Found]:
    """The files that one argument names.

    A file named directly is to be read whatever its ending; in folders and patterns only files that end in one of
    ``suffixes`` are ``readable``, and hidden ones are not found. Folders are walked depth first in name order; links to
    folders are followed, each real folder once.
    """
    source = Path(path).as_posix() if path else ""
    try:
        exists = bool(path) and (Path(path).exists() or os.path.lexists(path))
        if exists:
            Path(path).stat()  # says why, if it is a link to nowhere
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        yield _failed(source, f"{source!r} cannot be read: {reason(error)}.")
        return
    if not exists and glob.has_magic(path):
        found, what = _matching(path, suffixes), f"The pattern {source!r} matches"
    elif not exists:
        yield _failed(source, f"{source!r} does not exist; check the path.")
        return
    elif _is_dir(Path(path)):
        found, what = _walk(Path(path), suffixes, set()), f"The folder {source!r} holds"
    elif Path(path).is_file():
        yield Found(source)
        return
    else:
        yield _failed(source, f"{source!r} is neither a file nor a folder; to read a pipe, give - for standard input.")
        return
    nothing = True
    for item in found:
        nothing = nothing and not item.readable
        yield item
    if nothing:
        yield _failed(source, f"{what} no file that can be read; supported are {', '.join(suffixes)}.")


def reason(error: Exception) -> str:
    """What went wrong, without the path that the sentence around it names."""
    if isinstance(error, PermissionError):
        return "permission denied; make it readable"
    return str(getattr(error, "strerror", None) or error).lower()


def _failed(source: str, message: str) -> Found:
    return Found(source, DocumentError(message))


def _unreadable(folder: Path, error: OSError) -> Found:
    source = folder.as_posix()
    return _failed(source, f"The folder {source!r} cannot be read: {reason(error)}.")


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False  # in a folder that may not be searched; reading the path itself reports that


def _visible(folder: Path) -> list[str]:
    """Names in a folder, sorted, without the hidden ones."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if not entry.name.startswith("."))


def _walk(folder: Path, suffixes: Sequence[str], visited: set[str]) -> Iterator[Found]:
    """Files below ``folder``; ``visited`` holds the real folders seen, so that a loop of links ends."""
    real = os.path.realpath(folder)
    if real in visited:
        return
    visited.add(real)
    try:
        for name in _visible(folder):
            path = folder / name
            if path.is_dir():
                yield from _walk(path, suffixes, visited)
            elif path.is_file():
                yield Found(path.as_posix(), readable=path.suffix.lower() in suffixes)
    except OSError as error:
        yield _unreadable(folder, error)


def _matching(pattern: str, suffixes: Sequence[str]) -> Iterator[Found]:
    """Files that a pattern matches, and those in folders that it matches."""
    start = Path(Path(pattern).anchor)
    parts = Path(pattern).parts[1:] if start.parts else Path(pattern).parts
    visited: set[str] = set()
    for match in sorted(set(_expand(start, parts)), key=lambda found: found.source):
        path = Path(match.source)
        if match.error is not None:
            yield match
        elif _is_dir(path):
            yield from _walk(path, suffixes, visited)
        elif path.is_file():
            yield Found(path.as_posix(), readable=path.suffix.lower() in suffixes)


def _expand(folder: Path, parts: tuple[str, ...]) -> Iterator[Found]:
    """Paths below ``folder`` that match ``parts``; ``**`` survives loops of links, unlike glob's."""
    if not parts:
        yield Found(folder.as_posix())
        return
    head, rest = parts[0], parts[1:]
    if head == "**":
        for below in _folders(folder, set()):
            yield from _expand(below, rest)
    elif not glob.has_magic(head):
        if os.path.lexists(folder / head):
            yield from _expand(folder / head, rest)
    elif _is_dir(folder):
        try:
            names = [path.name for path in folder.iterdir()] if head.startswith(".") else _visible(folder)
        except OSError as error:
            yield _unreadable(folder, error)
            return
        for name in fnmatch.filter(names, head):
            if not rest or _is_dir(folder / name):
                yield from _expand(folder / name, rest)


def _folders(folder: Path, visited: set[str]) -> Iterator[Path]:
    """``folder`` and the folders below it, each real one once."""
    real = os.path.realpath(folder)
    if real in visited or not _is_dir(folder):
        return
    visited.add(real)
    yield folder
    try:
        names = _visible(folder)
    except OSError:
        return  # _expand meets the same error in this folder and reports it
    for name in names:
        yield from _folders(folder / name, visited)
