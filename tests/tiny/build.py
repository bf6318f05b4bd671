"""Write complete checkpoint folders: config, weights, generation config, tokenizer, chat template, image processor."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    GenerationConfig,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3_5Config,
)

from tests.tiny.configs import (
    family_config,
    native_config,
    preprocessor_config,
    processor_config,
    write_json,
)
from tests.tiny.templates import chat_template
from tests.tiny.tokenizer import build_tokenizer, printable_ids

__all__ = [
    "FAMILIES",
    "REFUSED",
    "REMOTE_FAMILIES",
    "ROPE_VARIANTS",
    "build_refused_model",
    "build_tiny_model",
    "fill_weights",
    "generation_config",
    "load_tiny_model",
]

FAMILIES = ("glm4v", "glm46v", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava_onevision")
"""Families in transformers itself."""
REMOTE_FAMILIES = ("llava_onevision2",)
"""Families whose code comes with the checkpoint (``trust_remote_code=True``)."""
ROPE_VARIANTS = ("default", "linear", "yarn", "dynamic")
REFUSED = ("sliding_window", "qwen3_5", "llama", "unknown")
"""Kinds of folder that ``build_refused_model`` writes."""

_REMOTE_CODE = Path(__file__).parent.parent / "remote_code"
_STOP = {
    "glm": ("<|endoftext|>", "<|user|>", "<|observation|>"),
    "other": ("<|im_end|>", "<|endoftext|>"),
}


def build_tiny_model(
    family: str,
    folder: Path,
    *,
    dtype: str = "float32",
    seed: int = 0,
    template: str = "default",
    rope: str = "default",
    tied: bool = False,
    text: dict[str, Any] | None = None,
    vision: dict[str, Any] | None = None,
) -> Path:
    """Write a tiny random model of ``family`` to ``folder``.

    Parameters
    ----------
    family : str
        One of ``FAMILIES`` or ``REMOTE_FAMILIES``.
    folder : Path
        Created if missing.
    dtype : str
        Name of a torch dtype; the stored weights are multiples of bfloat16 in every case, so a folder in float32 and
        the same one in bfloat16 hold equal values.
    seed : int
        Weights depend on it and on the shapes only.
    template : str
        One of ``TEMPLATE_VARIANTS``.
    rope : str
        One of ``ROPE_VARIANTS``.
    tied : bool
        Whether input and output embeddings share their weights.
    text, vision : dict[str, Any] | None
        Fields of the text or vision config to replace.

    Returns
    -------
    Path
        ``folder``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer(family, chat_template(family, template))
    ids = tokenizer.get_vocab()
    # Published models have more embedding rows than their tokenizers have entries.
    vocabulary = 32 * math.ceil((len(tokenizer) + 1) / 32)
    fields = family_config(family, ids, vocabulary, rope=rope, tied=tied, text=text, vision=vision)
    config = _remote_config(folder, family, fields) if family in REMOTE_FAMILIES else native_config(family, fields)
    model = AutoModelForImageTextToText.from_config(config, trust_remote_code=family in REMOTE_FAMILIES)
    fill_weights(model, seed)
    model.generation_config = generation_config(family, tokenizer)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    if family in REMOTE_FAMILIES:
        _remote_config(folder, family, fields | {"dtype": dtype, "architectures": [type(model).__name__]})
    _write_processing(folder, family, tokenizer)
    return folder


def load_tiny_model(folder: Path, dtype: str = "float32") -> PreTrainedModel:
    """Load the model of a folder that ``build_tiny_model`` wrote, in evaluation mode, on the CPU."""
    model = AutoModelForImageTextToText.from_pretrained(
        folder, dtype=getattr(torch, dtype), trust_remote_code=_is_remote(folder)
    )
    return model.eval()


