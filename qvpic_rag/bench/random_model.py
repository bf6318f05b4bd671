"""A model of a published shape with random weights, behind the interface of a loaded one.

How long a forward pass takes does not depend on the weights' values. Tokenizer and chat template are small ones in the
family's layout: a token is a byte, special tokens have their names but low ids.
"""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import AutoImageProcessor, AutoModelForImageTextToText, GenerationConfig, PreTrainedTokenizerFast
from transformers.initialization import no_init_weights

from qvpic_rag.bench.geometry import Geometry
from qvpic_rag.errors import ConfigError
from qvpic_rag.models import VisionLanguageModel
from qvpic_rag.models.base import Checkpoint
from qvpic_rag.models.device import default_dtype, torch_dtype
from qvpic_rag.models.fingerprint import config_digest
from qvpic_rag.models.glm4v import Glm4vModel
from qvpic_rag.models.qwen_vl import QwenVLModel

__all__ = ["build_model", "empty_model", "image_processor", "token_ids"]

_CONTENT = """\
{%- macro content(turn) -%}
{%- if turn.content is string -%}{{ turn.content }}
{%- else -%}
{%- for part in turn.content -%}{%- if part.type == 'image' -%}{{ PICTURE }}{%- else -%}{{ part.text }}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
"""
_GLM = """\
{{- '[gMASK]<sop>' -}}
{%- for turn in messages -%}{{ '<|' + turn.role + '|>\\n' }}{{ content(turn) }}{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>\\n' }}{%- endif -%}
"""
_QWEN = """\
{%- if SYSTEM and messages[0].role != 'system' -%}{{ '<|im_start|>system\\n' + SYSTEM + '<|im_end|>\\n' }}{%- endif -%}
{%- for turn in messages -%}{{ '<|im_start|>' + turn.role + '\\n' }}{{ content(turn) }}{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""
_SYSTEM = {"qwen2_5_vl": "You are a helpful assistant."}
# Fields of the configuration -> special tokens, in the order in which a picture needs them first.
_GLM_TOKENS = {
    "image_start_token_id": "<|begin_of_image|>",
    "image_token_id": "<|image|>",
    "image_end_token_id": "<|end_of_image|>",
    "video_start_token_id": "<|begin_of_video|>",
    "video_token_id": "<|video|>",
    "video_end_token_id": "<|end_of_video|>",
}
_QWEN_TOKENS = {
    "vision_start_token_id": "<|vision_start|>",
    "image_token_id": "<|image_pad|>",
    "vision_end_token_id": "<|vision_end|>",
    "video_token_id": "<|video_pad|>",
}
_TURNS = {
    "glm": ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"],
    "qwen": ["<|im_start|>", "<|im_end|>"],
}
_END = "<|endoftext|>"


def _is_glm(geometry: Geometry) -> bool:
    return geometry.model_type == "glm4v"


def _tokenizer(geometry: Geometry) -> tuple[PreTrainedTokenizerFast, dict[str, int]]:
    """The tokenizer, and the configuration's fields that name its special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: number for number, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    pictures = _GLM_TOKENS if _is_glm(geometry) else _QWEN_TOKENS
    special = [_END, *_TURNS["glm" if _is_glm(geometry) else "qwen"], *pictures.values()]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=_END, pad_token=_END, clean_up_tokenization_spaces=False
    )
    vocabulary = tokenizer.get_vocab()
    return fast, {field: vocabulary[token] for field, token in pictures.items()}


def _template(geometry: Geometry) -> str:
    tokens = list((_GLM_TOKENS if _is_glm(geometry) else _QWEN_TOKENS).values())[:3]
    system = _SYSTEM.get(geometry.model_type, "")
    body = _CONTENT + (_GLM if _is_glm(geometry) else _QWEN)
    return body.replace("PICTURE", repr("".join(tokens))).replace("SYSTEM", repr(system))


def token_ids(geometry: Geometry) -> dict[str, int]:
    """Fields of the configuration that name special tokens -> their ids."""
    return _tokenizer(geometry)[1]


def image_processor(geometry: Geometry) -> Any:
    """The family's image processor with the published settings, in the variant that ``load_model`` would choose."""
    least, greatest = geometry.pixels
    settings: dict[str, Any] = {
        "image_processor_type": "Glm4vImageProcessor" if _is_glm(geometry) else "Qwen2VLImageProcessor",
        "patch_size": geometry.vision.get("patch_size", 16 if geometry.model_type == "qwen3_vl" else 14),
        "merge_size": 2,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": least, "longest_edge": greatest},
    }
    if geometry.centred:
        settings |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    with tempfile.TemporaryDirectory(prefix="qvpic-bench-") as folder:
        (Path(folder) / "preprocessor_config.json").write_text(json.dumps(settings), encoding="utf-8")
        return AutoImageProcessor.from_pretrained(folder)


def empty_model(config: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """A model in evaluation mode whose memory is reserved on ``device`` (``meta`` as well) and not written."""
    with torch.device(device), no_init_weights():
        model = AutoModelForImageTextToText.from_config(config, dtype=dtype)
    model.tie_weights()
    return model.eval()


@torch.no_grad()
def _fill(model: nn.Module, device: torch.device) -> None:
    """Gains 1, biases 0, and matrices that keep a random vector's size, so that every activation is finite."""
    generator = torch.Generator(device).manual_seed(0)
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
        else:
            inputs = parameter.numel() // parameter.shape[0]
            parameter.normal_(0.0, 1 / math.sqrt(inputs), generator=generator)


def _check_room(config: Any, device: torch.device, dtype: torch.dtype) -> None:
    """Refuse what would swap for hours or be killed: weights larger than the memory that is free."""
    parameters = sum(each.numel() for each in empty_model(config, torch.device("meta"), dtype).parameters())
    needed, free = parameters * dtype.itemsize, _free(device)
    if free is not None and needed > free:
        raise ConfigError(
            f"The weights need {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB of memory are free on {device}; leave out "
            "layers with a smaller scale, or use dtype='bfloat16'."
        )


def _free(device: torch.device) -> int | None:
    """Bytes; None where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:  # not Linux
        return None
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return free[0] if free else None


def build_model(
    geometry: Geometry, *, name: str, scale: float, device: torch.device, dtype: str | None
) -> VisionLanguageModel:
    """Build a model in place on its device; nothing is downloaded.

    ``dtype`` is ``bfloat16``, ``float16`` or ``float32``; None chooses as ``load_model`` does.

    Raises
    ------
    ConfigError
        The scale is out of range, the dtype unknown, or the weights alone do not fit the memory.
    """
    kind = torch_dtype(dtype or default_dtype(device))
    tokenizer, ids = _tokenizer(geometry)
    config = geometry.config(scale, ids)
    _check_room(config, device, kind)
    model = empty_model(config, device, kind)
    _fill(model, device)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=False
    )
    checkpoint = Checkpoint(
        model=model,
        tokenizer=tokenizer,
        image_processor=image_processor(geometry),
        template=_template(geometry),
        name=f"{name}, random weights",
        revision="",
        fingerprint=config_digest(config.to_dict()),
    )
    return (Glm4vModel if _is_glm(geometry) else QwenVLModel)(checkpoint)
