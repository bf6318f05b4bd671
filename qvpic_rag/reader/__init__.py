"""How a small reader is made: generated documents, training, evaluation, export (``qvpic reader``)."""

from __future__ import annotations

__all__: list[str] = []
