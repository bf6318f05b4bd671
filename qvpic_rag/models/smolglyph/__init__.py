"""smolglyph: SmolLM2-135M-Instruct behind a small vision tower, joined on the user's machine."""

from __future__ import annotations

__all__ = ["ADAPTER"]

ADAPTER = "adapter.safetensors"
"""File in a folder that holds what is shipped of it."""
