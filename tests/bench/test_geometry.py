"""Shapes are those of the published models, and what is left at a scale is spread as in the whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from transformers import AutoModelForImageTextToText

from qvpic_rag.baselines import FullPrefill
from qvpic_rag.bench import random_model
from qvpic_rag.bench.geometry import GEOMETRIES, find_geometry
from qvpic_rag.bench.random_model import build_model, empty_model, image_processor, token_ids
from qvpic_rag.errors import ConfigError
from qvpic_rag.models.base import Checkpoint
from qvpic_rag.models.glm4v import Glm4vModel
from qvpic_rag.models.qwen_vl import QwenVLModel
from qvpic_rag.records import Message
from qvpic_rag.template import ChatTemplate

# Parameters as their cards give them; bytes of keys and values a token in bfloat16: 2 x layers x KV heads x 128 x 2.
PUBLISHED = {
    "glm-4.1v-9b": (10.3e9, 2 * 40 * 2 * 128 * 2),
    "qwen2.5-vl-3b": (3.75e9, 2 * 36 * 2 * 128 * 2),
    "qwen2.5-vl-7b": (8.29e9, 2 * 28 * 4 * 128 * 2),
    "qwen3-vl-4b": (4.44e9, 2 * 36 * 8 * 128 * 2),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_size_and_kv_bytes_are_the_published_ones(name: str) -> None:
    geometry = find_geometry(name)
    model = empty_model(geometry.config(1.0, token_ids(geometry)), torch.device("meta"), torch.bfloat16)
    parameters, kv_bytes = PUBLISHED[name]
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(parameters, rel=0.03)
    assert geometry.parameters == parameters
    family = Glm4vModel if geometry.model_type == "glm4v" else QwenVLModel
    wrapped = family(Checkpoint(model, None, None, "", "", "", ""))
    assert 2 * wrapped.layers * wrapped.kv_heads * wrapped.head_dim * wrapped.dtype.itemsize == kv_bytes
    assert wrapped.max_context == geometry.text["max_position_embeddings"]
    assert family.unsupported_layers(model.config) == []


@pytest.mark.parametrize("name", GEOMETRIES)
def test_pages_have_the_visual_tokens_of_their_patches(name: str) -> None:
    """A page of 992 x 1404 pixels, rounded to whole visual tokens."""
    geometry = find_geometry(name)
    processor = image_processor(geometry)
    grid = processor(images=[Image.new("RGB", (992, 1404), "white")], return_tensors="pt")["image_grid_thw"][0].tolist()
    side = processor.patch_size * 2
    assert grid == [1, 2 * round(1404 / side), 2 * round(992 / side)]


def test_scales_leave_out_layers_and_nothing_else() -> None:
    geometry = find_geometry("qwen2.5-vl-3b")
    whole, part = (geometry.config(scale, token_ids(geometry)) for scale in (1.0, 0.25))
    assert whole.vision_config.fullatt_block_indexes == [7, 15, 23, 31]
    assert (part.text_config.num_hidden_layers, part.vision_config.depth) == (9, 8)
    assert part.vision_config.fullatt_block_indexes == [7], "one layer of eight, as in the whole tower"
    for config in (whole, part):
        assert (config.text_config.hidden_size, config.vision_config.hidden_size) == (2048, 1280)
    assert find_geometry("qwen3-vl-4b").config(1.0, {}).vision_config.deepstack_visual_indexes == [5, 11, 17]


@given(st.sampled_from(sorted(GEOMETRIES)), st.floats(0.001, 1))
def test_every_scale_keeps_layers(name: str, scale: float) -> None:
    geometry = GEOMETRIES[name]
    decoder, tower = geometry.layers(scale)
    assert scale * geometry.text["num_hidden_layers"] - 1e-6 <= decoder <= geometry.text["num_hidden_layers"]
    assert scale * geometry.vision["depth"] - 1e-6 <= tower <= geometry.vision["depth"]
    vision = geometry.config(scale, {}).vision_config
    for special in ("fullatt_block_indexes", "deepstack_visual_indexes"):
        if special in geometry.vision:
            places = list(getattr(vision, special))
            assert places == sorted(set(places))
            assert places
            assert set(places) <= set(range(tower))


@pytest.mark.parametrize("scale", [0, -1, 1.01, float("nan")])
def test_other_scales_are_refused(scale: float) -> None:
    with pytest.raises(ConfigError, match=r"scale must be above 0 and at most 1"):
        find_geometry("tiny").layers(scale)


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"glm-4\.1v-9b, qwen2\.5-vl-3b, .*tiny, not 'gpt'"):
        find_geometry("gpt")


def test_leaving_initialisation_out_leaves_out_weights_only() -> None:
    """Rotary frequencies are buffers, which the constructor fills."""
    geometry = find_geometry("tiny")
    config = geometry.config(1.0, token_ids(geometry))
    expected = dict(AutoModelForImageTextToText.from_config(config).named_buffers())
    found = dict(empty_model(config, torch.device("cpu"), torch.float32).named_buffers())
    assert found.keys() == expected.keys()
    assert any("inv_freq" in name for name in found)
    for name, buffer in found.items():
        torch.testing.assert_close(buffer, expected[name])


def test_unknown_dtypes_are_refused() -> None:
    with pytest.raises(ConfigError, match="dtype must be one of bfloat16, float16, float32"):
        build_model(find_geometry("tiny"), name="tiny", scale=1, device=torch.device("cpu"), dtype="int8")


def test_the_template_is_the_familys() -> None:
    model = build_model(find_geometry("tiny"), name="tiny", scale=0.5, device=torch.device("cpu"), dtype="bfloat16")
    assert (model.layers, model.dtype) == (1, torch.bfloat16)
    template = ChatTemplate(model)
    text = model.tokenizer.decode
    assert text(template.prefix) == "[gMASK]<sop><|user|>\n"
    assert text(template.page(2)) == "<|begin_of_image|><|image|><|image|><|end_of_image|>"
    assert text(template.suffix([Message("user", "Who?")])) == "Who?<|assistant|>\n"


@pytest.mark.parametrize("name", PUBLISHED)
def test_random_weights_give_finite_logits(name: str) -> None:
    """Every architecture with its rotary sections and special tokens, a few layers of it, and narrow."""
    geometry = find_geometry(name)
    narrow = {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 64, "vocab_size": 512}
    vision = {"hidden_size": 32, "num_heads": 2, "intermediate_size": 48, "out_hidden_size": 256}
    small = replace(
        geometry,
        text={**geometry.text, **narrow, "hidden_size": 256},
        vision={**geometry.vision, **vision},
        pixels=(56 * 56, 28 * 28 * 64),
    )
    model = build_model(small, name=name, scale=0.125, device=torch.device("cpu"), dtype="bfloat16")
    template = ChatTemplate(model)
    pictures = [Image.new("RGB", (112, 112), "white")] * 2
    request = FullPrefill(model, template).prompt(template.suffix([Message("user", "Who?")]), pictures, new_tokens=1)
    with torch.no_grad():
        logits = model.model(
            input_ids=request.token_ids, position_ids=model.position_argument(request.positions), **request.extra
        ).logits
    assert logits.shape == (1, request.token_ids.shape[1], 512)
    assert logits.isfinite().all()
    assert logits.std() > 0.1


def test_a_model_that_does_not_fit_the_memory_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_model, "_free", lambda device: 10**9)
    with pytest.raises(ConfigError, match=r"The weights need 20\.6 GB and 1\.0 GB of memory are free on cpu"):
        build_model(find_geometry("glm-4.1v-9b"), name="9b", scale=1, device=torch.device("cpu"), dtype="bfloat16")
