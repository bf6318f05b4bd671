"""The test foundation tests itself: tiny models are sensitive enough, and the references agree with each other."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoImageProcessor, PreTrainedModel

from tests.matrix import Case, cases, families, row
from tests.reference import (
    block_diagonal,
    build_prompt,
    compile_page,
    full_prefill,
    load_tokenizer,
    masked_prefill,
    rotate,
)
from tests.tiny import REFUSED, ROPE_VARIANTS, TEMPLATE_VARIANTS, build_tiny_model, page_image, page_images
from tests.tiny.images import HIGH, LOW

QUESTION = "What is the code of Marta?"
Folder = Callable[..., Path]
Model = Callable[..., PreTrainedModel]


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.float() - other.float()).abs().max())


@families()
def test_folder_is_complete_and_small(family: str, tiny_folder: Folder, tiny_model: Model) -> None:
    folder = tiny_folder(family)
    assert (folder / "model.safetensors").stat().st_size < 1_300_000
    assert json.loads((folder / "config.json").read_text())["model_type"] == family
    assert {"tokenizer.json", "chat_template.jinja", "generation_config.json", "preprocessor_config.json"} <= {
        path.name for path in folder.iterdir()
    }
    model = tiny_model(family)
    text = model.config.get_text_config()
    assert text.num_key_value_heads == 2 < text.num_attention_heads
    assert text.vocab_size > len(load_tokenizer(folder))
    assert hasattr(model.model.language_model.layers[0].self_attn, row(family).unrotated)


@families()
def test_same_seed_same_weights(family: str, tiny_folder: Folder, tmp_path: Path) -> None:
    again = build_tiny_model(family, tmp_path / "again")
    assert (again / "model.safetensors").read_bytes() == (tiny_folder(family) / "model.safetensors").read_bytes()


@families()
def test_bf16_folder_holds_the_same_values(family: str, tiny_model: Model) -> None:
    wide, narrow = tiny_model(family), tiny_model(family, "bfloat16")
    for (name, one), (_, other) in zip(wide.named_parameters(), narrow.named_parameters(), strict=True):
        assert torch.equal(one, other.float()), name


@families()
@pytest.mark.parametrize("size", [LOW, HIGH])
def test_visual_tokens(family: str, size: tuple[int, int], tiny_folder: Folder, tiny_model: Model) -> None:
    prompt = build_prompt(tiny_model(family), tiny_folder(family), [page_image(0, size)], QUESTION)
    count = prompt.ids.count(tiny_model(family).config.image_token_id)
    expected = {LOW: 58, HIGH: 67} if family == "llava_onevision" else {LOW: 35, HIGH: 70}
    assert count == expected[size]


@families()
def test_tokenizer_round_trip(family: str, tiny_folder: Folder) -> None:
    tokenizer = load_tokenizer(tiny_folder(family))
    text = "The cat, 42 Ünïcödé 漢字!\n\nEnd."
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert len(ids) < len(text.encode())


def test_glm_tokenizer_adds_its_prefix_when_asked(tiny_folder: Folder) -> None:
    tokenizer = load_tokenizer(tiny_folder("glm4v"))
    with_prefix, without = tokenizer("a")["input_ids"], tokenizer("a", add_special_tokens=False)["input_ids"]
    assert with_prefix == [*tokenizer.convert_tokens_to_ids(["[gMASK]", "<sop>"]), *without]


@families()
def test_processor_loads_without_torchvision(family: str, tiny_folder: Folder) -> None:
    processor = AutoImageProcessor.from_pretrained(tiny_folder(family))
    assert type(processor).__name__.endswith("Pil")


@families()
def test_outputs_are_not_degenerate(family: str, tiny_folder: Folder, tiny_model: Model) -> None:
    result = full_prefill(tiny_model(family), tiny_folder(family), page_images(2), QUESTION, max_new_tokens=16)
    assert len(result.tokens) == 16
    assert len(set(result.tokens)) >= 3
    kept = result.logits[result.logits != 0]
    assert float(kept.std()) > 0.5


@families()
def test_positions_matter(family: str, tiny_folder: Folder, tiny_model: Model) -> None:
    """Moving one page, or a single axis of it, by one position changes logits far beyond any tolerance."""
    model, folder = tiny_model(family), tiny_folder(family)
    prompt = build_prompt(model, folder, [page_image(0)], QUESTION)
    right = masked_prefill(model, folder, [page_image(0)], QUESTION)
    start, end = prompt.pages[0]
    for axis in range(row(family).axes):
        positions = right.position_ids.clone()
        positions[axis, start:end] += 1
        batched = positions if row(family).axes == 1 else positions[:, None]
        with torch.no_grad():
            wrong = model(input_ids=torch.tensor([prompt.ids]), position_ids=batched, **prompt.inputs[0])
        assert _difference(wrong.logits[0, -1], right.logits) > 1e-2, axis


@families()
def test_pages_matter(family: str, tiny_folder: Folder, tiny_model: Model) -> None:
    model, folder = tiny_model(family), tiny_folder(family)
    results = [full_prefill(model, folder, page_images(2, seed=seed), QUESTION) for seed in (0, 5)]
    swapped = full_prefill(model, folder, page_images(2)[::-1], QUESTION)
    assert _difference(results[0].logits, results[1].logits) > 1e-2
    assert _difference(results[0].logits, swapped.logits) > 1e-2


@cases()
def test_single_page_is_full_prefill(case: Case, tiny_folder: Folder, tiny_model: Model) -> None:
    model, folder = tiny_model(case.family, case.dtype), tiny_folder(case.family)
    for size in (LOW, HIGH):
        images = [page_image(3, size)]
        full = full_prefill(model, folder, images, QUESTION)
        block = block_diagonal(model, folder, images, QUESTION)
        assert torch.equal(full.input_ids, block.input_ids)
        context = full.prompt.question
        scale = float(full.keys.float().abs().max())
        assert _difference(full.keys[:, :, :context], block.keys[:, :, :context]) <= case.keys * scale
        if case.logits is not None:
            assert _difference(full.question_logits, block.question_logits) <= case.logits
            assert full.tokens == block.tokens


@families()
def test_bf16_error_of_block_and_full(family: str, tiny_folder: Folder, tiny_model: Model) -> None:
    """In bf16 both roads are equally far from float32, so a bound on their ratio is meaningful."""
    folder, images = tiny_folder(family), [page_image(3)]
    exact = full_prefill(tiny_model(family), folder, images, QUESTION)
    full = full_prefill(tiny_model(family, "bfloat16"), folder, images, QUESTION)
    block = block_diagonal(tiny_model(family, "bfloat16"), folder, images, QUESTION)
    limit = _difference(full.question_logits, exact.question_logits)
    assert 0 < _difference(block.question_logits, exact.question_logits) <= 2 * limit


@families()
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)], ids=["in-order", "shuffled"])
def test_references_agree(family: str, order: tuple[int, ...], tiny_folder: Folder, tiny_model: Model) -> None:
    """Separate compilation with rotation, and one masked pass, are the same mathematics."""
    model, folder = tiny_model(family), tiny_folder(family)
    pages = page_images(4)
    images = [pages[number] for number in order]
    block = block_diagonal(model, folder, images, QUESTION)
    masked = masked_prefill(model, folder, images, QUESTION)
    full = full_prefill(model, folder, images, QUESTION)
    assert _difference(block.question_logits, masked.question_logits) <= 1e-4
    assert _difference(block.keys, masked.keys) <= 1e-5
    assert _difference(block.values, masked.values) <= 1e-5
    # Pages do not see each other, so several pages are not full prefill.
    assert _difference(block.logits, full.logits) > 1e-3


@families()
def test_positions_are_the_models_own(family: str, tiny_folder: Folder, tiny_model: Model) -> None:
    """``full_prefill`` lets the model count positions; ours must be the same, or its keys would differ."""
    model, folder = tiny_model(family), tiny_folder(family)
    images = page_images(3)
    full = full_prefill(model, folder, images, QUESTION)
    prompt = full.prompt
    grid, inputs = prompt.grids[0], prompt.inputs[0]
    start, end = prompt.pages[0]
    alone = compile_page(model, prompt.ids[: prompt.prefix], prompt.ids[start:end], grid, inputs)
    rotated = rotate(model, alone.keys, full.position_ids[:, start:end])
    assert _difference(full.keys[:, :, start:end], rotated) <= 1e-5
    if row(family).axes == 3:
        ids = full.input_ids[None]
        grids = torch.cat([one["image_grid_thw"] for one in prompt.inputs])
        types = (ids == model.config.image_token_id).int()
        own, _ = model.model.get_rope_index(ids, mm_token_type_ids=types, image_grid_thw=grids)
        assert torch.equal(own[:, 0], full.position_ids)


@families(remote=False)
@pytest.mark.parametrize("rope", [name for name in ROPE_VARIANTS if name != "default"])
def test_rope_variants(family: str, rope: str, tiny_folder: Folder, tiny_model: Model) -> None:
    images = [page_image(1)]
    plain = full_prefill(tiny_model(family), tiny_folder(family), images, QUESTION)
    model, folder = tiny_model(family, rope=rope), tiny_folder(family, rope=rope)
    scaled = full_prefill(model, folder, images, QUESTION)
    assert model.model.language_model.rotary_emb.rope_type == rope
    assert _difference(plain.logits, scaled.logits) > 1e-2
    if rope != "dynamic":
        block = block_diagonal(model, folder, images, QUESTION)
        assert _difference(block.logits, scaled.logits) <= 1e-4
        assert block.tokens == scaled.tokens


@families()
def test_tied_embeddings(family: str, tiny_folder: Folder, tiny_model: Model) -> None:
    model = tiny_model(family, tied=True)
    assert model.lm_head.weight is model.get_input_embeddings().weight
    images = page_images(1)
    full = full_prefill(model, tiny_folder(family, tied=True), images, QUESTION)
    block = block_diagonal(model, tiny_folder(family, tied=True), images, QUESTION)
    assert _difference(full.logits, block.logits) <= 1e-4


def _render(folder: Path, pictures: int, **options: Any) -> str:
    content = [{"type": "image"}] * pictures + [{"type": "text", "text": "Q?"}]
    tokenizer = load_tokenizer(folder)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True, **options
    )
    assert isinstance(text, str)
    return text


def test_default_templates(tiny_folder: Folder) -> None:
    """The published templates' behaviour, written out."""
    picture = "<|vision_start|><|image_pad|><|vision_end|>"
    system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    chatml = f"<|im_start|>user\n{picture}{picture}Q?<|im_end|>\n<|im_start|>assistant\n"
    glm_picture = "<|begin_of_image|><|image|><|end_of_image|>"
    glm = f"[gMASK]<sop><|user|>\n{glm_picture}{glm_picture}Q?<|assistant|>\n"
    expected = {
        "glm4v": glm,
        "glm46v": glm,
        "qwen2_vl": system + chatml,
        "qwen2_5_vl": system + chatml,
        "qwen3_vl": chatml,
        "llava_onevision": "<|im_start|>user <image><image>\nQ?<|im_end|><|im_start|>assistant\n",
        "llava_onevision2": system + chatml,
    }
    assert {family: _render(tiny_folder(family), 2) for family in expected} == expected
    quiet = _render(tiny_folder("glm46v"), 1, enable_thinking=False)
    assert quiet == f"[gMASK]<sop><|user|>\n{glm_picture}Q?/nothink<|assistant|>\n<think></think>\n"