def build_refused_model(kind: str, folder: Path) -> Path:
    """Write a folder that the engine must refuse: one of ``REFUSED``.

    ``sliding_window`` is a complete Qwen2.5-VL whose last text layer attends within a window; the others have a
    config, tokenizer and image processor but no weights, since their config alone says no.
    """
    if kind == "sliding_window":
        window = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}
        return build_tiny_model("qwen2_5_vl", folder, text=window)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer("qwen3_vl", chat_template("qwen3_vl"))
    fields = family_config("qwen3_vl", tokenizer.get_vocab(), 320)
    if kind == "qwen3_5":
        sizes = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "num_hidden_layers": 4}
        skip = ("model_type", "rope_parameters")
        text = {name: value for name, value in fields["text_config"].items() if name not in skip} | sizes
        vision = {n: v for n, v in fields["vision_config"].items() if n != "deepstack_visual_indexes"}
        Qwen3_5Config(**(fields | {"text_config": text, "vision_config": vision})).save_pretrained(folder)
    elif kind == "llama":
        LlamaConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=320).save_pretrained(folder)
    elif kind == "unknown":
        write_json(folder / "config.json", fields | {"model_type": "brand_new_vl", "architectures": ["BrandNewVL"]})
    else:
        raise ValueError(f"kind must be one of {REFUSED}, not {kind!r}")
    _write_processing(folder, "qwen3_vl", tokenizer)
    return folder


def _is_remote(folder: Path) -> bool:
    return '"auto_map"' in (folder / "config.json").read_text(encoding="utf-8")


def _remote_config(folder: Path, family: str, fields: dict[str, Any]) -> Any:
    names = {
        "AutoConfig": "configuration_llava_onevision2.LlavaOnevision2Config",
        "AutoModelForCausalLM": "modeling_llava_onevision2.LlavaOnevision2ForConditionalGeneration",
        "AutoModelForImageTextToText": "modeling_llava_onevision2.LlavaOnevision2ForConditionalGeneration",
    }
    for source in sorted(_REMOTE_CODE.glob("*_llava_onevision2.py")):
        shutil.copy(source, folder / source.name)
    write_json(folder / "config.json", fields | {"model_type": family, "auto_map": names})
    return AutoConfig.from_pretrained(folder, trust_remote_code=True)


def generation_config(family: str, tokenizer: PreTrainedTokenizerFast) -> GenerationConfig:
    """What the published checkpoints of ``family`` come with."""
    stop = _STOP["glm" if family.startswith("glm") else "other"]
    # Like the published ones: sampling by default, which greedy callers have to switch off.
    return GenerationConfig(
        eos_token_id=[tokenizer.convert_tokens_to_ids(token) for token in stop],
        pad_token_id=tokenizer.pad_token_id,
        do_sample=True,
        temperature=0.8,
        top_p=0.6,
        top_k=2,
    )


def _write_processing(folder: Path, family: str, tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.save_pretrained(folder)
    write_json(folder / "preprocessor_config.json", preprocessor_config(family))
    processor = processor_config(family)
    if processor is not None:
        write_json(folder / "processor_config.json", processor)


@torch.no_grad()
def fill_weights(model: PreTrainedModel, seed: int) -> None:
    """Random weights under which answers depend clearly on positions and pictures.

    The usual 0.02 leaves attention uniform, so that a wrong position hides below any tolerance. Output rows are zero
    except for printable tokens: greedy text is then readable and does not end early.
    """
    generator = torch.Generator().manual_seed(seed)
    tied = {id(model.get_input_embeddings().weight)}
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        value = _weight(name, parameter, noise)
        if name.startswith("lm_head") and id(parameter) not in tied:
            value = _only_rows(value, printable_ids())
        parameter.copy_(value.to(torch.bfloat16))
    for module in model.modules():
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            module.weight[module.padding_idx].zero_()


def _weight(name: str, parameter: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    if name.endswith("image_newline") or "embed_tokens" in name:
        return noise
    if parameter.ndim < 2:
        return 0.1 * noise if name.endswith("bias") else 1 + 0.1 * noise
    if "position_embedding" in name or "pos_embed" in name:
        return 0.3 * noise
    scale = 1 / math.sqrt(parameter.numel() / parameter.shape[0])
    if name.endswith(("q_proj.weight", "k_proj.weight")) and (
        "language_model" in name or name.startswith("model.layers")
    ):
        return 1.5 * scale * noise
    return (2.0 if name.startswith("lm_head") else 1.0) * scale * noise


def _only_rows(value: torch.Tensor, rows: Iterable[int]) -> torch.Tensor:
    kept = torch.zeros_like(value)
    index = list(rows)
    kept[index] = value[index]
    return kept
