"""An archive: documents of a bank with their pages and blocks in one file that another machine can check.

It is a POSIX tar of regular files, so that any tar lists it, with these members in this order (format version 1):

    qvpic-archive.json        format, version, namespace, numbers of documents, pages and blocks, recipe
    pages.jsonl               per page, in the order in which documents first name it: lines, text, embedding
    documents.jsonl           per document: source, digest, metadata, its pages by their place in pages.jsonl
    blocks/<digest>.safetensors   per page and resolution, as the bank stores them, named by the key at departure
    end.json                  checksums (xxh3-128) of all members before it, and how many bytes they have

Everything has exactly one spelling, member headers and padding included: a reader spells what it understood, or what
must stand there, and compares bytes. So a link, a device, a sparse file, a second member of a name, another order or
one altered byte is found by the same comparison, and no name that stands in an archive ever becomes a path. The
headers are written here, and not by tarfile, because that one spells them differently from version to version.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qvpic_rag.bank.catalogue import decode_embedding
from qvpic_rag.bank.folder import check_namespace
from qvpic_rag.bank.recipe import decode_recipe, encode_recipe
from qvpic_rag.errors import BankError, ConfigError
from qvpic_rag.records import BlockKey, Page, Recipe

__all__ = [
    "CHUNK",
    "DOCUMENTS",
    "END",
    "HEAD",
    "LARGEST_MEMBER",
    "LONGEST_LINE",
    "PAGES",
    "SECTOR",
    "TAIL",
    "ArchiveReport",
    "ArchivedDocument",
    "ArchivedPage",
    "Manifest",
    "NewerArchiveError",
    "block_name",
    "end_of",
    "member_header",
    "padding",
    "size_in_header",
]

HEAD, PAGES, DOCUMENTS, END = "qvpic-archive.json", "pages.jsonl", "documents.jsonl", "end.json"
CHUNK = 1 << 20
SECTOR = 512
TAIL = bytes(2 * SECTOR)
LARGEST_MEMBER = 8**11 - 1
"""Bytes that the size in a POSIX header can say; 600,000 pages of text and embeddings are less."""
LONGEST_LINE = 1 << 24
"""Bytes of one page or document; bounds what a reader holds in memory at a time."""

_FORMAT, _VERSION = "qvpic-archive", 1


class NewerArchiveError(ValueError):
    """The archive has a later format than this version knows."""


@dataclass(frozen=True)
class ArchiveReport:
    """What an export wrote or an import stored.

    Attributes
    ----------
    path, namespace : str
        The archive, and the namespace that its documents were taken from or stored in.
    documents, pages, blocks : int
        What the archive holds; a page that several documents share counts once.
    bytes : int
        Size of the archive.
    added, replaced, unchanged : tuple[str, ...]
        Of an import: sources, as an ingest would name them.
    stored : int
        Of an import: blocks that the bank did not hold yet, or held damaged.
    """

    path: str
    namespace: str
    documents: int
    pages: int
    blocks: int
    bytes: int
    added: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    stored: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def member_header(name: str, size: int) -> bytes:
    """The one header of a member of ``size`` bytes: a regular file of nobody's, readable, without a date."""
    head = name.encode("ascii").ljust(100, b"\0") + b"0000644\0" + 2 * b"0000000\0" + b"%011o\0%011o\0" % (size, 0)
    rest = b"0" + bytes(100) + b"ustar\x0000" + bytes(247)
    total = sum(head) + 8 * ord(" ") + sum(rest)
    return head + b"%06o\0 " % total + rest


def size_in_header(header: bytes) -> int:
    """The size that a member's header says; 0 where it says nothing that :func:`member_header` writes."""
    digits = header[124:135]
    return int(digits, 8) if digits and all(digit in b"01234567" for digit in digits) else 0


def padding(size: int) -> bytes:
    """What follows a member of ``size`` bytes."""
    return bytes(-size % SECTOR)


def block_name(key: BlockKey) -> str:
    """The member of the block with this key."""
    return f"blocks/{key.digest}.safetensors"


