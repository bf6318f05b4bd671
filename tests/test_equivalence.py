"""The cached path against full prefill and references written without the engine, over families and dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from qvpic_rag.compile import compile_pages
from qvpic_rag.errors import CompileError
from tests.matrix import Case, cases, families
from tests.reference import Reference, block_diagonal, full_prefill, masked_prefill
from tests.serve import KEY, Served, serve

QUESTION = "Which door is the red one?"
ORDERS = [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)]


@pytest.fixture(scope="module")
def served(tiny_folder: Callable[..., Path]) -> Callable[..., Served]:
    """``served(family, dtype)``: the engine on a tiny model, loaded once."""
    loaded: dict[tuple[str, str, str], Served] = {}

    def get(family: str, dtype: str = "float32", **options: Any) -> Served:
        key = (family, dtype, repr(sorted(options.items())))
        if key not in loaded:
            loaded[key] = serve(tiny_folder(family, **options), dtype=dtype)
        return loaded[key]

    return get


@pytest.fixture
def pictures(make_page_images: Callable[..., list[Image.Image]]) -> list[Image.Image]:
    return make_page_images(4)


def _error(values: torch.Tensor, exact: torch.Tensor) -> float:
    return float((values - exact).abs().max())


def _check(case: Case, ours: torch.Tensor, same: Reference, exact: Reference, full_error: float) -> None:
    """float32: equal to the reference; bfloat16: no further from float32 than a small multiple of full prefill."""
    if case.logits is not None:
        assert _error(ours, same.question_logits) <= case.logits
    else:
        assert _error(ours, exact.question_logits) <= case.ratio * full_error


@cases()
def test_one_page_is_full_prefill(
    case: Case,
    served: Callable[..., Served],
    tiny_folder: Callable[..., Path],
    tiny_model: Callable[..., Any],
    pictures: list[Image.Image],
) -> None:
    engine, folder = served(case.family, case.dtype), tiny_folder(case.family)
    reference = full_prefill(tiny_model(case.family, case.dtype), folder, pictures[:1], QUESTION)
    exact = full_prefill(tiny_model(case.family), folder, pictures[:1], QUESTION)
    blocks = engine.compile(pictures[:1])
    full_error = _error(reference.question_logits, exact.question_logits)
    _check(case, engine.logits(blocks, QUESTION), reference, exact, full_error)
    if case.dtype == "float32":
        assert list(engine.generate(blocks, QUESTION).token_ids) == reference.tokens


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: "".join(map(str, order)))
@cases()
def test_four_pages_in_any_order_equal_the_reference(
    case: Case,
    order: tuple[int, ...],
    served: Callable[..., Served],
    tiny_folder: Callable[..., Path],
    tiny_model: Callable[..., Any],
    pictures: list[Image.Image],
) -> None:
    engine, folder = served(case.family, case.dtype), tiny_folder(case.family)
    images = [pictures[i] for i in order]
    compiled = engine.compile(pictures)  # once, in their own order
    blocks = [compiled[i] for i in order]
    reference = block_diagonal(tiny_model(case.family, case.dtype), folder, images, QUESTION)
    exact = block_diagonal(tiny_model(case.family), folder, images, QUESTION)
    # What bfloat16 costs without any cache: the same mathematics in one masked pass.
    plain = masked_prefill(tiny_model(case.family, case.dtype), folder, images, QUESTION)
    full_error = _error(plain.question_logits, exact.question_logits)
    _check(case, engine.logits(blocks, QUESTION), reference, exact, full_error)
    if case.dtype == "float32":
        assert list(engine.generate(blocks, QUESTION).token_ids) == reference.tokens


@families(remote=False)
def test_float16_is_no_further_from_float32_than_full_prefill(
    family: str,
    served: Callable[..., Served],
    tiny_folder: Callable[..., Path],
    tiny_model: Callable[..., Any],
    pictures: list[Image.Image],
) -> None:
    engine, folder = served(family, "float16"), tiny_folder(family)
    full = full_prefill(tiny_model(family, "float16"), folder, pictures[:1], QUESTION)
    exact = full_prefill(tiny_model(family), folder, pictures[:1], QUESTION)
    ours = engine.logits(engine.compile(pictures[:1]), QUESTION)
    assert _error(ours, exact.question_logits) <= 2 * _error(full.question_logits, exact.question_logits)


@pytest.mark.gpu
@families(remote=False)
def test_an_accelerator_gives_what_the_cpu_gives(
    family: str, served: Callable[..., Served], tiny_folder: Callable[..., Path], pictures: list[Image.Image]
) -> None:
    cpu, gpu = served(family), serve(tiny_folder(family), device="cuda")
    expected = cpu.logits(cpu.compile(pictures), QUESTION)
    actual = gpu.logits(gpu.compile(pictures), QUESTION).cpu()
    assert _error(actual, expected) <= 1e-2
    assert (
        gpu.generate(gpu.compile(pictures), QUESTION).token_ids
        == cpu.generate(cpu.compile(pictures), QUESTION).token_ids
    )


@cases()
def test_assembled_keys_are_the_models_own_at_those_positions(
    case: Case,
    served: Callable[..., Served],
    tiny_folder: Callable[..., Path],
    tiny_model: Callable[..., Any],
    pictures: list[Image.Image],
) -> None:
    engine = served(case.family, case.dtype)
    context, _ = engine.link(engine.compile(pictures), QUESTION)
    reference = masked_prefill(tiny_model(case.family), tiny_folder(case.family), pictures, QUESTION)
    count = context.tokens
    assert torch.equal(context.token_ids, reference.input_ids[:count])
    assert torch.equal(context.positions, reference.position_ids[:, :count])
    assert context.next_position == int(reference.position_ids[0, count])
    tolerance = 1e-5 if case.dtype == "float32" else 0.1
    for ours, theirs in (
        (context.cache.key_buffer[:, :, :count], reference.keys[:, :, :count]),
        (context.cache.value_buffer[:, :, :count], reference.values[:, :, :count]),
    ):
        assert _error(ours.float(), theirs) <= tolerance * float(theirs.abs().max())


@families()
def test_batched_compilation_equals_one_by_one(
    family: str, served: Callable[..., Served], make_page_images: Callable[..., list[Image.Image]]
) -> None:
    engine = served(family)
    images = make_page_images(6)[::2]  # every other one has the same size
    together = compile_pages(engine.model, engine.template, images, [KEY] * 3)
    for batched, alone in zip(together, engine.compile(images), strict=True):
        torch.testing.assert_close(batched.keys, alone.keys, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(batched.values, alone.values, atol=1e-5, rtol=1e-5)
        assert torch.equal(batched.positions, alone.positions)
        assert (batched.span, batched.tokens) == (alone.span, alone.tokens)


@families()
def test_positions_left_over_from_other_callers_change_nothing(
    family: str, served: Callable[..., Served], pictures: list[Image.Image]
) -> None:
    engine = served(family)
    blocks = engine.compile(pictures)
    before = engine.generate(blocks, QUESTION)
    logits = engine.logits(blocks, QUESTION)
    engine.model.model.model.rope_deltas = torch.tensor([[-17]])
    try:
        again = engine.compile(pictures)
        assert all(torch.equal(a.keys, b.keys) for a, b in zip(blocks, again, strict=True))
        assert engine.generate(again, QUESTION).token_ids == before.token_ids
        assert torch.equal(engine.logits(again, QUESTION), logits)
    finally:
        engine.model.model.model.rope_deltas = None


@families()
def test_interleaved_requests_equal_the_same_requests_alone(
    family: str, served: Callable[..., Served], pictures: list[Image.Image]
) -> None:
    engine = served(family)
    blocks = engine.compile(pictures)
    requests = [([blocks[i % 4], blocks[(i * 3 + 1) % 4]], f"Question {i}?") for i in range(20)]
    alone = [engine.generate(pages, question).token_ids for pages, question in requests]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda request: engine.generate(*request).token_ids, requests))
    assert together == alone


@families()
def test_requests_never_change_stored_blocks(
    family: str, served: Callable[..., Served], pictures: list[Image.Image]
) -> None:
    engine = served(family)
    blocks = engine.compile(pictures[:2])
    copies = [(block.keys.clone(), block.values.clone()) for block in blocks]
    engine.generate(blocks, QUESTION)
    for block, (keys, values) in zip(blocks, copies, strict=True):
        assert torch.equal(block.keys, keys)
        assert torch.equal(block.values, values)


SCALINGS = {
    "linear": {"rope": "linear"},
    "yarn": {"rope": "yarn"},
    # Frequencies that depend on the length are the unscaled ones up to the original length.
    "dynamic": {"rope": "dynamic", "text": {"max_position_embeddings": 512}},
}


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("family", ["glm4v", "qwen2_5_vl", "qwen3_vl", "llava_onevision"])
def test_rope_scaling(
    family: str,
    scaling: str,
    served: Callable[..., Served],
    tiny_folder: Callable[..., Path],
    tiny_model: Callable[..., Any],
    pictures: list[Image.Image],
) -> None:
    options = SCALINGS[scaling]
    engine, folder, model = served(family, **options), tiny_folder(family, **options), tiny_model(family, **options)
    one = full_prefill(model, folder, pictures[:1], QUESTION)
    assert _error(engine.logits(engine.compile(pictures[:1]), QUESTION), one.question_logits) <= 1e-4
    many = masked_prefill(model, folder, pictures, QUESTION)
    assert _error(engine.logits(engine.compile(pictures), QUESTION), many.question_logits) <= 1e-4


@pytest.mark.parametrize("family", ["glm4v", "qwen3_vl"])
def test_frequencies_follow_the_length_of_the_request(
    family: str,
    served: Callable[..., Served],
    tiny_folder: Callable[..., Path],
    tiny_model: Callable[..., Any],
    pictures: list[Image.Image],
) -> None:
    """Beyond the original length dynamic scaling makes a page's deeper layers depend on the length they were compiled
    at, so only what is exact is asserted: the first layer's keys, which no attention has touched."""
    engine = served(family, rope="dynamic")  # original length: 16 positions
    context, _ = engine.link(engine.compile(pictures), QUESTION)
    reference = full_prefill(
        tiny_model(family, rope="dynamic"), tiny_folder(family, rope="dynamic"), pictures, QUESTION
    )
    count = context.tokens
    ours, theirs = context.cache.key_buffer[0, :, :count], reference.keys[0, :, :count]
    assert _error(ours, theirs) <= 1e-5 * float(theirs.abs().max())


