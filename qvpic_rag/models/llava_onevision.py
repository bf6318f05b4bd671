"""LLaVA-OneVision (``llava_onevision``): a SigLIP tower over anyres crops, a Qwen2 decoder with plain positions.

A picture alone in its prompt is cut into crops (many tokens); pictures that share a prompt are not. A page is compiled
alone, so it keeps its crops when it is linked with others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor
from transformers.models.llava_onevision.modeling_llava_onevision import image_size_to_num_patches

from qvpic_rag.models.base import VisionInputs, VisionLanguageModel

__all__ = ["LlavaOnevisionModel"]


class LlavaOnevisionModel(VisionLanguageModel):
    """LLaVA-OneVision as transformers ships it."""

    model_types = ("llava_onevision",)
    counts_pictures = True  # one picture alone is seen in crops as well

    def encode_images(self, images: Sequence[Image.Image], *, together: bool) -> VisionInputs:
        """Crops ``[pictures, crops, channels, height, width]``, original sizes, and who shares a sequence."""
        features = self.image_processor(images=list(images), return_tensors="pt")
        shared = together and len(images) > 1
        counts = [len(images)] if shared else [1] * len(images)
        sizes = features["image_sizes"]
        return VisionInputs(
            {
                "pixel_values": features["pixel_values"].to(self.device, self.dtype),
                "image_sizes": sizes.to(self.device),
                "batch_num_images": torch.tensor(counts, device=self.device),
            },
            self._token_counts(sizes, crops=not shared),
        )

    def _token_counts(self, sizes: Tensor, *, crops: bool) -> tuple[int, ...]:
        """Visual tokens per picture, by running the model's own packing on one-channel stand-ins of its features."""
        config = self.model.config
        side = config.vision_config.image_size // config.vision_config.patch_size
        stand_ins = [
            torch.zeros(
                image_size_to_num_patches(size, config.image_grid_pinpoints, config.vision_config.image_size)
                if crops
                else 1,
                side * side,
                1,
            )
            for size in sizes
        ]
        _, counts = self.base_model.pack_image_features(
            stand_ins, sizes, image_newline=torch.zeros(1), vision_aspect_ratio=config.vision_aspect_ratio
        )
        return tuple(int(n) for n in counts)
