"""What a bank tells about its content: documents and pages as stored, statistics, and the results of upkeep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from qvpic_rag.records import Page

__all__ = ["BankStats", "GcResult", "Problem", "StoredDocument", "StoredPage"]


@dataclass(frozen=True)
class StoredDocument:
    """A document of the bank: ``digest`` is the one given when it was stored, ``pages`` its number of pages."""

    source: str
    digest: str
    pages: int
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class StoredPage:
    """A page and its id, which stays the same as long as any document holds the page and is never used again after."""

    id: int
    page: Page


@dataclass(frozen=True)
class BankStats:
    """What one namespace of a bank holds.

    Attributes
    ----------
    path, namespace : str
        Which bank.
    documents, pages : int
        A page shared by several documents counts once.
    blocks : Mapping[int, int]
        Number of stored blocks per DPI.
    block_bytes : Mapping[int, int]
        Bytes of their files per DPI.
    unlinked : int
        How many of them belong to pages that no document holds, such as texts that came with a question; ``gc``
        removes those that have not been used for its grace period.
    evicted : int
        Blocks that went to make room; a request that needs one compiles it again.
    damaged : int
        Blocks that were found damaged and set aside; compiled again likewise.
    limit : int | None
        Bytes that the namespace's block files may have: its quota, or else what the quotas leave of the bank's limit,
        which it shares with the other namespaces that have none; None: no limit.
    counters : Mapping[str, int]
        What requests and writers of all processes did, such as ``hits disk``, ``misses``, ``evictions``; a running
        process adds its own once a minute and when it closes the bank.
    generation : int
        Grows with every change of the pages.
    recipe : Mapping[str, Any]
        The main fields of what the bank was made with.
    """

    path: str
    namespace: str
    documents: int
    pages: int
    blocks: Mapping[int, int]
    block_bytes: Mapping[int, int]
    unlinked: int
    evicted: int
    damaged: int
    limit: int | None
    counters: Mapping[str, int]
    generation: int
    recipe: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able fields; DPIs are strings there, as JSON wants keys to be."""
        values = asdict(self)
        for name in ("blocks", "block_bytes"):
            values[name] = {str(dpi): number for dpi, number in values[name].items()}
        return values


@dataclass(frozen=True)
class Problem:
    """One thing that is not as it should be.

    Attributes
    ----------
    kind : str
        ``missing``, ``corrupt``, ``quarantined``, ``mismatch`` or ``unreadable`` (a block), ``page``, ``orphan`` or
        ``temporary`` (a leftover file), ``unknown`` (a file that is none of the bank's) or ``database``.
    subject : str
        Block digest, page id, path inside the bank, or "".
    message : str
        One sentence.
    """

    kind: str
    subject: str
    message: str

    def __str__(self) -> str:
        return self.message

    def to_dict(self) -> dict[str, str]:
        """The fields by name."""
        return asdict(self)


@dataclass(frozen=True)
class GcResult:
    """What garbage collection removed, or would remove when ``dry_run``.

    Attributes
    ----------
    blocks : int
        Blocks of pages that no document holds.
    pages : int
        Pages that no document holds.
    orphans : int
        Block files without a row (their writer died before it could acknowledge them), and files of signals whose
        page is gone.
    temporary : int
        Half-written files of writers that died.
    bytes : int
        Bytes of all those files.
    dry_run : bool
        Nothing was changed.
    """

    blocks: int
    pages: int
    orphans: int
    temporary: int
    bytes: int
    dry_run: bool

    def __str__(self) -> str:
        return (
            f"{self.blocks} block(s) and {self.pages} page(s) that no document holds, {self.orphans} orphaned and "
            f"{self.temporary} half-written file(s); {self.bytes:,} bytes."
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)
