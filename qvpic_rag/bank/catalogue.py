"""Documents and pages: the SQL behind them. Every function runs inside the caller's transaction and in one namespace.

A page is stored once per namespace and digest; documents link to it with its number in them. A page lives as long as a
link to it does. Pages that look alike but whose texts differ (in what is not drawn) are one page, with the text and the
embedding that came last.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qvpic_rag.bank import failures
from qvpic_rag.bank.records import StoredDocument, StoredPage
from qvpic_rag.errors import BankError, BankMismatchError, DocumentError
from qvpic_rag.records import Page, stable_digest

__all__ = [
    "IN_NAMESPACE",
    "changed",
    "check_document",
    "decode_embedding",
    "decode_lines",
    "decode_text",
    "document_digest",
    "document_pages",
    "documents",
    "embeddings",
    "find_page",
    "generation",
    "is_generation",
    "is_text",
    "namespace_id",
    "page_count",
    "pages",
    "put_document",
    "remove_document",
    "vectors",
]

_BATCH = 500
_ID_BITS = 40  # of a page's id count within its namespace
IN_NAMESPACE = "namespace_id = (SELECT id FROM namespaces WHERE name = ?)"


def _stored(text: str) -> str | bytes:
    """A string as SQLite can hold it. File names that are not UTF-8 come with lone surrogates: kept as bytes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def decode_text(value: str | bytes) -> str:
    """A name or text as stored; ``UnicodeDecodeError`` (which ``failures.guard`` turns) when it is damaged."""
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value


def is_text(value: object) -> bool:
    """Whether a stored value is text that :func:`decode_text` reads."""
    try:
        return isinstance(value, str | bytes) and decode_text(value) is not None
    except UnicodeDecodeError:
        return False


def namespace_id(connection: sqlite3.Connection, name: str) -> int:
    """The row of a namespace, made if there is none."""
    row = connection.execute("SELECT id FROM namespaces WHERE name = ?", (name,)).fetchone()
    if row is None:
        return int(connection.execute("INSERT INTO namespaces (name) VALUES (?)", (name,)).lastrowid or 0)
    return int(row[0])


def generation(connection: sqlite3.Connection, namespace: str, path: Path) -> int:
    """The number that grows with every change of the namespace's pages; ``BankError`` when it is damaged."""
    row = connection.execute("SELECT generation FROM namespaces WHERE name = ?", (namespace,)).fetchone()
    number = row[0] if row else 0
    if not is_generation(number):
        raise failures.damaged(path)
    return int(number)


def is_generation(number: object) -> bool:
    """Whether a stored generation is one."""
    return isinstance(number, int) and number >= 0


def changed(connection: sqlite3.Connection, namespace: int) -> None:
    """Let the generation of a namespace's row grow, for its pages change.

    A copy or a restored backup of a bank goes on from the same number. Steps are random, so that the two do not meet
    again, and a search index of the one is not taken for the other's. 2**31 of the largest steps fit the column.
    """
    step = secrets.randbelow(2**32) + 1
    connection.execute("UPDATE namespaces SET generation = generation + ? WHERE id = ?", (step, namespace))


