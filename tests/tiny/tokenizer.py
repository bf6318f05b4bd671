"""A byte-level BPE tokenizer of a few hundred entries with a family's real special tokens."""

from __future__ import annotations

from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

__all__ = ["SPECIAL_TOKENS", "build_tokenizer", "printable_ids"]

_GLM = (
    "<|endoftext|> [MASK] [gMASK] [sMASK] <sop> <eop> <|system|> <|user|> <|assistant|> <|observation|>"
    " <|begin_of_image|> <|end_of_image|> <|begin_of_video|> <|end_of_video|> <|image|> <|video|>"
)
_QWEN = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|>"
    " <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>"
)
_LLAVA = "<|endoftext|> <|im_start|> <|im_end|> <image> <video>"
_TEXT = "<|endoftext|> <|im_start|> <|im_end|>"

SPECIAL_TOKENS = {
    "glm4v": _GLM.split(),
    "glm46v": _GLM.split(),
    "qwen2_vl": _QWEN.split(),
    "qwen2_5_vl": _QWEN.split(),
    "qwen3_vl": _QWEN.split(),
    "llava_onevision": _LLAVA.split(),
    "llava_onevision2": _QWEN.split(),
    **{family: _TEXT.split() for family in ("llama", "mistral", "qwen2", "qwen3")},
}

# Ordinary added tokens: they stay in decoded text, as in the published tokenizers.
_TAGS = ["<think>", "</think>"]

# Pairs that common English and the templates' newlines merge into; each must be reachable from the bytes before it.
_MERGES = [
    ("t", "h"), ("th", "e"), ("i", "n"), ("a", "n"), ("e", "r"), ("o", "u"), ("i", "s"), ("h", "a"), ("r", "e"),
    ("Ġ", "t"), ("Ġt", "h"), ("Ġth", "e"), ("Ġ", "a"), ("Ġ", "o"), ("o", "f"), ("c", "o"), ("d", "e"), ("W", "ha"),
    ("Wha", "t"), ("Ċ", "Ċ"), (".", "Ċ"), (":", "Ċ"), ("?", "Ċ"), ("Ġ", "is"),
]  # fmt: skip

_SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _byte_vocabulary() -> dict[str, int]:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: number for number, symbol in enumerate(alphabet)}
    for left, right in _MERGES:
        vocabulary[left + right] = len(vocabulary)
    return vocabulary


def build_tokenizer(family: str, chat_template: str) -> PreTrainedTokenizerFast:
    """Tokenizer of ``family``; GLM's puts ``[gMASK]<sop>`` before text when special tokens are asked for."""
    tokenizer = Tokenizer(models.BPE(vocab=_byte_vocabulary(), merges=_MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = SPECIAL_TOKENS[family]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in _TAGS])
    end = "<|endoftext|>"
    if family.startswith("glm"):
        ids = [(token, tokenizer.token_to_id(token)) for token in ("[gMASK]", "<sop>")]
        tokenizer.post_processor = processors.TemplateProcessing(single="[gMASK] <sop> $A", special_tokens=ids)
    else:
        end = "<|im_end|>"
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=end,
        pad_token="<|endoftext|>",
        additional_special_tokens=[token for token in special if token not in (end, "<|endoftext|>")],
        chat_template=chat_template,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


@cache
def printable_ids() -> tuple[int, ...]:
    """Ids of the entries that decode to printable ASCII on their own (the same in every family)."""
    vocabulary = _byte_vocabulary()
    plain = {chr(code) for code in range(33, 127)} | {"Ġ"}
    return tuple(number for text, number in sorted(vocabulary.items(), key=lambda item: item[1]) if set(text) <= plain)
