"""Families whose pictures are a patch grid with M-RoPE positions: GLM-V and Qwen-VL share this."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor

from qvpic_rag.models.base import VisionInputs, VisionLanguageModel

__all__ = ["GridModel"]


class GridModel(VisionLanguageModel):
    """Pictures of any size become ``t x h x w`` patches, merged ``merge_size`` squared to one visual token."""

    axes = 3

    def encode_images(self, images: Sequence[Image.Image], *, together: bool) -> VisionInputs:
        """Patches of all pictures follow one another; the grid tells them apart, so ``together`` changes nothing."""
        features = self.image_processor(images=list(images), return_tensors="pt")
        grid = features["image_grid_thw"]
        merged = int(self.image_processor.merge_size) ** 2
        return VisionInputs(
            {
                "pixel_values": features["pixel_values"].to(self.device, self.dtype),
                "image_grid_thw": grid.to(self.device),
            },
            tuple(int(n) // merged for n in grid.prod(dim=-1)),
        )

    def positions(self, token_ids: Tensor, vision: VisionInputs | None) -> Tensor:
        """From the model's own ``get_rope_index``, which keeps no state."""
        if vision is None:
            return torch.arange(token_ids.shape[1], device=token_ids.device).expand(3, token_ids.shape[0], -1)
        positions: Tensor
        positions, _ = self.base_model.get_rope_index(
            token_ids,
            mm_token_type_ids=(token_ids == self.image_token_id).int(),
            image_grid_thw=vision.tensors["image_grid_thw"],
        )
        return positions
