"""The reader's tokenizer: every printable character of ASCII, and whole words of the language it is trained on.

A name or a value is spelt, character by character, because it may be anything. The words of questions and prompts are
one token each, with or without a space before them, so that a prompt of a framework costs tens of tokens, not hundreds.
A word is only taken as a whole: ``is`` is no token within ``island``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from qvpic_rag.reader.prompts import SYSTEM_PROMPTS, fixed_texts
from qvpic_rag.reader.wordings import fixed_words
from qvpic_rag.reader.words import ADJECTIVES, KINDS, NOUNS

__all__ = ["CHARACTERS", "END", "SPECIAL_TOKENS", "TRANSCRIBE", "build_tokenizer"]

END = "<|endoftext|>"
SPECIAL_TOKENS = (
    END, "[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|system|>", "<|begin_of_image|>", "<|image|>",
    "<|end_of_image|>", "<|begin_of_video|>", "<|video|>", "<|end_of_video|>", "<unk>",
)  # fmt: skip
CHARACTERS = "\n" + "".join(chr(code) for code in range(32, 127))
TRANSCRIBE = "Transcribe the page."
"""The one request that is no question: write down what the page says."""
_RULES = ("-" * 21, "-" * 12)  # lines that LlamaIndex draws around the context
_LONGEST_CONTEXT = 8192
# GLM-4.1V's layout: pictures stand at the head of a user turn, a system turn comes first.
_CHAT_TEMPLATE = (
    "[gMASK]<sop>{% for m in messages %}{% set c = m['content'] %}<|{{ m['role'] }}|>\n"
    "{% if c is string %}{{ c }}{% else %}{% for part in c %}{% if part['type'] == 'image' %}"
    "<|begin_of_image|><|image|><|end_of_image|>{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def words() -> list[str]:
    """Words of two letters or more in everything that is fixed, most of them lower case; sorted."""
    texts: Iterable[str] = (
        *fixed_words(), *fixed_texts(), *SYSTEM_PROMPTS, TRANSCRIBE, *NOUNS, *KINDS, *ADJECTIVES, "yes no not stated",
        *(noun.capitalize() for noun in NOUNS),
    )  # fmt: skip
    found: set[str] = set()
    for text in texts:
        found.update(re.findall(r"[A-Za-z]{2,}", re.sub(r"\{\w+\}", " ", text)))
    # Wordings stand at the head of sentences too.
    found |= {word.capitalize() for text in fixed_words() for word in re.findall(r"^[a-z]{2,}", text)}
    return sorted(found)


def build_tokenizer() -> Any:
    """A ``PreTrainedTokenizerFast`` with its chat template."""
    known = words()
    vocabulary = [*SPECIAL_TOKENS, *CHARACTERS, *_RULES, *known, *(f" {word}" for word in known)]
    tokenizer = Tokenizer(models.WordLevel({token: index for index, token in enumerate(vocabulary)}, unk_token="<unk>"))
    longest_first = sorted(known, key=lambda word: (-len(word), word))
    whole = f"{'|'.join(_RULES)}| ?\\b(?:{'|'.join(longest_first)})\\b"
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(f"{whole}|[\\s\\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=_LONGEST_CONTEXT,
    )
    fast.chat_template = _CHAT_TEMPLATE
    return fast
