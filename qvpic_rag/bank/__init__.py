"""Content-addressed store of compiled pages: one safetensors file per block, SQLite for everything else."""

from __future__ import annotations

from qvpic_rag.bank.archive import ArchiveReport
from qvpic_rag.bank.archive_import import import_archive
from qvpic_rag.bank.archive_write import export_bank
from qvpic_rag.bank.loader import BlockLoader
from qvpic_rag.bank.records import BankStats, GcResult, Problem, StoredDocument, StoredPage
from qvpic_rag.bank.store import Bank

__all__ = [
    "ArchiveReport",
    "Bank",
    "BankStats",
    "BlockLoader",
    "GcResult",
    "Problem",
    "StoredDocument",
    "StoredPage",
    "export_bank",
    "import_archive",
]
