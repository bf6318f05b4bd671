"""Tiny random embedding models, saved as their kinds are published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2Model,
    XLMRobertaConfig,
    XLMRobertaModel,
)

__all__ = ["TEXTS", "WORDS", "as_pickle", "save_bge", "save_model", "states", "unit", "write_json"]

WORDS = [f"w{number}" for number in range(40)]
TEXTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10 w11", "unknown w3", "w1 w2 w3", ""]
SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "initializer_range": 0.3,
}


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def save_tokenizer(folder: Path) -> None:
    vocabulary = {word: number for number, word in enumerate(["<s>", "<pad>", "</s>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        model_max_length=32,
    ).save_pretrained(folder)


def save_model(folder: Path, kind: str = "bert", pooling: str | None = "mean") -> Path:
    """A tiny random model; ``pooling`` is written as sentence-transformers does."""
    torch.manual_seed(0)
    sizes = {**SIZES, "vocab_size": 4 + len(WORDS)}
    if kind == "xlm-roberta":
        model: Any = XLMRobertaModel(XLMRobertaConfig(**sizes, max_position_embeddings=34, pad_token_id=1))
    elif kind == "qwen2":
        model = Qwen2Model(Qwen2Config(**sizes, num_key_value_heads=1, max_position_embeddings=32))
    else:
        model = BertModel(BertConfig(**sizes, max_position_embeddings=32, pad_token_id=1))
    model.save_pretrained(folder)
    save_tokenizer(folder)
    if pooling is not None:
        modules = [
            {"idx": place, "path": path, "type": f"sentence_transformers.models.{name}"}
            for place, (path, name) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling")])
        ]
        write_json(folder / "modules.json", modules)
        write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 16, "pooling_mode": pooling})
    return folder


def as_pickle(folder: Path, extra: dict[str, Any] | None = None) -> None:
    """Weights as ``pytorch_model.bin``, the only format that BGE-M3 is published in."""
    model = AutoModel.from_pretrained(folder)
    torch.save({**model.state_dict(), **(extra or {})}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def save_bge(folder: Path) -> Path:
    """BGE-M3's layout."""
    save_model(folder, "xlm-roberta", pooling=None)
    for name, width in (("colbert_linear.pt", 16), ("sparse_linear.pt", 1)):
        torch.save(torch.nn.Linear(16, width).state_dict(), folder / name)
    return folder


def states(folder: Path, text: str) -> torch.Tensor:
    """Last hidden states ``[tokens, 16]`` of one text alone, without any padding."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]


def unit(vector: torch.Tensor) -> np.ndarray:
    return (vector / vector.norm()).numpy()