def check_document(
    source: str, pages: Sequence[Page], vectors: npt.ArrayLike, metadata: Mapping[str, Any], dimension: int
) -> tuple[npt.NDArray[np.float32], str]:
    """The embeddings as little-endian float32 ``[pages, dimension]`` and the metadata as JSON, or an error."""
    array: npt.NDArray[np.float32] = np.ascontiguousarray(vectors, dtype="<f4")
    if len(pages) == 0 and array.size == 0:
        array = array.reshape(0, dimension)
    if array.ndim != 2 or len(array) != len(pages):
        raise DocumentError(
            f"{source!r} cannot be stored: it has {len(pages)} pages and embeddings of shape {list(array.shape)}; give "
            f"one embedding per page."
        )
    if array.shape[1] != dimension:
        raise BankMismatchError(
            f"The embeddings of {source!r} have {array.shape[1]} numbers and the bank's have {dimension}: use the "
            f"bank's own embedding model.",
            field="dimension",
        )
    if not np.isfinite(array).all():
        raise DocumentError(f"{source!r} cannot be stored: an embedding is not finite; check the embedding model.")
    if len({page.number for page in pages}) != len(pages):
        raise DocumentError(f"{source!r} cannot be stored: two of its pages have the same number.")
    try:
        encoded = json.dumps(dict(metadata), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise DocumentError(
            f"The metadata of {source!r} cannot be stored as JSON ({error}): use plain values."
        ) from error
    return array, encoded


def put_document(
    connection: sqlite3.Connection,
    namespace: str,
    source: str,
    digest: str,
    pages: Sequence[Page],
    vectors: npt.NDArray[np.float32],
    metadata: str,
) -> None:
    """Store a document and its pages in place of what it was before; pages it keeps keep their ids."""
    owner = namespace_id(connection, namespace)
    connection.execute(
        """INSERT INTO documents (namespace_id, source, digest, metadata) VALUES (?, ?, ?, ?)
        ON CONFLICT (namespace_id, source) DO UPDATE SET digest = excluded.digest, metadata = excluded.metadata""",
        (owner, _stored(source), digest, metadata),
    )
    document = _document_id(connection, owner, source)
    before = _release(connection, document)
    digests = [page.digest for page in pages]
    first = _take_ids(connection, owner, len(pages))
    connection.executemany(
        """INSERT INTO pages (id, namespace_id, digest, lines, text, embedding) VALUES (?, ?, ?, ?, ?, ?)
        ON CONFLICT (namespace_id, digest) DO UPDATE
        SET lines = excluded.lines, text = excluded.text, embedding = excluded.embedding""",
        (
            (
                first + n,
                owner,
                name,
                json.dumps(list(page.lines), ensure_ascii=True),
                _stored(page.text),
                vector.tobytes(),
            )
            for n, (name, page, vector) in enumerate(zip(digests, pages, vectors, strict=True))
        ),
    )
    connection.executemany(
        """INSERT INTO links (document_id, number, page_id)
        SELECT ?, ?, id FROM pages WHERE namespace_id = ? AND digest = ?""",
        ((document, page.number, owner, name) for name, page in zip(digests, pages, strict=True)),
    )
    _drop_unlinked(connection, before)
    changed(connection, owner)


def _take_ids(connection: sqlite3.Connection, namespace: int, count: int) -> int:
    """The first of ``count`` page ids that were never given out.

    Each namespace counts for itself from a random start, so that ids do not tell how many pages or namespaces there
    are besides. ``last_page`` is 0 until then; ids of format 1 are smaller than any start.
    """
    query = "SELECT last_page FROM namespaces WHERE id = ?"
    last = int(connection.execute(query, (namespace,)).fetchone()[0])
    while last == 0:
        start = secrets.randbelow(2**22 - 1) + 1
        taken = connection.execute("SELECT 1 FROM namespaces WHERE last_page >> ? = ?", (_ID_BITS, start)).fetchone()
        last = 0 if taken else start << _ID_BITS
    connection.execute("UPDATE namespaces SET last_page = ? WHERE id = ?", (last + count, namespace))
    return last + 1


def remove_document(connection: sqlite3.Connection, namespace: str, source: str) -> bool:
    """Remove a document and the pages only it holds; False when there is none."""
    owner = namespace_id(connection, namespace)
    document = _document_id(connection, owner, source)
    if document is None:
        return False
    before = _release(connection, document)
    connection.execute("DELETE FROM documents WHERE id = ?", (document,))
    _drop_unlinked(connection, before)
    changed(connection, owner)
    return True


def _document_id(connection: sqlite3.Connection, owner: int, source: str) -> int | None:
    query = "SELECT id FROM documents WHERE namespace_id = ? AND source = ?"
    row = connection.execute(query, (owner, _stored(source))).fetchone()
    return int(row[0]) if row else None


def _release(connection: sqlite3.Connection, document: int | None) -> list[tuple[int]]:
    """Remove a document's links; returns the pages they led to."""
    held = connection.execute("SELECT DISTINCT page_id FROM links WHERE document_id = ?", (document,)).fetchall()
    connection.execute("DELETE FROM links WHERE document_id = ?", (document,))
    return held


def _drop_unlinked(connection: sqlite3.Connection, pages: Sequence[tuple[int]]) -> None:
    connection.executemany(
        "DELETE FROM pages WHERE id = ? AND NOT EXISTS (SELECT 1 FROM links WHERE page_id = pages.id)", pages
    )


def document_digest(connection: sqlite3.Connection, namespace: str, source: str) -> str | None:
    """The digest a document was stored with, None when it is not there."""
    query = f"SELECT digest FROM documents WHERE {IN_NAMESPACE} AND source = ?"
    row = connection.execute(query, (namespace, _stored(source))).fetchone()
    return str(row[0]) if row else None


def documents(connection: sqlite3.Connection, namespace: str) -> list[StoredDocument]:
    """All documents, in the order in which they were first stored."""
    query = f"""SELECT source, digest, (SELECT count(*) FROM links WHERE document_id = documents.id), metadata
        FROM documents WHERE {IN_NAMESPACE} ORDER BY id"""
    rows = connection.execute(query, (namespace,))
    return [
        StoredDocument(decode_text(source), digest, count, json.loads(data)) for source, digest, count, data in rows
    ]


def page_count(connection: sqlite3.Connection, namespace: str) -> int:
    """Number of pages; a page that several documents share counts once."""
    query = f"SELECT count(*) FROM pages WHERE {IN_NAMESPACE}"
    return int(connection.execute(query, (namespace,)).fetchone()[0])


def pages(connection: sqlite3.Connection, namespace: str, ids: Sequence[int] | None, path: Path) -> list[StoredPage]:
    """The pages with these ids, in the order of ``ids``; ids that are not stored (any more) are left out. None: all.

    A page that several documents share is returned as the page of the one that was stored first.
    """
    if ids is None:
        everything = connection.execute(f"SELECT id FROM pages WHERE {IN_NAMESPACE} ORDER BY id", (namespace,))
        ids = [row[0] for row in everything]
    found: dict[int, StoredPage] = {}
    wanted = [int(number) for number in dict.fromkeys(ids)]
    for start in range(0, len(wanted), _BATCH):
        batch = wanted[start : start + _BATCH]
        query = f"""SELECT pages.id, pages.digest, pages.lines, pages.text, documents.source, links.number
            FROM pages JOIN links ON links.page_id = pages.id JOIN documents ON documents.id = links.document_id
            WHERE pages.{IN_NAMESPACE} AND pages.id IN ({",".join("?" * len(batch))})
            AND (links.document_id, links.number) = (SELECT document_id, number FROM links AS first
                WHERE first.page_id = pages.id ORDER BY document_id, number LIMIT 1)"""
        for number, digest, lines, text, source, position in connection.execute(query, (namespace, *batch)):
            drawn = decode_lines(lines, digest)
            if drawn is None:
                raise BankError(
                    f"Page {position} of {decode_text(source)!r} in the bank at {str(path)!r} is damaged: ingest it "
                    f"again after `qvpic bank remove`."
                )
            found[number] = StoredPage(number, Page(drawn, decode_text(text), decode_text(source), position))
    return [found[number] for number in map(int, ids) if number in found]


def document_pages(connection: sqlite3.Connection, namespace: str, source: str, path: Path) -> list[Page]:
    """The pages of a document in their order; none when it is not stored."""
    query = f"""SELECT links.page_id FROM links JOIN documents ON documents.id = links.document_id
        WHERE documents.{IN_NAMESPACE} AND documents.source = ? ORDER BY links.number"""
    ids = [row[0] for row in connection.execute(query, (namespace, _stored(source)))]
    found = [stored.page for stored in pages(connection, namespace, ids, path)]
    return [replace(page, source=source, number=number) for number, page in enumerate(found)]


def find_page(connection: sqlite3.Connection, namespace: str, digest: str, path: Path) -> Page | None:
    """The page with a digest, None when it is not stored; see :func:`pages`."""
    query = f"SELECT id FROM pages WHERE {IN_NAMESPACE} AND digest = ?"
    row = connection.execute(query, (namespace, _stored(digest))).fetchone()
    found = pages(connection, namespace, [row[0]], path) if row else []
    return found[0].page if found else None


def decode_lines(lines: object, digest: object) -> tuple[str, ...] | None:
    """The drawn lines as stored, None when they are damaged: ``digest`` is the page's, :attr:`Page.digest`."""
    try:
        values = json.loads(lines) if isinstance(lines, str) else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, list) or not all(isinstance(line, str) for line in values):
        return None
    return tuple(values) if stable_digest(values) == digest else None


