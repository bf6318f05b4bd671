"""Content-addressed store of compiled pages: one safetensors file per block, SQLite for everything else."""

from __future__ import annotations

from qvpic_rag.bank.loader import BlockLoader
from qvpic_rag.bank.records import BankStats, GcResult, Problem, StoredDocument, StoredPage
from qvpic_rag.bank.store import Bank

__all__ = ["Bank", "BankStats", "BlockLoader", "GcResult", "Problem", "StoredDocument", "StoredPage"]
