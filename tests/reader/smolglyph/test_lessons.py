"""What is taught: kinds of pages, tasks, and what stands in for SmolLM2's answers."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from qvpic_rag.reader.pictures import Look
from qvpic_rag.reader.smolglyph.corpus import Corpus
from qvpic_rag.reader.smolglyph.lessons import Answered, Lesson, Prose, Shelf, vocabulary_words
from qvpic_rag.reader.smolglyph.pages import looks
from qvpic_rag.reader.smolglyph.recipe import TASKS, Stage
from qvpic_rag.reader.smolglyph.requests import BRIEFLY, CONTINUE, REPEAT, Prompts
from tests.reader.smolglyph.texts import english

STAGE = Stage(
    "a", 10, 1500, adam=0.1, lora=0.1, look=0.25, kinds={"prose": 1.0}, tasks={"repeat": 1.0}, sheets=4, questions=3
)
ANSWERED = [Answered(f"Note {n}: the hall is closed on day {n}.", "What is it?", f"A note, {n}.") for n in range(9)]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus(tuple(english(0, 60)), tuple(english(100, 10)), tuple(english(200, 10)))


@pytest.fixture(scope="module")
def drawn() -> list[Look]:
    return looks(3, 1)


def _shelf(stage: Stage, corpus: Corpus, drawn: list[Look], prompts: Prompts, seed: int = 0) -> Shelf:
    prose = Prose(corpus, "train", prompts.tokenizer)
    words = vocabulary_words(prompts.tokenizer)
    return Shelf(random.Random(seed), stage, "train", drawn, prose, words, prompts, ANSWERED)


def _text(prompts: Prompts, ids: list[int]) -> str:
    return str(prompts.tokenizer.decode(ids))


def test_words_of_the_vocabulary_are_printable(prompts: Prompts) -> None:
    words = vocabulary_words(prompts.tokenizer)
    assert len(words) > 100
    assert all(word.isascii() and word.isprintable() and " " not in word for word in words)
    for word in words:
        assert len(prompts.ids(f" {word}")) == 1


def test_paragraphs_with_rare_tokens_are_drawn_more_often(prompts: Prompts) -> None:
    usual = ["the module is in the file and the file is in the module " * 2] * 9
    corpus = Corpus((*usual, "Quixotic zephyrs jumbled vexed lynx whims by dawn."), ("x",), ("x",))
    prose, rng = Prose(corpus, "train", prompts.tokenizer), random.Random(0)
    drawn = Counter(prose.draw(rng, 200)[:4] for _ in range(400))
    assert drawn["Quix"] > 60  # a tenth would be 40


def test_stretches_begin_with_a_sentence(prompts: Prompts, corpus: Corpus) -> None:
    prose, rng = Prose(corpus, "train", prompts.tokenizer), random.Random(0)
    for _ in range(50):
        text = prose.draw(rng, 100)
        assert 0 < len(text) <= 100
        assert text[0].isupper()


@pytest.mark.parametrize("kind", ["prose", "facts", "words", "codes"])
def test_each_kind_of_page_is_drawn(kind: str, corpus: Corpus, drawn: list[Look], prompts: Prompts) -> None:
    shelf = _shelf(replace(STAGE, kinds={kind: 1.0}, sheets=6), corpus, drawn, prompts)
    again = _shelf(replace(STAGE, kinds={kind: 1.0}, sheets=6), corpus, drawn, prompts)
    assert len(shelf.sheets) == 6
    assert [each.text for each in shelf.sheets] == [each.text for each in again.sheets]
    assert len({each.text for each in shelf.sheets}) > 1
    for each in shelf.sheets:
        assert each.text.replace("\n", "").isprintable()
        assert "<|" not in each.text


def _lesson(task: str, corpus: Corpus, drawn: list[Look], prompts: Prompts, **change: object) -> Lesson:
    stage = replace(STAGE, tasks={task: 1.0}, **change)  # type: ignore[arg-type]
    return _shelf(stage, corpus, drawn, prompts).lesson(random.Random(3))


@pytest.mark.parametrize("task", TASKS)
def test_a_lesson_fills_a_batch(task: str, corpus: Corpus, drawn: list[Look], prompts: Prompts) -> None:
    lesson = _lesson(task, corpus, drawn, prompts)
    assert lesson.task == task
    sizes = [
        sum(rows * columns for rows, columns in each.grids) + sum(len(a.prompt) + len(a.answer) for a in each.asked)
        for each in lesson.contexts
    ]
    assert 1125 < sum(sizes) + sum(len(each.open) for each in lesson.contexts) < 1125 + 2500
    named = [page for each in lesson.contexts for page, grid in zip(each.pages, each.grids, strict=True) if grid[0]]
    assert named == list(range(len(lesson.places)))
    grids = [grid for each in lesson.contexts for grid in each.grids if grid[0]]
    assert grids == [sheet.grid(dpi) for sheet, dpi in lesson.places]


def test_repeating_is_the_pages_text(corpus: Corpus, drawn: list[Look], prompts: Prompts) -> None:
    lesson = _lesson("repeat", corpus, drawn, prompts)
    for context in lesson.contexts:
        (asked,) = context.asked
        assert REPEAT in _text(prompts, asked.prompt)
        sheet, _ = lesson.places[context.pages[0]]
        assert _text(prompts, asked.answer) == f"{sheet.text}<|im_end|>"


def test_continuing_is_what_follows_in_the_source(corpus: Corpus, drawn: list[Look], prompts: Prompts) -> None:
    lesson = _lesson("continue", corpus, drawn, prompts)
    for context in lesson.contexts:
        (asked,) = context.asked
        assert CONTINUE in _text(prompts, asked.prompt)
        whole = f"{lesson.places[context.pages[0]][0].text} {_text(prompts, asked.answer)}"
        assert any(whole in text for text in corpus.train)


def test_questions_about_facts_want_brief_answers(corpus: Corpus, drawn: list[Look], prompts: Prompts) -> None:
    lesson = _lesson("facts", corpus, drawn, prompts, pages={"2": 1.0}, isolated=1.0)
    for context in lesson.contexts:
        assert len(context.pages) == 2
        assert context.isolated
        assert len(context.asked) == 4
        for asked in context.asked:
            assert BRIEFLY in _text(prompts, asked.prompt)
            assert len(_text(prompts, asked.answer).removesuffix("<|im_end|>").split()) <= 6


def test_what_a_step_asks_does_not_depend_on_the_steps_before(
    corpus: Corpus, drawn: list[Look], prompts: Prompts
) -> None:
    """A run that goes on in the middle of a shelf asks what an uninterrupted one asks."""
    stage = replace(STAGE, kinds={"facts": 1.0}, tasks={"facts": 0.5, "words": 0.5}, sheets=40)
    shelf = _shelf(stage, corpus, drawn, prompts)
    for step in range(12):
        found = shelf.lesson(random.Random(step))
    again = _shelf(stage, corpus, drawn, prompts).lesson(random.Random(11))
    assert found.contexts == again.contexts
    assert [(sheet.text, dpi) for sheet, dpi in found.places] == [(sheet.text, dpi) for sheet, dpi in again.places]


def test_pages_to_look_at_do_not_depend_on_what_is_asked(corpus: Corpus, drawn: list[Look], prompts: Prompts) -> None:
    asks = replace(STAGE, kinds={"facts": 0.5, "prose": 0.5}, sheets=12)
    looks_only = replace(asks, look=1.0, tasks={})
    texts = [[each.text for each in _shelf(stage, corpus, drawn, prompts).sheets] for stage in (asks, looks_only)]
    assert texts[0] == texts[1]


def test_pages_of_words_have_no_pictures(corpus: Corpus, drawn: list[Look], prompts: Prompts) -> None:
    lesson = _lesson("words", corpus, drawn, prompts)
    assert lesson.places == []
    assert all(context.grids == [(0, 0)] for context in lesson.contexts)


def test_own_answers_have_a_teacher_who_reads_the_same_text(
    corpus: Corpus, drawn: list[Look], prompts: Prompts
) -> None:
    lesson = _lesson("own", corpus, drawn, prompts)
    assert lesson.teachers is not None
    assert len(lesson.teachers) == len(lesson.contexts)
    for context, teacher in zip(lesson.contexts, lesson.teachers, strict=True):
        assert context.asked[0] == teacher.asked[0]
        read = _text(prompts, [*teacher.open, *teacher.close]).removesuffix("\n\n")
        if context is not teacher:
            assert read == lesson.places[context.pages[0]][0].text
        assert any(each.text.startswith(read) for each in ANSWERED)
    assert any(context is teacher for context, teacher in zip(lesson.contexts, lesson.teachers, strict=True))


def test_resolutions_follow_the_stage(corpus: Corpus, drawn: list[Look], prompts: Prompts) -> None:
    for high in (0.0, 1.0):
        lesson = _lesson("repeat", corpus, drawn, prompts, high=high)
        assert {dpi for _, dpi in lesson.places} == {120 if high else 72}
