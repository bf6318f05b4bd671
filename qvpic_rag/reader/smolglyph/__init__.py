"""How the reader with a real language model inside is made: SmolLM2-135M-Instruct behind a small vision tower."""

from __future__ import annotations

__all__: list[str] = []