def test_pages_of_different_sizes_are_not_compiled_together(
    served: Callable[..., Served], pictures: list[Image.Image]
) -> None:
    engine = served("qwen2_vl")
    with pytest.raises(CompileError, match="equally many visual tokens"):
        compile_pages(engine.model, engine.template, pictures[:2], [KEY] * 2)


def test_pages_that_the_image_processor_refuses(served: Callable[..., Served]) -> None:
    engine = served("qwen2_vl")
    with pytest.raises(CompileError, match="refuses a page of 2000 x 2 pixels"):
        engine.compile([Image.new("RGB", (2000, 2))])


@pytest.fixture
def overflowing(served: Callable[..., Served]) -> Iterator[Served]:
    engine = served("glm4v")
    weight = engine.model.model.model.language_model.layers[0].self_attn.v_proj.weight
    kept = weight.data.clone()
    weight.data[0, 0] = float("inf")
    yield engine
    weight.data.copy_(kept)


def test_blocks_that_are_not_finite_are_refused(overflowing: Served, pictures: list[Image.Image]) -> None:
    with pytest.raises(CompileError, match=r"not finite.*bfloat16"):
        overflowing.compile(pictures[:1])


def test_hooks_are_gone_after_a_failed_compilation(overflowing: Served, pictures: list[Image.Image]) -> None:
    with pytest.raises(CompileError):
        overflowing.compile(pictures[:1])
    assert not any(module._forward_hooks for module in overflowing.model.model.modules())
