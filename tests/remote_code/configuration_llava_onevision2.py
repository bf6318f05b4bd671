"""Configuration of a small stand-in for LLaVA-OneVision-2's remote code: same model type, field names and layout."""

from __future__ import annotations

from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig
from transformers.configuration_utils import PreTrainedConfig

__all__ = ["LlavaOnevision2Config", "LlavaOnevision2VisionConfig"]


class LlavaOnevision2VisionConfig(PreTrainedConfig):
    """Vision tower: patches in merge-block order, positions given per patch."""

    model_type = "onevision_encoder"
    base_config_key = "vision_config"

    hidden_size: int = 32
    num_attention_heads: int = 2
    num_channels: int = 3
    patch_size: int = 4
    spatial_merge_size: int = 2
    out_hidden_size: int = 64


class LlavaOnevision2Config(PreTrainedConfig):
    """A Qwen3 text model with 1-D positions behind a vision tower."""

    model_type = "llava_onevision2"
    sub_configs = {"vision_config": LlavaOnevision2VisionConfig, "text_config": AutoConfig}  # noqa: RUF012

    text_config: Any = None
    vision_config: Any = None
    image_token_id: int = 151655
    video_token_id: int = 151656
    vision_start_token_id: int = 151652
    vision_end_token_id: int = 151653
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        if not isinstance(self.vision_config, PreTrainedConfig):
            self.vision_config = LlavaOnevision2VisionConfig(**(self.vision_config or {}))
        if not isinstance(self.text_config, PreTrainedConfig):
            fields = dict(self.text_config or {})
            self.text_config = CONFIG_MAPPING[fields.pop("model_type", "qwen3")](**fields)
        super().__post_init__(**kwargs)
