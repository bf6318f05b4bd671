"""Full prefill: what transformers computes of the same prompt."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.baselines.conftest import World
from tests.baselines.fakes import BEFORE, PAGES, QUESTION, answered, page, request
from tests.baselines.reference import everything, greedy, logits, picture, prompt_ends, text_chunk, tokens
from tests.matrix import Case, cases, families
from tests.reference import full_prefill
from tests.tiny import TEXT_FAMILIES, page_image


@cases(text=True)
def test_text_equals_one_pass_over_the_prompt(case: Case, world: Callable[..., World]) -> None:
    here = world(case.family, case.dtype)
    head = prompt_ends(here.model, here.folder, QUESTION)[0]
    chunks = [text_chunk(here.folder, each.text) for each in PAGES]
    here.check(
        case,
        "full@text",
        request(before=BEFORE),
        lambda model, tail: everything(model, head + tokens(here.folder, BEFORE), chunks, tail),
    )


@pytest.mark.parametrize("before", ["", BEFORE])
@families(text=True)
def test_text_is_answered_as_generate_answers_the_templates_own_prompt(
    family: str, before: str, world: Callable[..., World]
) -> None:
    here = world(family)
    content = before + "".join(f"{each.text}\n\n" for each in PAGES)
    head, tail = prompt_ends(here.model, here.folder, QUESTION)
    row = [*head, *tokens(here.folder, content), *tail]
    asked = request(before=before, new_tokens=8)
    answer = here.method("full@text").answer(asked)
    generated = greedy(here.model, row, 8)
    assert answer.text == here.subject.model.tokenizer.decode(generated, skip_special_tokens=True)
    assert answer.usage.output_tokens == len(generated)
    assert answer.usage.context_tokens == len(row) - len(tail)
    assert answer.usage.query_tokens == len(tail)


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_text_models_get_the_templates_own_tokens(family: str, world: Callable[..., World]) -> None:
    """Parts tokenised one by one are the whole conversation tokenised at once."""
    here = world(family)
    prompts = here.subject.prompts
    row = prompts.head(BEFORE) + [token for each in PAGES for token in prompts.chunk(each)] + prompts.tail(QUESTION)
    content = BEFORE + "".join(f"{each.text}\n\n" for each in PAGES) + QUESTION
    turns = [{"role": "user", "content": content}]
    tokenizer = here.subject.model.tokenizer
    assert row == tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)


@cases()
def test_pictures_equal_one_pass_over_the_prompt(case: Case, world: Callable[..., World]) -> None:
    """One picture for every family: several are seen without crops by LLaVA-OneVision."""
    here = world(case.family, case.dtype)
    pages = PAGES[:1] if here.subject.vision.counts_pictures else PAGES[:3]
    head = prompt_ends(here.model, here.folder, QUESTION)[0]
    here.check(
        case,
        "full@72",
        request(pages, before=BEFORE),
        lambda model, tail: everything(
            model,
            head + tokens(here.folder, BEFORE),
            [picture(model, here.folder, page_image(each.number)) for each in pages],
            tail,
        ),
    )


@families()
def test_pictures_are_answered_as_generate_answers_them(family: str, world: Callable[..., World]) -> None:
    here = world(family)
    pages = PAGES[:1] if here.subject.vision.counts_pictures else PAGES[:3]
    reference = full_prefill(here.model, here.folder, [page_image(each.number) for each in pages], QUESTION)
    answer, ours = answered(here.subject.model, here.method("full@72"), request(pages, new_tokens=8))
    assert float((ours - reference.logits).abs().max()) <= 1e-4
    assert answer.text == here.subject.model.tokenizer.decode(reference.tokens, skip_special_tokens=True)


@families(text=True)
def test_no_pages_are_a_plain_question(family: str, world: Callable[..., World]) -> None:
    here = world(family)
    head, tail = prompt_ends(here.model, here.folder, QUESTION)
    expected = logits(here.model, everything(here.model, head, [], tail))
    for spec in ("full@text",) if family in TEXT_FAMILIES else ("full@text", "full@72"):
        assert float((here.asked(spec, request(())) - expected).abs().max()) <= 1e-4


def test_white_space_around_a_page_is_not_read(world: Callable[..., World]) -> None:
    here = world("llama")
    padded = page(0, f"\n  {PAGES[0].text} \n")
    assert torch.equal(here.asked("full@text", request([padded])), here.asked("full@text", request(PAGES[:1])))
