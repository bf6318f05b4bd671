"""An ordinary ``Qwen2_5_VLForConditionalGeneration`` whose language model is SmolLM2, with a small vision tower.

A Qwen2.5 decoder computes what a Llama decoder does if its query, key and value biases are zero, so SmolLM2's weights
are placed unchanged and its logits on text stay the same to the last bit. A picture is one block of visual tokens with
M-RoPE positions (time, row, column) in the standard sections.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from qvpic_rag.models.reader_images import MERGE, PATCH, image_processor
from qvpic_rag.models.smolglyph.base import Base

__all__ = ["CHAT_TEMPLATE", "PICTURE_TOKENS", "Tower", "build_config", "build_model", "build_tokenizer", "processor"]

PICTURE_TOKENS = {"<|vision_start|>": 7, "<|vision_end|>": 8, "<|image_pad|>": 9, "<|video_pad|>": 10}
"""Token -> id. The ids were SmolLM2's for GitHub stars and issues: it hardly met them in training (their
embeddings are all alike), so nothing is lost, and the vocabulary keeps its size."""

_END, _TURN_END = 0, 2  # <|endoftext|> and <|im_end|>
# SmolLM2's own template without its default system prompt. That prompt would be 24 tokens of prefix before every page,
# and page caches compiled under a long prefix answer worse when several are linked (measured with SmolLM2 itself: exact
# answers .05 after 24 tokens, .25 after two to four).
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% set c = m['content'] %}"
    "{% if c is string %}{{ c }}{% else %}{% for part in c %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Tower:
    """Sizes of the vision tower; the defaults, 5.5 M parameters, are the bundled reader's.

    Attributes
    ----------
    hidden, depth, heads, mlp : int
        All layers see the whole picture.
    theta : float
        Base of the rotary wavelengths; small, because a page has a few dozen rows and columns of patches.
    sections : tuple[int, ...]
        How many of the language model's rotary pairs turn with a visual token's time, row and column, in turn; empty
        for Qwen2.5-VL's shares 1:1.5:1.5.
    """

    hidden: int = 256
    depth: int = 5
    heads: int = 4
    mlp: int = 640
    theta: float = 100.0
    sections: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON-able values."""
        return asdict(self)


def build_config(text: Any, tower: Tower) -> Any:
    """A ``Qwen2_5_VLConfig``.

    Parameters
    ----------
    text : Any
        The ``LlamaConfig`` of the language model, with tied embeddings.
    tower : Tower
        The vision tower's sizes.
    """
    pairs = text.hidden_size // text.num_attention_heads // 2
    time = pairs // 4
    row = (pairs - time) // 2
    return Qwen2_5_VLConfig(
        text_config={
            "vocab_size": text.vocab_size,
            "hidden_size": text.hidden_size,
            "intermediate_size": text.intermediate_size,
            "num_hidden_layers": text.num_hidden_layers,
            "num_attention_heads": text.num_attention_heads,
            "num_key_value_heads": text.num_key_value_heads,
            "max_position_embeddings": text.max_position_embeddings,
            "rms_norm_eps": text.rms_norm_eps,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": text.rope_parameters["rope_theta"],
                "mrope_section": list(tower.sections) or [time, row, pairs - time - row],
            },
            "bos_token_id": None,
            "eos_token_id": _TURN_END,
            "pad_token_id": _END,
        },
        vision_config={
            "depth": tower.depth,
            "hidden_size": tower.hidden,
            "num_heads": tower.heads,
            "intermediate_size": tower.mlp,
            "out_hidden_size": text.hidden_size,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
            "window_size": 8 * PATCH,  # of no consequence: no layer has windows
            "fullatt_block_indexes": list(range(tower.depth)),
            "rope_parameters": {"rope_type": "axial", "rope_theta": tower.theta},
        },
        vision_start_token_id=PICTURE_TOKENS["<|vision_start|>"],
        vision_end_token_id=PICTURE_TOKENS["<|vision_end|>"],
        image_token_id=PICTURE_TOKENS["<|image_pad|>"],
        video_token_id=PICTURE_TOKENS["<|video_pad|>"],
        tie_word_embeddings=True,
    )


def build_model(base: Base, tower: Tower, *, seed: int) -> Any:
    """The model, float32: the language model's weights in their places, a vision tower with fresh ones.

    Parameters
    ----------
    seed : int
        Decides the tower's weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration(build_config(base.config, tower)).eval()
        vision = model.model.visual
        with torch.no_grad():
            vision.patch_embed.proj.weight.normal_(0, 0.05)
            # Every visual token starts as the mean word, from where all words are near.
            vision.merger.mlp[2].weight.normal_(0, 0.004)
            vision.merger.mlp[2].bias.copy_(base.weights["model.embed_tokens.weight"].mean(0))
    language = model.model.language_model
    placed = language.state_dict()
    for name, value in placed.items():
        own = base.weights.get(f"model.{name}")
        placed[name] = torch.zeros_like(value) if own is None and name.endswith("bias") else own
    language.load_state_dict(placed)
    model.tie_weights()
    model.generation_config.eos_token_id = [_TURN_END, _END]
    model.generation_config.pad_token_id = _END
    return model


def build_tokenizer(base: Base) -> Any:
    """SmolLM2's tokenizer with :data:`PICTURE_TOKENS` in the place of tokens that it does not need."""
    content = json.loads(base.tokenizer.backend_tokenizer.to_str())
    names = {index: name for name, index in PICTURE_TOKENS.items()}
    for token in content["added_tokens"]:
        token["content"] = names.get(token["id"], token["content"])
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {names.get(index, token): index for token, index in vocabulary.items()}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token="<|endoftext|>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=base.config.max_position_embeddings,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def processor() -> dict[str, Any]:
    """Content of ``preprocessor_config.json``: pictures are taken as they are, paper 0 and ink 2."""
    return image_processor("Qwen2VLImageProcessor")
