"""Exact-prefix caching: whatever came before, logits are full prefill's, and what is shared is not computed again."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from qvpic_rag.baselines.base import Request
from qvpic_rag.baselines.prefix_cache import _ROOM
from qvpic_rag.errors import UnsupportedModelError
from tests.baselines.conftest import World
from tests.baselines.fakes import BEFORE, PAGES, answered, calls, request
from tests.matrix import families
from tests.tiny import TEXT_FAMILIES

LONG = "Say it again and again. " * 30  # more than a kept buffer has room for

SEQUENCE: dict[str, Request] = {
    "at first": request(PAGES[:2]),
    "the same again": request(PAGES[:2]),
    "longer": request(PAGES[:4]),
    "shorter": request(PAGES[:1]),
    "another order": request((PAGES[0], PAGES[2], PAGES[1])),
    "other words before": request(PAGES[:2], before=BEFORE),
    "no page": request((), before=BEFORE),
    "back again": request(PAGES[:2], before=BEFORE),
    "a long question": request(PAGES[:3], before=BEFORE, after=LONG),
    "a short one after it": request(PAGES[:3], before=BEFORE),
    "a page twice": request((PAGES[0], PAGES[0], PAGES[1]), before=BEFORE),
    "other pages": request(PAGES[2:], new_tokens=5),
    "after an answer": request(PAGES[2:][::-1]),
}


def _sequence(here: World, spec: str) -> None:
    method, full = here.method(spec), here.method(spec.replace("prefix", "full"))
    model = here.subject.model
    for name, asked in SEQUENCE.items():
        method.prepare(asked.pages, asked.before)
        answer, ours = answered(model, method, asked)
        expected, theirs = answered(model, full, asked)
        assert float((ours - theirs).abs().max()) <= 1e-4, name
        assert (answer.text, answer.usage) == (expected.text, expected.usage), name


def test_the_long_question_is_long(world: Callable[..., World]) -> None:
    assert len(world("qwen2").subject.prompts.tail(LONG)) > _ROOM


@families(text=True)
def test_texts_in_any_sequence_are_full_prefill(family: str, world: Callable[..., World]) -> None:
    _sequence(world(family), "prefix@text")


@pytest.mark.parametrize("family", ["glm4v", "glm46v", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava_onevision2"])
def test_pictures_in_any_sequence_are_full_prefill(family: str, world: Callable[..., World]) -> None:
    _sequence(world(family), "prefix@72")


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_bfloat16_follows_full_prefill(family: str, world: Callable[..., World]) -> None:
    """The first request of a kind computes what full prefill does, in two passes."""
    here = world(family, "bfloat16")
    exact = world(family).asked("full@text", request())
    ours, plain = here.asked("prefix@text", request()), here.asked("full@text", request())
    assert float((ours - exact).abs().max()) <= 4 * float((plain - exact).abs().max())


def _base(here: World) -> Any:
    return here.subject.model.text_model


@pytest.mark.parametrize(("family", "spec"), [("llama", "prefix@text"), ("qwen3_vl", "prefix@72")])
def test_what_is_shared_is_not_computed_again(family: str, spec: str, world: Callable[..., World]) -> None:
    here = world(family)
    method = here.method(spec)
    method.prepare(PAGES, "")
    context = method.answer(request(PAGES[:2])).usage.context_tokens
    more = method.answer(request(PAGES[:3])).usage.context_tokens - context
    method.answer(request(PAGES[:2]))
    tail = len(here.subject.prompts.tail(request().after))
    with calls(_base(here)) as decoded:
        method.answer(request(PAGES[:2]))
    assert decoded == [tail]
    with calls(_base(here)) as decoded:
        method.answer(request(PAGES[:3]))
    assert decoded == [more, tail]
    with calls(_base(here)) as decoded:
        method.answer(request(PAGES[:1]))
    assert decoded == [tail]


def test_the_vision_encoder_sees_new_pages_only(world: Callable[..., World]) -> None:
    here = world("qwen2_5_vl")
    method = here.method("prefix@72")
    method.answer(request(PAGES[:2]))
    with calls(here.subject.model.model.model.visual) as seen:
        method.answer(request(PAGES[:2]))
        assert seen == []
        method.answer(request(PAGES[:3]))
        one = here.subject.vision.encode_images([here.subject.image(PAGES[2], 72)], together=True)
        assert seen == [len(one.tensors["pixel_values"])]


def test_pictures_that_depend_on_others_are_refused(world: Callable[..., World]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"encodes a picture differently.*prefix@text"):
        world("llava_onevision").method("prefix@72")


def test_a_failing_model_leaves_nothing_wrong_behind(world: Callable[..., World]) -> None:
    """It fails in its last layer, when the first layers' part of the buffer is overwritten already."""
    here = world("qwen3")
    method, model = here.method("prefix@text"), here.subject.model
    asked = request(PAGES[:3])
    expected = answered(model, method, asked)[1]

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    handle = model.text_model.layers[-1].register_forward_pre_hook(fail)
    try:
        with pytest.raises(RuntimeError, match="out of memory"):
            method.answer(request([PAGES[0], PAGES[3], PAGES[3]]))
    finally:
        handle.remove()
    assert torch.allclose(answered(model, method, asked)[1], expected, atol=1e-5)


def test_forgetting_begins_anew(world: Callable[..., World]) -> None:
    here = world("llama")
    method = here.method("prefix@text")
    method.answer(request())
    method.forget()
    with calls(_base(here)) as decoded:
        method.answer(request())
    assert len(decoded) == 2


@pytest.mark.parametrize(("family", "spec"), [("llama", "prefix@text"), ("qwen2_vl", "prefix@72")])
def test_threads_at_once_get_full_prefill(family: str, spec: str, world: Callable[..., World]) -> None:
    here = world(family)
    method, full = here.method(spec), here.method(spec.replace("prefix", "full"))
    orders = [PAGES[:3], PAGES[1::-1], PAGES[2::-1], PAGES[:1], PAGES[1:3]] * 4
    asked = [request(pages, after=f"Is it {place}?", new_tokens=6) for place, pages in enumerate(orders)]
    method.prepare(PAGES, "")
    expected = [full.answer(each) for each in asked]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(method.answer, asked))
    assert [(each.text, each.usage) for each in found] == [(each.text, each.usage) for each in expected]
