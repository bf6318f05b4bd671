"""Lessons: requests as applications send them, and shelves whose contexts hold what their questions need."""

from __future__ import annotations

import random
from collections import Counter
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from qvpic_rag.reader.facts import NOT_STATED, FactQuestion, World
from qvpic_rag.reader.lessons import DPIS, Drawn, Prompts, Shelf, draw_world, free_text, questions
from qvpic_rag.reader.pictures import CELL, Look
from qvpic_rag.reader.prompts import REFINE_STYLES, STYLES, SYSTEM_PROMPTS, conversation
from qvpic_rag.reader.samples import Asked
from qvpic_rag.reader.tokens import CHARACTERS, END
from qvpic_rag.records import Message
from tests.reader import reference

STATED = FactQuestion("What is the badge code of Omar?", "KX-12", "fact", (0,))
UNSTATED = FactQuestion("What is the gate key of Omar?", NOT_STATED, "not_stated", ())
EARLIER = [FactQuestion("Who owns desk 44?", "Ida Roth", "owner", (1,)), FactQuestion("Sure?", "yes", "yes_no", (0,))]


@pytest.fixture(scope="module")
def drawn(look: Look) -> list[Drawn]:
    rng = random.Random(1)
    return [draw_world(rng, "train", look, 6), free_text(rng, "train", look, 5), draw_world(rng, "train", look, 6)]


def text_of(tokenizer: Any, ids: list[int]) -> str:
    text: str = tokenizer.decode(ids)
    return text


def test_a_bare_question(prompts: Prompts, tokenizer: Any) -> None:
    asked = prompts.asked(random.Random(0), STATED, 0.0, [])
    assert asked.prompt == prompts.template.suffix([Message("user", STATED.text)])
    assert text_of(tokenizer, asked.prompt) == "What is the badge code of Omar?<|assistant|>\n"
    assert text_of(tokenizer, asked.answer) == f"KX-12{END}"
    assert asked.weight == max(1.0, 6 / len(asked.answer))
    assert 0 < asked.prompt_weight < 1


def framings(prompts: Prompts, question: FactQuestion) -> dict[tuple[int, ...], tuple[str, str | None, bool]]:
    """Token ids of every prompt that a question may arrive in: style, existing answer, whether turns came before."""
    found = {}
    turns = [(each.text, each.answer) for each in EARLIER]
    histories = [each for count in (0, 1, 2) for each in permutations(turns, count)]
    for style in STYLES:
        existings = {NOT_STATED, question.answer, *(each.answer for each in EARLIER)}
        for existing in existings if style in REFINE_STYLES else [None]:
            for history in histories:
                for system in (None, *SYSTEM_PROMPTS):
                    said = conversation(style, question.text, existing=existing, history=history, system=system)
                    found[tuple(prompts.template.suffix(said))] = style, existing, bool(history)
    return found


@pytest.mark.parametrize("question", [STATED, UNSTATED], ids=["stated", "not stated"])
def test_framed_questions(question: FactQuestion, prompts: Prompts, tokenizer: Any) -> None:
    """They are the prompts of the styles, id for id; refining returns the existing answer where pages do not help.

    The question itself, which is among those about the pages, never stands in an earlier turn: it has its answer there.
    """
    known, seen, turns = framings(prompts, question), Counter[str](), 0
    existings = set()
    for seed in range(300):
        asked = prompts.asked(random.Random(seed), question, 1.0, [EARLIER[0], question, EARLIER[1]])
        style, existing, history = known[tuple(asked.prompt)]
        seen[style] += 1
        turns += history
        existings.add(existing)
        right = existing if style in REFINE_STYLES and question is UNSTATED else question.answer
        assert text_of(tokenizer, asked.answer) == f"{right}{END}"
        assert (asked.weight, asked.prompt_weight) == (max(1.0, 6 / len(asked.answer)), 0.0)
    assert set(seen) == set(STYLES)
    others = [count for style, count in seen.items() if style not in ("bare", *REFINE_STYLES)]
    refined = sum(seen[style] for style in REFINE_STYLES)
    assert seen["bare"] > (2 if question is STATED else 1) * max(others)
    assert refined > 110 if question is UNSTATED else refined < 60
    assert 20 < turns < 80
    assert existings == {None, NOT_STATED, question.answer, "Ida Roth", "yes"}


def test_some_questions_are_framed(prompts: Prompts, tokenizer: Any) -> None:
    bare = f"{STATED.text}<|assistant|>\n"
    found = [
        text_of(tokenizer, prompts.asked(random.Random(seed), STATED, 0.3, EARLIER).prompt) == bare
        for seed in range(200)
    ]
    assert 0.6 < sum(found) / len(found) < 0.9


def test_a_framed_question_may_come_without_others(prompts: Prompts) -> None:
    for seed in range(60):
        assert prompts.asked(random.Random(seed), STATED, 1.0, []).prompt


def test_transcription(prompts: Prompts, drawn: list[Drawn], tokenizer: Any) -> None:
    page = drawn[0].pages[0]
    asked = prompts.transcription(page)
    assert text_of(tokenizer, asked.prompt) == "Transcribe the page.<|assistant|>\n"
    assert text_of(tokenizer, asked.answer) == "\n".join(page.lines) + END