def decode_embedding(blob: object, dimension: int) -> npt.NDArray[np.float32] | None:
    """An embedding as stored (a read-only view), None when it is damaged."""
    if not isinstance(blob, bytes) or len(blob) != 4 * dimension:
        return None
    vector: npt.NDArray[np.float32] = np.frombuffer(blob, dtype="<f4")
    return vector if np.isfinite(vector).all() else None


def embeddings(
    connection: sqlite3.Connection, namespace: str, digests: Sequence[str], dimension: int, path: Path
) -> dict[str, npt.NDArray[np.float32]]:
    """Embeddings ``[dimension]`` (read-only) by page digest; pages that are not stored are left out."""
    found: dict[str, npt.NDArray[np.float32]] = {}
    for start in range(0, len(digests), _BATCH):
        batch = digests[start : start + _BATCH]
        query = f"""SELECT digest, id, embedding FROM pages
            WHERE {IN_NAMESPACE} AND digest IN ({",".join("?" * len(batch))})"""
        for digest, number, blob in connection.execute(query, (namespace, *batch)):
            found[digest] = _embedding(number, blob, dimension, path)
    return found


def vectors(
    connection: sqlite3.Connection, namespace: str, dimension: int, path: Path
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Ids ``[pages]`` and embeddings ``[pages, dimension]`` of all pages, by id."""
    count = page_count(connection, namespace)
    ids = np.empty(count, dtype=np.int64)
    array = np.empty((count, dimension), dtype=np.float32)
    query = f"SELECT id, embedding FROM pages WHERE {IN_NAMESPACE} ORDER BY id"
    for row, (number, blob) in enumerate(connection.execute(query, (namespace,))):
        ids[row], array[row] = number, _embedding(number, blob, dimension, path)
    return ids, array


def _embedding(number: int, blob: object, dimension: int, path: Path) -> npt.NDArray[np.float32]:
    vector = decode_embedding(blob, dimension)
    if vector is None:
        raise BankError(
            f"The embedding of page {number} in the bank at {str(path)!r} is damaged: run `qvpic bank verify`, "
            f"then ingest its document again after `qvpic bank remove`."
        )
    return vector
