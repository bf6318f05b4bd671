"""Tiny random vision-language models, complete local checkpoint folders built from config, offline.

``build_tiny_model`` writes one folder; ``build_refused_model`` writes folders that the engine must refuse.
"""

from __future__ import annotations

from tests.tiny.build import (
    FAMILIES,
    REFUSED,
    REMOTE_FAMILIES,
    ROPE_VARIANTS,
    build_refused_model,
    build_tiny_model,
    load_tiny_model,
)
from tests.tiny.images import page_image, page_images
from tests.tiny.templates import TEMPLATE_VARIANTS

__all__ = [
    "FAMILIES",
    "REFUSED",
    "REMOTE_FAMILIES",
    "ROPE_VARIANTS",
    "TEMPLATE_VARIANTS",
    "build_refused_model",
    "build_tiny_model",
    "load_tiny_model",
    "page_image",
    "page_images",
]
