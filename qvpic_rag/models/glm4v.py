"""GLM-4.1V and Glyph (``glm4v``), GLM-4.6V-Flash (``glm46v``).

Rotary pairs are interleaved and half of each head is rotated (``partial_rotary_factor`` 0.5). The prefix of GLM-4.1V's
chat template is ``[gMASK]<sop><|user|>`` and a newline: four tokens.
"""

from __future__ import annotations

from qvpic_rag.models.grid import MRopeModel

__all__ = ["Glm4vModel"]


class Glm4vModel(MRopeModel):
    """GLM-4.1V's architecture."""

    model_types = ("glm4v", "glm46v")
    interleaved = True