def test_a_prefix_may_have_a_system_prompt(prompts: Prompts, tokenizer: Any) -> None:
    rng = random.Random(0)
    found = Counter(text_of(tokenizer, list(prompts.context(rng)[0])) for _ in range(300))
    told = {f"[gMASK]<sop><|system|>\n{system}<|user|>\n" for system in SYSTEM_PROMPTS}
    assert set(found) == {"[gMASK]<sop><|user|>\n", *told}
    assert 0.05 < sum(found[each] for each in told) / 300 < 0.16
    assert [text_of(tokenizer, list(ids)) for ids in prompts.context(rng)[1:]] == [
        "<|begin_of_image|>",
        "<|end_of_image|>",
    ]


def test_drawn_worlds(drawn: list[Drawn], look: Look) -> None:
    world = drawn[0]
    assert len(world.pages) == len(world.world.pages) == 6
    for number, (page, text) in enumerate(zip(world.pages, world.world.pages, strict=True)):
        assert page == look.page(text)
        picture = world.pictures[number]
        assert np.array_equal(picture, look.picture(page, world.dpis[number]))
        assert world.grid(number) == (picture.shape[0] // CELL, picture.shape[1] // CELL)
    again = draw_world(random.Random(1), "train", look, 6)
    assert (again.world, again.dpis) == (world.world, world.dpis)


def test_resolutions(look: Look) -> None:
    """All pages of a world low, all high, or mixed; or as asked for."""
    rng = random.Random(0)
    found = Counter(tuple(sorted(set(draw_world(rng, "train", look, 4).dpis))) for _ in range(60))
    assert set(found) == {(72,), (120,), DPIS}
    assert min(found.values()) > 8
    for dpi in DPIS:
        assert draw_world(rng, "train", look, 4, dpi=dpi).dpis == (dpi,) * 4


def test_free_text_says_nothing_and_fits(drawn: list[Drawn], look: Look) -> None:
    scribble = drawn[1]
    assert len(scribble.pages) == 5
    assert not scribble.world.facts
    assert not scribble.world.owned
    for seed in range(20):
        made = free_text(random.Random(seed), "train", look, 3)
        assert len(made.pages) == 3
        assert set("".join(made.world.pages)) <= set(CHARACTERS)
        assert made.world == free_text(random.Random(seed), "train", look, 3).world


def test_questions_differ(drawn: list[Drawn]) -> None:
    found = questions(random.Random(2), drawn[0].world, range(6), 8)
    assert len(found) == len({each.text for each in found}) == 8
    assert found == questions(random.Random(2), drawn[0].world, range(6), 8)
    assert questions(random.Random(2), World("train", ("x",), (), ()), [0], 3) == []


def test_a_shelf_knows_where_its_pictures_are(drawn: list[Drawn]) -> None:
    shelf = Shelf(drawn)
    assert len(shelf.pictures) == len(shelf.places) == len(set(shelf.places.values())) == 6 + 5 + 6
    for (number, page), place in shelf.places.items():
        assert shelf.pictures[place] is drawn[number].pictures[page]


def parts(asked: Asked, tokenizer: Any) -> tuple[str, str]:
    """The bare question and its answer."""
    prompt, answer = text_of(tokenizer, asked.prompt), text_of(tokenizer, asked.answer)
    return prompt.removesuffix("<|assistant|>\n"), answer.removesuffix(END)


def test_contexts_hold_what_their_questions_need(drawn: list[Drawn], prompts: Prompts, tokenizer: Any) -> None:
    shelf = Shelf(drawn)
    where = {place: key for key, place in shelf.places.items()}
    rng = random.Random(3)
    found = [shelf.context(rng, prompts, 3, 4, framed=0.0) for _ in range(60)]
    contexts = [context for context in found if context is not None]
    assert 25 < len(contexts) < 60  # a third of the worlds state nothing
    for context in contexts:
        assert len(context.asked) == 4
        numbers, pages = zip(*(where[place] for place in context.pages), strict=True)
        [number] = set(numbers)
        assert len(set(pages)) == 3
        assert context.grids == [drawn[number].grid(page) for page in pages]
        assert not context.isolated
        for asked in context.asked:
            question, answer = parts(asked, tokenizer)
            assert reference.answer((drawn[number].world.pages[page] for page in pages), question) == answer


def test_a_one_page_context_can_be_written_down(drawn: list[Drawn], prompts: Prompts, tokenizer: Any) -> None:
    shelf = Shelf(drawn)
    where = {place: key for key, place in shelf.places.items()}
    rng, silent = random.Random(4), 0
    for _ in range(30):
        context = shelf.context(rng, prompts, 1, 3, framed=0.0, isolated=True, transcribe=True)
        assert context is not None
        assert context.isolated
        number, page = where[context.pages[0]]
        assert context.asked[-1].copied
        assert not any(asked.copied for asked in context.asked[:-1])
        request, answer = parts(context.asked[-1], tokenizer)
        assert request == "Transcribe the page."
        assert answer == "\n".join(drawn[number].pages[page].lines)
        silent += len(context.asked) == 1
    assert silent > 3


def test_the_one_page_of_a_context_can_be_chosen(drawn: list[Drawn], prompts: Prompts) -> None:
    shelf = Shelf(drawn)
    for at in [(0, 2), (1, 4), (2, 0)]:
        context = shelf.context(random.Random(6), prompts, 1, 2, framed=0.0, transcribe=True, at=at)
        assert context is not None
        assert context.pages == [shelf.places[at]]
        assert context.grids == [drawn[at[0]].grid(at[1])]


def test_a_short_answer_weighs_as_much_as_a_name(prompts: Prompts) -> None:
    short = FactQuestion("Is the badge code of Omar KX-12?", "yes", "yes_no", (0,))
    asked = prompts.asked(random.Random(0), short, 0.0, [])
    assert asked.weight * len(asked.answer) == 6
