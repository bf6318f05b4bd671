"""EPIC: with all tokens computed again it is full prefill; with some, one token after the other says the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.baselines.conftest import World
from tests.baselines.fakes import BEFORE, PAGES, QUESTION, answered, calls, request
from tests.baselines.reference import everything, linked, picture, prompt_ends, recomputed, text_chunk, tokens
from tests.baselines.reference import logits as of
from tests.matrix import Case, cases, families
from tests.tiny import TEXT_FAMILIES, page_image


@cases(text=True)
def test_all_tokens_of_texts_again_are_full_prefill(case: Case, world: Callable[..., World]) -> None:
    here = world(case.family, case.dtype)
    head = prompt_ends(here.model, here.folder, QUESTION)[0]
    chunks = [text_chunk(here.folder, each.text) for each in PAGES]
    here.check(
        case,
        "epic1000@text",
        request(before=BEFORE),
        lambda model, tail: everything(model, head + tokens(here.folder, BEFORE), chunks, tail),
    )


@cases()
def test_all_tokens_of_pictures_again_are_full_prefill(case: Case, world: Callable[..., World]) -> None:
    """The reference sees every picture as if it were the only one, as LLaVA-OneVision's pages are compiled."""
    here = world(case.family, case.dtype)
    pages = PAGES[:3]
    head = prompt_ends(here.model, here.folder, QUESTION)[0] + tokens(here.folder, BEFORE)
    here.check(
        case,
        "epic1000@72",
        request(pages, before=BEFORE),
        lambda model, tail: everything(
            model, head, [picture(model, here.folder, page_image(each.number)) for each in pages], tail
        ),
    )


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("family", [*TEXT_FAMILIES, "glm4v", "qwen3_vl"])
def test_some_tokens_again_are_those_tokens_one_after_the_other(
    family: str, count: int, world: Callable[..., World]
) -> None:
    here = world(family)
    pages = PAGES[:3]
    ours = here.asked(f"epic{count}@text", request(pages, before=BEFORE))
    head, tail = prompt_ends(here.model, here.folder, QUESTION)
    head = head + tokens(here.folder, BEFORE)
    chunks = [text_chunk(here.folder, each.text).ids for each in pages]
    expected = recomputed(here.model, head, chunks, tail, count)
    assert float((ours - expected).abs().max()) <= 1e-4
    assert float((ours - recomputed(here.model, head, chunks, tail, count + 1)).abs().max()) > 1e-3


@families()
def test_the_first_token_of_a_picture_again(family: str, world: Callable[..., World]) -> None:
    """Between no token and all of them: what is computed again differs from both, and every page is seen."""
    here = world(family)
    asked = request(PAGES[:3])
    none, one, most = (here.asked(spec, asked) for spec in ("pic@72/prefix-free", "epic1@72", "epic20@72"))
    assert float((one - none).abs().max()) > 1e-4
    assert float((most - one).abs().max()) > 1e-4


@families()
def test_a_first_page_that_is_alone_needs_what_stands_before_it(family: str, world: Callable[..., World]) -> None:
    """Pages are compiled prefix-free: nothing is known of the head until tokens are computed again."""
    here = world(family)
    head, tail = prompt_ends(here.model, here.folder, QUESTION)
    chunk = picture(here.model, here.folder, page_image(0))
    free = of(here.model, linked(here.model, head, [chunk], tail, []))
    full = of(here.model, everything(here.model, head, [chunk], tail))
    asked = request(PAGES[:1])
    assert float((here.asked("pic@72/prefix-free", asked) - free).abs().max()) <= 1e-4
    assert float((here.asked("epic1000@72", asked) - full).abs().max()) <= 1e-4


def test_the_vision_encoder_does_not_run_online(world: Callable[..., World]) -> None:
    here = world("qwen3_vl")
    method = here.method("epic3@72")
    method.prepare(PAGES, "")
    method.answer(request(PAGES[:3]))  # compiles what stands before the pages, once for all requests
    model = here.subject.model
    with calls(model.model.model.visual) as seen, calls(model.text_model) as decoded:
        method.answer(request(PAGES[:3]))
    assert seen == []
    assert decoded[0] == 9  # three tokens of each of three pages, before the question


def test_answering_leaves_what_was_prepared_as_it_was(world: Callable[..., World]) -> None:
    here = world("qwen2")
    method = here.method("epic4@text")
    method.prepare(PAGES, "")
    first = answered(here.subject.model, method, request())[1]
    answered(here.subject.model, method, request(PAGES[::-1]))
    assert torch.equal(answered(here.subject.model, method, request())[1], first)


def test_pages_are_prepared_once_and_counted(world: Callable[..., World]) -> None:
    here = world("llama")
    method = here.method("epic4@text")
    cost, plain = method.prepare(PAGES, ""), here.method("pic@text/prefix-free").prepare(PAGES, "")
    assert cost.pages == 4
    assert cost.nbytes == plain.nbytes + 4 * 4 * 64 * 4  # four embeddings of 64 float32 numbers for each page
    assert method.prepare([*PAGES, PAGES[0]], "").pages == 0