@families()
def test_system_prompt_in_references(family: str, tiny_folder: Folder, tiny_model: Model) -> None:
    model, folder = tiny_model(family), tiny_folder(family)
    images = page_images(2)
    block = block_diagonal(model, folder, images, QUESTION, system="Be brief.")
    masked = masked_prefill(model, folder, images, QUESTION, system="Be brief.")
    assert "Be brief." in load_tokenizer(folder).decode(block.prompt.ids[: block.prompt.prefix])
    assert _difference(block.question_logits, masked.question_logits) <= 1e-4


def test_templates_that_want_one_form_of_content(tiny_folder: Folder) -> None:
    """Two published templates each get one form of system content wrong; ours do too."""

    def rendered(family: str, content: Any) -> str:
        messages = [
            {"role": "system", "content": content},
            {"role": "user", "content": [{"type": "text", "text": "Q"}]},
        ]
        text = load_tokenizer(tiny_folder(family)).apply_chat_template(messages, tokenize=False)
        assert isinstance(text, str)
        return text

    parts = [{"type": "text", "text": "Be brief."}]
    assert "Be brief." not in rendered("llava_onevision", "Be brief.")
    assert "Be brief." in rendered("llava_onevision", parts)
    assert "<|system|>\nBe brief.<|user|>" in rendered("glm4v", "Be brief.")
    assert "'text': 'Be brief.'" in rendered("glm4v", parts)


