"""Tiny random text models: the decoder alone, with a ChatML template that has a default system prompt."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from tests.tiny.build import fill_weights, generation_config
from tests.tiny.templates import chat_template
from tests.tiny.tokenizer import build_tokenizer

__all__ = ["TEXT_FAMILIES", "build_tiny_text_model", "load_tiny_text_model"]

TEXT_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def build_tiny_text_model(
    family: str, folder: Path, *, seed: int = 0, template: str = "default", text: dict[str, Any] | None = None
) -> Path:
    """Write a tiny random text model of ``family`` to ``folder``, as ``build_tiny_model`` does.

    ``text`` replaces fields of the config.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer(family, chat_template(family, template))
    ids = tokenizer.get_vocab()
    fields: dict[str, Any] = {
        "vocab_size": 32 * math.ceil((len(tokenizer) + 1) / 32),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }
    if family == "mistral":
        fields["sliding_window"] = None
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**(fields | (text or {}))))
    fill_weights(model, seed)
    model.generation_config = generation_config(family, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def load_tiny_text_model(folder: Path, dtype: str = "float32") -> PreTrainedModel:
    """Load the model of a folder that ``build_tiny_text_model`` wrote, in evaluation mode, on the CPU."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
