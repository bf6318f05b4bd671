"""Text to pages to pictures: one layout in points, resolution only scales it."""

from __future__ import annotations

from qvpic_rag.render.characters import is_blank
from qvpic_rag.render.renderer import Renderer

__all__ = ["Renderer", "is_blank"]
