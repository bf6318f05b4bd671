"""Deterministic pictures that look like lines of text."""

from __future__ import annotations

import numpy as np
from PIL import Image

__all__ = ["HIGH", "LOW", "page_image", "page_images"]

LOW = (56, 40)
"""Width and height in pixels of a low-resolution page: 35 visual tokens at 8 px per token."""
HIGH = (80, 56)
"""Width and height in pixels of a high-resolution page: 70 visual tokens at 8 px per token."""


def page_image(seed: int, size: tuple[int, int] = LOW) -> Image.Image:
    """White RGB picture of ``size`` (width, height) with dark strokes on lines; depends only on its arguments."""
    width, height = size
    rng = np.random.default_rng([seed, width, height])
    pixels = np.full((height, width, 3), 255, dtype=np.uint8)
    for top in range(2, height - 6, 8):
        strokes = rng.random((6, width - 4)) < 0.45
        ink = rng.integers(0, 120, size=(6, width - 4, 3), dtype=np.uint8)
        pixels[top : top + 6, 2 : width - 2][strokes] = ink[strokes]
    return Image.fromarray(pixels)


def page_images(count: int, sizes: tuple[tuple[int, int], ...] = (LOW, HIGH), seed: int = 0) -> list[Image.Image]:
    """``count`` different pictures, their sizes cycling through ``sizes``."""
    return [page_image(seed + number, sizes[number % len(sizes)]) for number in range(count)]
