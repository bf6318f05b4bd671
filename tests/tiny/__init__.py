"""Tiny random models, with pictures and without, complete local checkpoint folders built from config, offline.

``build_tiny_model`` and ``build_tiny_text_model`` write one folder; ``build_refused_model`` writes folders that the
engine must refuse.
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
from tests.tiny.text import TEXT_FAMILIES, build_tiny_text_model, load_tiny_text_model

__all__ = [
    "FAMILIES",
    "REFUSED",
    "REMOTE_FAMILIES",
    "ROPE_VARIANTS",
    "TEMPLATE_VARIANTS",
    "TEXT_FAMILIES",
    "build_refused_model",
    "build_tiny_model",
    "build_tiny_text_model",
    "load_tiny_model",
    "load_tiny_text_model",
    "page_image",
    "page_images",
]
