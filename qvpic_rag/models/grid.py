"""Families whose pictures are a grid of patches, and those of them with M-RoPE positions (GLM-V and Qwen-VL)."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image
from torch import Tensor

from qvpic_rag.models.base import VisionInputs, VisionLanguageModel

__all__ = ["GridModel", "MRopeModel"]


class GridModel(VisionLanguageModel):
    """Pictures of any size become ``t x h x w`` patches, merged ``merge_size`` squared to one visual token."""

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


class MRopeModel(GridModel):
    """Visual tokens are placed on three axes: time, row and column of the merged grid."""

    axes = 3

    def positions(self, token_ids: Tensor, vision: VisionInputs | None) -> Tensor:
        """From the model's own ``get_rope_index``, which keeps no state; text alone is counted."""
        if vision is None:
            return super().positions(token_ids, vision)
        positions: Tensor
        positions, _ = self.base_model.get_rope_index(
            token_ids,
            mm_token_type_ids=(token_ids == self.image_token_id).int(),
            image_grid_thw=vision.tensors["image_grid_thw"],
        )
        return positions