def _spell(value: object) -> bytes:
    """A JSON value in its one spelling, as a line."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def _understand(line: bytes) -> dict[str, Any]:
    """The object on a line; ``ValueError`` when it is none."""
    try:
        value = json.loads(line.decode("ascii"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value


def end_of(checksums: Mapping[str, str], nbytes: int) -> bytes:
    """The content of the last member: the checksums of all members before it, and the sum of their sizes."""
    return _spell({"bytes": nbytes, "checksums": dict(checksums)})


@dataclass(frozen=True)
class Manifest:
    """The first member: what follows it, and what it was made with."""

    recipe: Recipe
    namespace: str
    documents: int
    pages: int
    blocks: int

    def keys(self, page: str) -> list[BlockKey]:
        """The keys of a page's blocks at departure, in the archive's order."""
        return [self.recipe.block_key(page, dpi, self.namespace) for dpi in dict.fromkeys(self.recipe.dpis)]

    def encode(self) -> bytes:
        """The member's content."""
        counts = {"documents": self.documents, "pages": self.pages, "blocks": self.blocks}
        head = {"format": _FORMAT, "version": _VERSION, "namespace": self.namespace, **counts}
        return _spell({**head, "recipe": json.loads(encode_recipe(self.recipe))})

    @classmethod
    def decode(cls, line: bytes, path: Path) -> Manifest:
        """Inverse of :meth:`encode`; ``NewerArchiveError``, or ``ValueError`` when it is no manifest."""
        head = _understand(line)
        version = head.get("version")
        if head.get("format") != _FORMAT or type(version) is not int or version < 1:
            raise ValueError("it does not begin as an archive does")
        if version > _VERSION:
            raise NewerArchiveError(version, _VERSION)
        try:
            recipe = decode_recipe(json.dumps(head.get("recipe")), path)
            check_namespace(head.get("namespace"))
        except (BankError, ConfigError) as error:
            raise ValueError("its recipe or namespace is damaged") from error
        counts: list[Any] = [head.get(name) for name in ("documents", "pages", "blocks")]
        sizes = (*counts, *recipe.dpis, recipe.dimension)
        if any(type(size) is not int or size < 0 for size in sizes) or min(*recipe.dpis, recipe.dimension) < 1:
            raise ValueError("it says impossible sizes")
        manifest = cls(recipe, head["namespace"], *counts)
        prompt = recipe.system_prompt
        if (prompt is not None and not isinstance(prompt, str)) or manifest.encode() != line:
            raise ValueError("its first member is damaged")
        return manifest


@dataclass(frozen=True)
class ArchivedPage:
    """A page as every document holds it; ``vector`` is float32 ``[dimension]``."""

    lines: tuple[str, ...]
    text: str
    vector: npt.NDArray[np.float32]

    def page(self, source: str, number: int) -> Page:
        """The page in a document."""
        return Page(self.lines, self.text, source, number)

    def encode(self) -> bytes:
        """The page's line."""
        embedding = base64.b64encode(np.ascontiguousarray(self.vector, dtype="<f4").tobytes()).decode("ascii")
        return _spell({"lines": list(self.lines), "text": self.text, "embedding": embedding})

    @classmethod
    def decode(cls, line: bytes, dimension: int) -> ArchivedPage:
        """Inverse of :meth:`encode`; ``ValueError`` when the line is no page with an embedding of this length."""
        values = _understand(line)
        lines, text, embedding = (values.get(name) for name in ("lines", "text", "embedding"))
        if not isinstance(lines, list) or not all(isinstance(entry, str) for entry in (*lines, text, embedding)):
            raise ValueError("it is no page")
        vector = decode_embedding(base64.b64decode(str(embedding), validate=True), dimension)
        if vector is None:
            raise ValueError(f"its embedding is not {dimension} finite numbers")
        page = cls(tuple(lines), str(text), vector)
        if page.encode() != line:
            raise ValueError("it is not spelled as a page is")
        return page


@dataclass(frozen=True)
class ArchivedDocument:
    """A document; ``pages`` are the places of its pages in the archive, in the document's order."""

    source: str
    digest: str
    metadata: Mapping[str, Any]
    pages: Sequence[int]

    def encode(self) -> bytes:
        """The document's line."""
        head = {"source": self.source, "digest": self.digest, "metadata": dict(self.metadata)}
        return _spell({**head, "pages": list(self.pages)})

    @classmethod
    def decode(cls, line: bytes) -> ArchivedDocument:
        """Inverse of :meth:`encode`; ``ValueError`` when the line is no document."""
        values = _understand(line)
        source, digest, metadata, pages = (values.get(name) for name in ("source", "digest", "metadata", "pages"))
        if not isinstance(source, str) or not isinstance(digest, str) or not isinstance(metadata, dict):
            raise ValueError("it is no document")
        if not isinstance(pages, list) or not all(type(page) is int and page >= 0 for page in pages):
            raise ValueError("its pages are no numbers")
        digest.encode("utf-8")  # UnicodeEncodeError is a ValueError
        document = cls(source, digest, metadata, pages)
        if document.encode() != line:
            raise ValueError("it is not spelled as a document is")
        return document
