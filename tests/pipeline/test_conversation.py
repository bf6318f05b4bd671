"""Conversations taken apart: turns joined, pages cut out, and never the user's own words."""

from __future__ import annotations

import pytest

from qvpic_rag import QVPIC, Document, Message, Page
from qvpic_rag.errors import InputError
from qvpic_rag.pipeline.conversation import Asked, asked, user_words
from qvpic_rag.pipeline.recognise import KnownTexts

FAQ = Page(("How do I reset my password?",), "How do I reset my password?", "faq", 0)
LONG = Page(
    ("The plan that costs least is the plan of the poor.",),
    "The plan that costs least is the plan of the poor.",
    "l",
    0,
)
YES = Page(("yes",), "yes", "y", 0)
KNOWN = KnownTexts([FAQ, LONG, YES])


def ask(*turns: str, context: tuple[Document | Page, ...] = ()) -> Asked:
    """Turns such as ``u Hello.``: the first letter is the role's."""
    roles = {"s": "system", "u": "user", "a": "assistant"}
    return asked([Message(roles[turn[0]], turn[2:]) for turn in turns], context, KNOWN.find)


def test_turns() -> None:
    found = ask("s A", "u b", "u c", "a d", "s E", "a e", "u f")
    assert (found.system, found.question, found.query) == ("A\n\nE", "f", "f")
    assert found.history == (Message("user", "b\n\nc"), Message("assistant", "d\n\ne"))
    assert found.context == ()


def test_a_conversation_that_was_cut_begins_with_an_empty_turn() -> None:
    assert ask("a Hello.", "u Who?").history == (Message("user", ""), Message("assistant", "Hello."))


@pytest.mark.parametrize("turns", [(), ("s a",), ("u a", "a b"), ("a b",)])
def test_somebody_must_ask(turns: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="the user's"):
        ask(*turns)


def test_pages_of_all_turns_but_the_assistants() -> None:
    found = ask(f"s {LONG.text}", "u yes\nWho?", f"a {FAQ.text}", "u yes\nAnd?")
    assert found.context == (LONG, YES)
    assert found.system == "[pages]"
    assert [turn.content for turn in found.history] == ["[pages]\nWho?", FAQ.text]
    assert (found.question, found.query) == ("[pages]\nAnd?", "And?")


def test_nothing_is_recognised_beside_given_context() -> None:
    """Else a document that equals an instruction of a prompt would take it out of everybody's requests."""
    given = Document("Given.", "g")
    found = ask(f"s {LONG.text}", f"u {LONG.text}\nWho?", context=(given,))
    assert (found.context, found.system, found.question) == ((given,), LONG.text, f"{LONG.text}\nWho?")


@pytest.mark.parametrize(
    ("turn", "cut", "query", "pages"),
    [
        ("FAQ", "FAQ", "FAQ", []),
        ("yes", "yes", "yes", []),
        ("LONG\n\nFAQ", "LONG\n\nFAQ", "LONG\n\nFAQ", []),
        ("Context:\nLONG\nQuery: FAQ\nAnswer: ", "Context:\n[pages]\nQuery: FAQ\nAnswer: ", "FAQ", [LONG]),
        ("Question: FAQ \nContext: yes\nAnswer:", "Question: FAQ \nContext: yes\nAnswer:", "FAQ", []),
        ("Question: FAQ \nContext: LONG\nAnswer:", "Question: FAQ \nContext: [pages]\nAnswer:", "FAQ", [LONG]),
        ("yes\nQuestion: Is it true: LONG", "[pages]\nQuestion: Is it true: LONG", "Is it true: LONG", [YES]),
        ("Query:\nyes\n", "Query:\nyes\n", "yes", []),
    ],
)
def test_what_the_user_asks_is_no_retrieved_text(turn: str, cut: str, query: str, pages: list[Page]) -> None:
    turn, cut, query = (each.replace("FAQ", FAQ.text).replace("LONG", LONG.text) for each in (turn, cut, query))
    for before in ((), ("s Be brief.", "u Hello.", "a Hello.")):
        found = ask(*before, f"u {turn}")
        assert (found.question, found.query, list(found.context)) == (cut, query, pages)


def test_context_and_question_in_two_messages() -> None:
    found = ask(f"u {LONG.text}", "u Who?")
    assert (found.question, found.query, found.context) == ("[pages]\n\nWho?", "Who?", (LONG,))


@pytest.mark.parametrize(
    ("turn", "words"),
    [
        ("Who?", "Who?"),
        ("[pages]\n\nWho?", "Who?"),
        ("[pages]\n\nQuestion: Who? \nAnswer:", "Who?"),
        ("Question: Who\nis it? \nContext: [pages] \nAnswer:", "Who\nis it?"),
        ("A text with\nQuestion: No?\nAnswer: no\nQuestion: Who?", "Who?"),
        ("Context information is below.\n-----\n[pages]\n-----\nQuery: Who?\nAnswer: ", "Who?"),
        ("The original query is as follows: Who?\nWe have provided an existing answer: Ida\nRefined Answer: ", "Who?"),
        ("New Context: [pages]\nQuery: Who?\nOriginal Answer: Ida\nNew Answer: ", "Who?"),
        ("My question: Who?", "My question: Who?"),
        ("Question:\nAnswer:", "Question:\nAnswer:"),
        ("[pages]", ""),
    ],
)
def test_user_words(turn: str, words: str) -> None:
    assert user_words(turn) == words


def test_through_the_engine(rag: QVPIC) -> None:
    page = next(iter(rag.bank.pages())).page
    found = rag.read([Message("user", f"{page.text}\n\nWhat is the badge code of Omar Reyes?")])
    assert found.context == (page,)
    answer = rag.ask(**vars(found), max_new_tokens=2)
    assert [each.page_id for each in answer.route.pages] == [page.digest]
