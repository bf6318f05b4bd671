"""Reading files, folders, patterns and standard input as documents, one at a time.

``.txt`` and ``.md`` are taken as they are; HTML, CSV, JSON and the text layer of PDF become plain text (``formats``,
``html``, ``pdf``). Text files must be UTF-8, or UTF-16 with a byte order mark.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from qvpic_rag.documents.decode import SAMPLE_BYTES, decode, is_binary
from qvpic_rag.documents.find import Found, find, reason
from qvpic_rag.documents.formats import READERS
from qvpic_rag.errors import DocumentError
from qvpic_rag.records import Document, stable_digest

__all__ = ["SUFFIXES", "Failure", "LeftOut", "document_digest", "read_documents"]

SUFFIXES = tuple(READERS)
"""Endings of the files that can be read, lower case."""

_STDIN = "-"


@dataclass(frozen=True)
class Failure:
    """A path that gave no document, and why."""

    source: str
    error: DocumentError


@dataclass(frozen=True)
class LeftOut:
    """A file in a folder, or one that a pattern matches, of a type that cannot be read."""

    source: str


def read_documents(
    paths: Sequence[str | os.PathLike[str]], *, stdin: IO[str] | IO[bytes] | None = None
) -> Iterator[Document | Failure | LeftOut]:
    """Read documents one after the other; what cannot be read is yielded as a :class:`Failure` and reading goes on.

    Parameters
    ----------
    paths : Sequence[str | os.PathLike[str]]
        Files; folders (with all that is below, in name order, without hidden files); patterns such as
        ``docs/**/*.md``; ``-`` for standard input, read as plain text under the source ``stdin``. A file that several
        paths reach is read once.
    stdin : IO[str] | IO[bytes], optional
        What ``-`` reads; by default the process's standard input.

    Yields
    ------
    Document | Failure | LeftOut
        A document's ``source`` is its path as given, with forward slashes and without ``./`` or a trailing slash.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    seen: set[str] = set()
    for path in given:
        if os.fspath(path) == _STDIN:
            if _STDIN not in seen:
                seen.add(_STDIN)
                yield _read_stdin(getattr(sys.stdin, "buffer", sys.stdin) if stdin is None else stdin)
            continue
        for found in find(os.fspath(path), SUFFIXES):
            identity = os.path.realpath(found.source) if found.error is None else found.source
            if identity not in seen:
                seen.add(identity)
                yield _read(found) if found.readable else LeftOut(found.source)


def document_digest(document: Document) -> str:
    """SHA-256 (hex) over a document's text and metadata: equal digests need no new pages.

    Raises
    ------
    DocumentError
        The metadata is not JSON-able.
    """
    try:
        return stable_digest({"qvpic-document": 1, "text": document.text, "metadata": dict(document.metadata)})
    except (TypeError, ValueError, RecursionError) as error:
        raise DocumentError(
            f"The metadata of {document.source!r} cannot be stored as JSON ({error}); use strings, numbers, booleans, "
            "lists and mappings with string keys."
        ) from error


def _read(found: Found) -> Document | Failure:
    source = found.source
    if found.error is not None:
        return Failure(source, found.error)
    suffix = Path(source).suffix.lower()
    try:
        if suffix not in READERS:
            raise _unsupported(source, suffix)
        text = READERS[suffix](Path(source).read_bytes(), source)
        if not text.strip():
            raise DocumentError(f"{source!r} is empty; give a file that holds text.")
    except DocumentError as error:
        return Failure(source, error)
    except OSError as error:
        return Failure(source, DocumentError(f"{source!r} cannot be read: {reason(error)}."))
    return Document(text=text, source=source)


def _read_stdin(stream: IO[str] | IO[bytes] | None) -> Document | Failure:
    source = "stdin"
    try:
        if stream is None:  # a process without a console
            raise DocumentError("There is no standard input; give paths.")
        data = stream.read()
        text = decode(data.encode("utf-8") if isinstance(data, str) else data, source)
        if not text.strip():
            raise DocumentError("Standard input is empty; pipe text into it or give paths.")
    except DocumentError as error:
        return Failure(source, error)
    except (OSError, ValueError) as error:  # ValueError: closed, or not UTF-8 when opened as text
        return Failure(source, DocumentError(f"Standard input cannot be read as text: {error}."))
    return Document(text=text, source=source)


def _unsupported(source: str, suffix: str) -> DocumentError:
    with Path(source).open("rb") as file:
        kind = "a binary file" if is_binary(file.read(SAMPLE_BYTES)) else "a file"
    ending = f"of type {suffix}" if suffix else "without an ending"
    return DocumentError(f"{source!r} is {kind} {ending}; convert it to one of {', '.join(SUFFIXES)}.")
