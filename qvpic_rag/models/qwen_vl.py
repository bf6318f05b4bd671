"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL.

Rotary pairs are halves. Qwen3-VL normalises keys before rotating them, interleaves its M-RoPE sections, and adds vision
features at several decoder layers (deepstack), so a page must be compiled through the whole model.
"""

from __future__ import annotations

from qvpic_rag.models.grid import MRopeModel

__all__ = ["QwenVLModel"]


class QwenVLModel(MRopeModel):
    """The dense Qwen vision-language models."""

    model_types = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