@families()
def test_without_pages(family: str, tiny_folder: Folder, tiny_model: Model) -> None:
    result = full_prefill(tiny_model(family), tiny_folder(family), [], QUESTION)
    assert result.prompt.pages == []
    assert len(result.question_logits) == len(result.input_ids)


@families()
def test_template_variants(family: str, tiny_folder: Folder) -> None:
    variants = [name for name in TEMPLATE_VARIANTS if name != "text_only"]
    texts = {name: _render(tiny_folder(family, template=name), 2) for name in variants}
    assert texts["thinking"] == texts["default"] + "<think>\n"
    assert "You are a helpful assistant." in texts["system"]
    assert "You are a helpful assistant." not in texts["no_system"]
    assert "Picture 1: " in texts["numbered"]
    assert "Picture 2: " in texts["numbered"]
    assert texts["newline"].count("\n") == texts["default"].count("\n") + 2
    with pytest.raises(Exception, match="reads text only"):
        _render(tiny_folder(family, template="text_only"), 1)


@families()
@pytest.mark.parametrize("template", ["newline", "thinking", "system", "no_system"])
def test_references_agree_with_other_templates(
    family: str, template: str, tiny_folder: Folder, tiny_model: Model
) -> None:
    model, folder = tiny_model(family, template=template), tiny_folder(family, template=template)
    images = page_images(2)
    block = block_diagonal(model, folder, images, QUESTION)
    masked = masked_prefill(model, folder, images, QUESTION)
    assert _difference(block.question_logits, masked.question_logits) <= 1e-4
    assert all(end == start for (_, end), (start, _) in pairwise(block.prompt.pages))


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_folders(kind: str, refused_folder: Callable[[str], Path]) -> None:
    folder = refused_folder(kind)
    if kind == "unknown":
        with pytest.raises(ValueError, match="brand_new_vl"):
            AutoConfig.from_pretrained(folder)
        return
    config = AutoConfig.from_pretrained(folder)
    if kind == "sliding_window":
        assert config.text_config.layer_types == ["full_attention", "sliding_attention"]
    if kind == "qwen3_5":
        assert "linear_attention" in config.text_config.layer_types
    if kind == "llama":
        assert not hasattr(config, "vision_config")
