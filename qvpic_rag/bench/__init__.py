"""``qvpic bench``: what parts of this package cost, as ratios taken within one run."""

from __future__ import annotations

__all__: list[str] = []
