"""Placing a language model in the text tower: its function on text, its tokenizer, its chat template."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from qvpic_rag.errors import InputError
from qvpic_rag.models.smolglyph.base import Base
from qvpic_rag.models.smolglyph.model import CHAT_TEMPLATE, PICTURE_TOKENS, Tower, build_model, build_tokenizer
from qvpic_rag.reader.smolglyph.requests import Prompts
from qvpic_rag.records import Message
from qvpic_rag.template import ChatTemplate
from tests.reader.smolglyph.conftest import TOWER

PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"


def test_logits_on_text_are_the_language_models(tiny_base: Base) -> None:
    """To the last bit, as for any Llama: the biases are zero, the three positions of a text are one."""
    original = LlamaForCausalLM(tiny_base.config).eval()
    original.load_state_dict(dict(tiny_base.weights), strict=False)
    model = build_model(tiny_base, TOWER, seed=0)
    ids = torch.tensor([tiny_base.tokenizer("What is in the box? A key.")["input_ids"]])
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, original(input_ids=ids).logits)


def test_the_seed_decides_the_tower(tiny_base: Base) -> None:
    first, again, other = (build_model(tiny_base, TOWER, seed=seed).model.visual.state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_the_bundled_tower_is_small(tiny_base: Base) -> None:
    model = build_model(tiny_base, Tower(), seed=0)
    assert model.model.visual.config.fullatt_block_indexes == [0, 1, 2, 3, 4]
    assert sum(p.numel() for p in model.model.visual.parameters()) < 6_000_000
    assert model.config.text_config.rope_parameters["mrope_section"] == [4, 6, 6]


def test_text_keeps_its_token_ids(tiny_base: Base) -> None:
    tokenizer = build_tokenizer(tiny_base)
    text = "<|im_start|>user\nFor 12 keys, see  box 4.\n<|im_end|>"
    assert tokenizer(text)["input_ids"] == tiny_base.tokenizer(text)["input_ids"]
    assert len(tokenizer) == len(tiny_base.tokenizer)
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_picture_tokens_take_the_places_of_unused_ones(tiny_base: Base) -> None:
    tokenizer = build_tokenizer(tiny_base)
    for token, index in PICTURE_TOKENS.items():
        assert tokenizer(token)["input_ids"] == [index]
    assert len(tokenizer("<gh_stars>")["input_ids"]) > 1


def _rendered(tokenizer: Any, turns: list[dict[str, Any]]) -> str:
    return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))


def test_the_template_is_chatml_without_a_default_system_prompt(tiny_base: Base) -> None:
    tokenizer = build_tokenizer(tiny_base)
    content = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "Who?"}]
    assert _rendered(tokenizer, [{"role": "user", "content": content}]) == (
        f"<|im_start|>user\n{PICTURE}{PICTURE}Who?<|im_end|>\n<|im_start|>assistant\n"
    )
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": content[1:]},
        {"role": "assistant", "content": [{"type": "text", "text": "Ann."}]},
        {"role": "user", "content": "Why?"},
    ]
    assert _rendered(tokenizer, turns) == (
        f"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{PICTURE}Who?<|im_end|>\n"
        "<|im_start|>assistant\nAnn.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_the_engine_cuts_the_template(tiny_base: Base, system: str | None) -> None:
    tokenizer = build_tokenizer(tiny_base)
    model: Any = SimpleNamespace(
        tokenizer=tokenizer,
        checkpoint=SimpleNamespace(template=CHAT_TEMPLATE, name="tiny"),
        image_token_id=PICTURE_TOKENS["<|image_pad|>"],
    )
    template = ChatTemplate(model, system_prompt=system)
    head = "" if system is None else f"<|im_start|>system\n{system}<|im_end|>\n"
    assert tokenizer.decode(template.prefix) == f"{head}<|im_start|>user\n"
    assert tokenizer.decode(template.open) == "<|vision_start|>"
    assert tokenizer.decode(template.close) == "<|vision_end|>"
    assert template.separator == ()
    for text in ("Who?", "\n\nWho?", " who"):
        suffix = template.suffix([Message("user", text)])
        assert tokenizer.decode(suffix) == f"{text}<|im_end|>\n<|im_start|>assistant\n"
    with pytest.raises(InputError):
        template.suffix([Message("user", "<|image_pad|>")])


def test_prompts_end_a_turn(prompts: Prompts) -> None:
    asked = prompts.asked("Who?", "Ann")
    assert prompts.tokenizer.decode(asked.answer) == "Ann<|im_end|>"
    assert prompts.tokenizer.decode(prompts.repeat("Ann").answer) == "Ann<|im_end|>"
    assert prompts.tokenizer.decode(prompts.go_on("Ann").answer) == "Ann"
    context = prompts.as_text(["One.", "Two."], [asked])
    whole = [*context.prefix, *context.open, *context.close, *asked.prompt]
    assert prompts.tokenizer.decode(whole) == (
        "<|im_start|>user\nOne.\n\nTwo.\n\nWho?<|im_end|>\n<|im_start|>assistant\n"
    )
