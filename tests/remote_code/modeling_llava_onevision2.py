"""A small stand-in for LLaVA-OneVision-2's remote code.

The forward pass takes what the published model's takes (``pixel_values`` of patches, ``image_grid_thw``,
``patch_positions``) and the modules that matter to a caller have the same names (``model.visual``,
``model.language_model`` = a plain Qwen3 model, ``lm_head``). The vision tower is only as large as a test needs: it
depends on every patch's position and never lets one picture see another.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoModel
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import PreTrainedModel

from .configuration_llava_onevision2 import LlavaOnevision2Config, LlavaOnevision2VisionConfig

__all__ = ["LlavaOnevision2ForConditionalGeneration", "LlavaOnevision2Model"]


class LlavaOnevision2PreTrainedModel(PreTrainedModel):
    config_class = LlavaOnevision2Config
    base_model_prefix = "model"
    input_modalities = ("image", "text")
    _supports_sdpa = True


class VisionTower(nn.Module):
    def __init__(self, config: LlavaOnevision2VisionConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.spatial_merge_size = config.spatial_merge_size
        self.heads = config.num_attention_heads
        self.embed = nn.Linear(config.num_channels * config.patch_size**2, width)
        self.place = nn.Linear(6, width)
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.merger = nn.Linear(width * config.spatial_merge_size**2, config.out_hidden_size)

    def forward(self, patches: torch.Tensor, grid_thw: torch.Tensor, patch_positions: torch.Tensor) -> torch.Tensor:
        dtype = self.embed.weight.dtype
        place = patch_positions.to(patches.device).float()
        waves = torch.cat([torch.sin(0.7 * place), torch.cos(0.7 * place)], dim=-1).to(dtype)
        hidden = self.embed(patches.to(dtype)) + self.place(waves)
        attended = [self._attend(part) for part in self.norm(hidden).split(grid_thw.prod(-1).tolist())]
        hidden = hidden + torch.cat(attended)
        return self.merger(self.norm(hidden).reshape(-1, self.merger.in_features))

    def _attend(self, hidden: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(hidden).view(len(hidden), 3, self.heads, -1).permute(1, 2, 0, 3)
        mixed = nn.functional.scaled_dot_product_attention(query[None], key[None], value[None])[0]
        return self.proj(mixed.transpose(0, 1).reshape(len(hidden), -1))


class LlavaOnevision2Model(LlavaOnevision2PreTrainedModel):
    base_model_prefix = ""

    def __init__(self, config: LlavaOnevision2Config) -> None:
        super().__init__(config)
        self.visual = VisionTower(config.vision_config)
        self.language_model = AutoModel.from_config(config.text_config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.language_model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.language_model.set_input_embeddings(value)

    def get_image_features(
        self,
        pixel_values: torch.Tensor,
        image_grid_thw: torch.Tensor,
        patch_positions: torch.Tensor | None = None,
    ) -> list[torch.Tensor]:
        if pixel_values.dim() != 2:
            raise ValueError(f"pixel_values must have the shape (patches, values), not {tuple(pixel_values.shape)}")
        if patch_positions is None or patch_positions.shape[-2] != len(pixel_values):
            raise ValueError("patch_positions must hold one (t, h, w) for each patch")
        features = self.visual(pixel_values, image_grid_thw, patch_positions.reshape(-1, 3))
        counts = image_grid_thw.prod(-1) // self.visual.spatial_merge_size**2
        return list(features.split(counts.tolist()))

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        pixel_values: torch.Tensor | None = None,
        image_grid_thw: torch.Tensor | None = None,
        patch_positions: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        if inputs_embeds is None:
            inputs_embeds = self.get_input_embeddings()(input_ids)
        if pixel_values is not None:
            features = torch.cat(self.get_image_features(pixel_values, image_grid_thw, patch_positions))
            mask = (input_ids == self.config.image_token_id).unsqueeze(-1).expand_as(inputs_embeds)
            if mask.sum() != features.numel():
                raise ValueError("Image features and image tokens do not match")
            inputs_embeds = inputs_embeds.masked_scatter(mask, features.to(inputs_embeds.dtype))
        if position_ids is None:
            # As in the published code: cache length is not looked at here.
            position_ids = torch.arange(inputs_embeds.shape[1], device=inputs_embeds.device)[None]
            position_ids = position_ids.expand(inputs_embeds.shape[0], -1)
        return self.language_model(
            inputs_embeds=inputs_embeds,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
            **kwargs,
        )


class LlavaOnevision2ForConditionalGeneration(LlavaOnevision2PreTrainedModel, GenerationMixin):
    _tied_weights_keys = {"lm_head.weight": "model.language_model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: LlavaOnevision2Config) -> None:
        super().__init__(config)
        self.model = LlavaOnevision2Model(config)
        self.lm_head = nn.Linear(config.text_config.hidden_size, config.text_config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.set_input_embeddings(value)

    @property
    def language_model(self) -> nn.Module:
        return self.model.language_model

    @property
    def visual(self) -> nn.Module:
        return self.model.visual

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        pixel_values: torch.Tensor | None = None,
        image_grid_thw: torch.Tensor | None = None,
        patch_positions: torch.Tensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            pixel_values=pixel_values,
            image_grid_thw=image_grid_thw,
            patch_positions=patch_positions,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept, :])
        return CausalLMOutputWithPast(logits=logits, past_key_values=outputs.past_key_values)

    def prepare_inputs_for_generation(self, input_ids: torch.Tensor, **kwargs: Any) -> dict[str, Any]:
        first = kwargs.get("is_first_iteration", False)
        inputs = super().prepare_inputs_for_generation(input_ids, **kwargs)
        if not first and kwargs.get("use_cache", True):
            inputs["pixel_values"] = None
        return inputs
