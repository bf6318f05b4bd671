"""LLaVA-OneVision-2 (``llava_onevision2``): a patch-grid encoder over a Qwen3 decoder with plain positions.

Its modelling code comes with the checkpoint (remote code), so it is loaded only with ``trust_remote_code=True``. The
encoder wants each patch's position, which the remote processor would compute; that processor needs video packages, so
the positions are computed here from the grid.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor

from qvpic_rag.models.base import VisionInputs
from qvpic_rag.models.grid import GridModel

__all__ = ["LlavaOnevision2Model"]


def _patch_positions(grid: Tensor, merge: int) -> Tensor:
    """``(t, h, w)`` of every patch, int64 ``[patches, 3]``, in the order of merged blocks that the encoder expects."""
    parts = []
    for t, h, w in grid.tolist():
        rows = torch.cartesian_prod(torch.arange(t), torch.arange(h), torch.arange(w))
        blocks = torch.arange(t * h * w).view(t, h // merge, merge, w // merge, merge).permute(0, 1, 3, 2, 4)
        parts.append(rows[blocks.reshape(-1)])
    return torch.cat(parts)


class LlavaOnevision2Model(GridModel):
    """LLaVA-OneVision-2's remote code behind the common interface."""

    model_types = ("llava_onevision2",)

    def encode_images(self, images: Sequence[Image.Image], *, together: bool) -> VisionInputs:
        """The patches with the position of each."""
        vision = super().encode_images(images, together=together)
        positions = _patch_positions(vision.tensors["image_grid_thw"], int(self.image_processor.merge_size))
        return VisionInputs({**vision.tensors, "patch_positions": positions.to(self.device)}, vision.tokens)
