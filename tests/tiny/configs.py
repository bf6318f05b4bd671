"""Small configurations with the real config classes of each family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

__all__ = [
    "MERGE",
    "PATCH",
    "family_config",
    "native_config",
    "preprocessor_config",
    "processor_config",
    "rope_parameters",
    "write_json",
]

PATCH, MERGE = 4, 2
"""Patch side in pixels and patches per merged side: one visual token shows 8 x 8 px (grid families)."""

_HIDDEN = 64
_SECTIONS = {"glm": [2, 2, 2], "qwen2": [4, 6, 6], "qwen3_vl": [6, 5, 5]}
_LLAVA_SIDE, _LLAVA_PATCH = 16, 8
_PINPOINTS = [[h, w] for h in (16, 32, 48, 64) for w in (16, 32, 48, 64, 80) if h * w > 256]


def rope_parameters(family: str, rope: str = "default") -> dict[str, Any]:
    """Rotary parameters; base 100, so that every axis turns visibly within a few dozen positions."""
    parameters: dict[str, Any] = {"rope_type": rope, "rope_theta": 100.0}
    if rope in ("linear", "yarn", "dynamic"):
        parameters["factor"] = 4.0
    if rope == "yarn":
        parameters["original_max_position_embeddings"] = 32
    if family in ("glm4v", "glm46v"):
        parameters |= {"mrope_section": _SECTIONS["glm"], "partial_rotary_factor": 0.5}
    elif family in ("qwen2_vl", "qwen2_5_vl"):
        parameters |= {"mrope_section": _SECTIONS["qwen2"]}
    elif family == "qwen3_vl":
        parameters |= {"mrope_section": _SECTIONS["qwen3_vl"], "mrope_interleaved": True}
    return parameters


def _text(family: str, vocabulary: int, rope: str, ids: dict[str, int]) -> dict[str, Any]:
    # Dynamic scaling starts beyond the trained length, so that variant gets a short one.
    text: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": _HIDDEN,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": {"dynamic": 16, "yarn": 128}.get(rope, 4096),
        "rope_parameters": rope_parameters(family, rope),
        "bos_token_id": None,
        "eos_token_id": ids["<|endoftext|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }
    if family in ("glm4v", "glm46v"):
        # head_dim is hidden_size / heads here: 24, of which 12 turn.
        return text | {"hidden_size": 96, "model_type": "glm4v_text"}
    if family in ("qwen2_vl", "qwen2_5_vl"):
        # head_dim is hidden_size / heads here too; 32 gives sections like the real [16, 24, 24].
        return text | {"hidden_size": 128, "intermediate_size": 64, "model_type": f"{family}_text"}
    if family == "qwen3_vl":
        return text | {"num_hidden_layers": 3, "head_dim": 32, "model_type": "qwen3_vl_text"}
    if family == "llava_onevision":
        return text | {"model_type": "qwen2"}
    return text | {"head_dim": 24, "model_type": "qwen3"}


def _vision(family: str, hidden: int) -> dict[str, Any]:
    grid: dict[str, Any] = {
        "depth": 3,
        "hidden_size": 32,
        "num_heads": 2,
        "intermediate_size": 48,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
        "out_hidden_size": hidden,
    }
    if family in ("glm4v", "glm46v"):
        return grid | {"image_size": 40, "depth": 2, "model_type": "glm4v_vision"}
    if family == "qwen2_vl":
        drop = ("out_hidden_size", "intermediate_size")
        kept = {name: value for name, value in grid.items() if name not in drop}
        return kept | {"embed_dim": 32, "hidden_size": hidden, "mlp_ratio": 2, "depth": 2}
    if family == "qwen2_5_vl":
        # Windows of 2 x 2 merged tokens; only the last layer sees the whole picture.
        return grid | {"window_size": 16, "fullatt_block_indexes": [2]}
    if family == "qwen3_vl":
        return grid | {"num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1, 2]}
    if family == "llava_onevision":
        return {
            "model_type": "siglip_vision_model",
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "image_size": _LLAVA_SIDE,
            "patch_size": _LLAVA_PATCH,
            "vision_use_head": False,
        }
    return {
        "hidden_size": 32,
        "num_attention_heads": 2,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "out_hidden_size": hidden,
    }


def _token_fields(family: str, ids: dict[str, int]) -> dict[str, int]:
    if family in ("glm4v", "glm46v"):
        return {
            "image_token_id": ids["<|image|>"],
            "video_token_id": ids["<|video|>"],
            "image_start_token_id": ids["<|begin_of_image|>"],
            "image_end_token_id": ids["<|end_of_image|>"],
            "video_start_token_id": ids["<|begin_of_video|>"],
            "video_end_token_id": ids["<|end_of_video|>"],
        }
    if family == "llava_onevision":
        return {"image_token_index": ids["<image>"], "video_token_index": ids["<video>"]}
    return {
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
    }


def family_config(
    family: str,
    ids: dict[str, int],
    vocabulary: int,
    *,
    rope: str = "default",
    tied: bool = False,
    text: dict[str, Any] | None = None,
    vision: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Keyword arguments of the family's config class; ``text`` and ``vision`` replace single fields of the parts."""
    text_fields = _text(family, vocabulary, rope, ids) | (text or {})
    vision_fields = _vision(family, text_fields["hidden_size"]) | (vision or {})
    fields: dict[str, Any] = _token_fields(family, ids)
    fields |= {"text_config": text_fields, "vision_config": vision_fields, "tie_word_embeddings": tied}
    if family == "llava_onevision":
        fields |= {
            "image_grid_pinpoints": _PINPOINTS,
            "vision_aspect_ratio": "anyres_max_16",
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        }
    return fields


def native_config(family: str, fields: dict[str, Any]) -> PreTrainedConfig:
    """The config object of a family that transformers itself knows."""
    return CONFIG_MAPPING[family](**fields)


def preprocessor_config(family: str) -> dict[str, Any]:
    """Content of ``preprocessor_config.json``."""
    if family == "llava_onevision":
        return {
            "image_processor_type": "LlavaOnevisionImageProcessor",
            "size": {"height": _LLAVA_SIDE, "width": _LLAVA_SIDE},
            "image_grid_pinpoints": _PINPOINTS,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "do_pad": True,
        }
    kind = {"glm4v": "Glm4vImageProcessor", "glm46v": "Glm46VImageProcessor"}.get(family, "Qwen2VLImageProcessor")
    return {
        "image_processor_type": kind,
        "patch_size": PATCH,
        "merge_size": MERGE,
        "temporal_patch_size": 1 if family == "llava_onevision2" else 2,
        "size": {"shortest_edge": 16 * 16, "longest_edge": 512 * 512},
    }


def processor_config(family: str) -> dict[str, Any] | None:
    """Content of ``processor_config.json`` where the published checkpoints keep something there that matters."""
    if family != "llava_onevision":
        return None
    return {
        "processor_class": "LlavaOnevisionProcessor",
        "image_token": "<image>",
        "video_token": "<video>",
        "num_image_tokens": (_LLAVA_SIDE // _LLAVA_PATCH) ** 2,
        "vision_aspect_ratio": "anyres_max_16",
        "vision_feature_select_strategy": "full",
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write ``content`` as indented JSON."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
