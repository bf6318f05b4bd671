"""How the bundled readers take pictures: patch sizes, and their image processor's settings."""

from __future__ import annotations

from typing import Any

__all__ = ["MERGE", "PATCH", "WHITE", "image_processor"]

PATCH, MERGE = 8, 2
"""Pixels that a patch is wide and high; patches that a visual token is."""
WHITE: dict[str, float] = {"mean": 1.0, "std": -0.5}
"""Pixel p becomes ``(p / 255 - mean) / std``: paper 0, ink 2."""


def image_processor(kind: str) -> dict[str, Any]:
    """Content of ``preprocessor_config.json`` for a class of transformers: pictures as they are, paper 0 and ink 2."""
    return {
        "image_processor_type": kind,
        "do_resize": False,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [WHITE["mean"]] * 3,
        "image_std": [WHITE["std"]] * 3,
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "merge_size": MERGE,
        "do_convert_rgb": True,
        "size": {"shortest_edge": (PATCH * MERGE) ** 2, "longest_edge": 1 << 24},
    }
