"""Retrieve, then read: full prefill of the text of the nearest pages, in the request's order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.baselines.conftest import World
from tests.baselines.fakes import BEFORE, PAGES, Letters, page, request
from tests.matrix import families

ORDERS = [(0, 1, 2, 3), (3, 0, 2, 1), (1, 2, 3, 0)]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_nearest_pages_are_read_in_the_requests_order(
    count: int, order: tuple[int, ...], world: Callable[..., World]
) -> None:
    here = world("qwen3")
    asked = request([PAGES[place] for place in order], before=BEFORE)
    vectors = Letters().encode([*(each.text for each in asked.pages), asked.query])
    scores = vectors[:-1] @ vectors[-1]
    limit = sorted(scores)[-count]
    chosen = [each for each, score in zip(asked.pages, scores, strict=True) if score >= limit]
    assert len(chosen) == count
    assert torch.equal(here.asked(f"top{count}@text", asked), here.asked("full@text", request(chosen, before=BEFORE)))


@families(text=True)
def test_more_pages_than_there_are_are_all_of_them(family: str, world: Callable[..., World]) -> None:
    here = world(family)
    assert torch.equal(here.asked("top9@text", request()), here.asked("full@text", request()))


def test_of_equally_near_pages_the_first_ones_are_read(world: Callable[..., World]) -> None:
    here = world("llama")
    alike = [page(number, text) for number, text in enumerate(("red door", "door red", "rood red d", "doorred"))]
    assert torch.equal(here.asked("top2@text", request(alike)), here.asked("full@text", request(alike[:2])))


def test_pages_that_are_not_read_do_not_count(world: Callable[..., World]) -> None:
    here = world("llama")
    method = here.method("top1@text")
    cost = method.prepare(PAGES, "")
    assert (cost.pages, cost.nbytes) == (4, 4 * 26 * 4)
    assert method.prepare(PAGES, BEFORE).pages == 0  # embeddings hold whatever stands before pages
    answer = method.answer(request())
    longest = max(len(here.subject.prompts.chunk(each)) for each in PAGES)
    assert answer.usage.context_tokens <= len(here.subject.prompts.head("")) + longest
    assert answer.route.pages == ()
