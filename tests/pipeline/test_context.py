"""Answering from texts that the caller brings: their order, their caches, their scores, and what they cannot reach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from qvpic_rag import QVPIC, Document
from qvpic_rag.demo import demo_documents
from qvpic_rag.errors import ConfigError, InputError

BADGE = "What is the badge code of Omar Reyes?"
NEW = Document("The badge code of Omar Reyes is ZW-77.", "a note")


def named(*names: str) -> list[Document]:
    found = {document.source: document for document in demo_documents()}
    return [found[name] for name in names]


def sources(pages: Sequence[Any]) -> list[str]:
    return [page.source for page in pages]


def test_the_order_is_the_callers(rag: QVPIC) -> None:
    for names in (["travel.txt", "badges.txt"], ["badges.txt", "travel.txt"]):
        answer = rag.ask(BADGE, context=named(*names), max_new_tokens=16)
        assert list(dict.fromkeys(sources(answer.route.pages))) == names
        for name in names:
            numbers = [page.number for page in answer.route.pages if page.source == name]
            assert numbers == list(range(len(numbers)))
        assert answer.route.compiled == ()
        assert answer.route.note == ""


def test_retrieved_pages_given_back_are_the_same_request(rag: QVPIC) -> None:
    first = rag.ask(BADGE, top_k=4, max_new_tokens=16)
    texts = [Document(rag.page(page.page_id).text, page.source) for page in first.route.pages]
    again = rag.ask(BADGE, context=texts, max_new_tokens=16)
    assert again.text == first.text
    assert again.route.compiled == ()
    for mine, theirs in zip(again.route.pages, first.route.pages, strict=True):
        assert (mine.page_id, mine.dpi, mine.rank, mine.tokens) == (
            theirs.page_id,
            theirs.dpi,
            theirs.rank,
            theirs.tokens,
        )
        assert mine.score == pytest.approx(theirs.score, abs=1e-5)


def test_scores_are_of_the_query_not_of_the_prompt(rag: QVPIC) -> None:
    context = named("badges.txt", "parcels.txt")
    prompt = f"Use the pages to answer.\nQuestion: {BADGE}\nAnswer:"
    framed = rag.ask(prompt, query=BADGE, context=context, max_new_tokens=2)
    bare = rag.ask(BADGE, context=context, max_new_tokens=2)
    assert [page.score for page in framed.route.pages] == [page.score for page in bare.route.pages]
    assert framed.usage.query_tokens > bare.usage.query_tokens
    vector = rag.engine.embedder.encode([BADGE], query=True)[0]
    texts = rag.engine.embedder.encode([rag.page(page.page_id).text for page in bare.route.pages])
    assert [page.score for page in bare.route.pages] == pytest.approx(list(np.asarray(texts) @ vector), abs=1e-5)


def test_a_new_text_is_compiled_once(open_rag: Callable[..., QVPIC]) -> None:
    rag = open_rag()
    documents = [document.source for document in rag.bank.documents()]
    first = rag.ask(BADGE, context=[NEW], max_new_tokens=16)
    second = rag.ask(BADGE, context=[NEW], max_new_tokens=16)
    assert len(first.route.compiled) == 1
    assert first.timing.compile is not None
    assert second.route.compiled == ()
    assert second.text == first.text
    assert sources(second.route.pages) == ["a note"]
    assert [document.source for document in rag.bank.documents()] == documents  # nothing is ingested by asking


def test_a_text_that_comes_twice_is_read_once(rag: QVPIC) -> None:
    once = named("badges.txt")
    twice = [*once, Document(once[0].text, "a copy")]
    pages = rag.ask(BADGE, context=twice, max_new_tokens=2).route.pages
    assert pages == rag.ask(BADGE, context=once, max_new_tokens=2).route.pages


@pytest.mark.parametrize("context", [[], [Document(" \n", "blank")]])
def test_nothing_to_read_is_said(rag: QVPIC, context: list[Document]) -> None:
    answer = rag.ask(BADGE, context=context, max_new_tokens=4)
    assert answer.route.pages == ()
    assert "No page came with the question" in answer.route.note


def test_other_namespaces_are_not_reached(open_rag: Callable[..., QVPIC]) -> None:
    """A text that another namespace compiled is compiled again: nobody learns what others hold."""
    mine, theirs = open_rag(), open_rag(namespace="theirs")
    mine.ask(BADGE, context=[NEW], max_new_tokens=2)
    assert len(theirs.ask(BADGE, context=[NEW], max_new_tokens=2).route.compiled) == 1


def test_streams_take_it_too(rag: QVPIC) -> None:
    context = named("badges.txt")
    stream = rag.stream(BADGE, context=context, max_new_tokens=16)
    assert "".join(stream) == rag.ask(BADGE, context=context, max_new_tokens=16).text


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"context": ["a text"]}, InputError, "Document"),
        ({"query": 3}, InputError, "query"),
        ({"query": " "}, InputError, "empty"),
        ({"contexts": []}, ConfigError, "context"),
    ],
)
def test_wrong_options(rag: QVPIC, options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        rag.ask(BADGE, **options)
