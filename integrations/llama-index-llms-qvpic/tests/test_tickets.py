"""Tickets and conversations without a model."""

from __future__ import annotations

import pickle

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.schema import (
    BaseNode,
    Document,
    ImageDocument,
    ImageNode,
    IndexNode,
    MetadataMode,
    NodeWithScore,
    QueryBundle,
    TextNode,
)
from qvpic_rag import Document as Text
from qvpic_rag import Message, Page
from qvpic_rag.errors import InputError
from qvpic_rag.pipeline.conversation import asked
from qvpic_rag.pipeline.recognise import KnownTexts

from llama_index.llms.qvpic import QVPICNodePostprocessor, TicketExpiredError
from llama_index.llms.qvpic.conversation import Request, request_of, turns_of
from llama_index.llms.qvpic.tickets import TICKETS, Ticket, TicketBook

PAGE = Page(("a page",), "a page", "s", 0)


def ticket(name: str, query: str = "q") -> Ticket:
    return Ticket(name, name, name, query, 0, 0.5)


def test_expiry() -> None:
    now = 0.0
    book = TicketBook(kept_s=10, clock=lambda: now)
    name = book.mint(ticket("a"))
    now = 9
    assert book.find(name) == ticket("a")  # and its time begins again
    now = 18
    assert book.find(name) == ticket("a")
    now = 40
    with pytest.raises(TicketExpiredError, match="again"):
        book.find(name)
    assert book.find("qvpic-0000000000000000") is None
    assert len(book) == 0


def test_bounded() -> None:
    book = TicketBook(kept=2)
    names = [book.mint(ticket(str(at))) for at in range(3)]
    assert len(book) == 2
    with pytest.raises(TicketExpiredError):
        book.find(names[0])


def test_nodes_survive_pickling_and_hide_the_ticket() -> None:
    node = TextNode(text="text", id_="n", metadata={"title": "t"}, embedding=[1.0])
    (found,) = QVPICNodePostprocessor().postprocess_nodes([NodeWithScore(node=node, score=0.5)], QueryBundle("q"))
    shown = found.node.get_content(MetadataMode.LLM)
    held = TICKETS.find(shown)
    assert held is not None
    assert (held.text, held.query, held.score) == ("title: t\n\ntext", "q", 0.5)
    assert [block.text for block in found.node.get_content_blocks(MetadataMode.LLM)] == [shown]
    assert found.node.hash == node.hash
    assert found.node.class_name() == "TextNode"
    assert found.node.to_dict() == node.to_dict()
    again = pickle.loads(pickle.dumps(found.node))
    assert again.get_content(MetadataMode.LLM) == "title: t\n\ntext"
    (twice,) = QVPICNodePostprocessor().postprocess_nodes([found])
    assert TICKETS.find(twice.node.get_content(MetadataMode.LLM)).text == "title: t\n\ntext"


@pytest.mark.parametrize("node", [Document(text="text"), IndexNode(text="text", index_id="i"), TextNode(text="text")])
def test_every_kind_of_text_gets_a_ticket(node: BaseNode) -> None:
    (found,) = QVPICNodePostprocessor().postprocess_nodes([NodeWithScore(node=node)])
    held = TICKETS.find(found.node.get_content(MetadataMode.LLM))
    assert held is not None
    assert (held.text, held.node_id) == ("text", node.node_id)
    assert found.node.get_content() == "text"


@pytest.mark.parametrize("node", [ImageNode(text="text"), TextNode(text="\ufeff "), ImageDocument(text="text")])
def test_pictures_and_empty_nodes_get_none(node: BaseNode) -> None:
    found = NodeWithScore(node=node)
    assert QVPICNodePostprocessor().postprocess_nodes([found]) == [found]


def test_a_text_that_is_changed_afterwards_is_the_one_that_counts() -> None:
    (found,) = QVPICNodePostprocessor().postprocess_nodes([NodeWithScore(node=TextNode(text="secret"))])
    found.node.text = "redacted"
    assert found.node.get_content(MetadataMode.LLM) == "redacted"
    found.node.text = "secret"
    found.node.metadata["title"] = "t"
    assert found.node.get_content(MetadataMode.LLM) == "title: t\n\nsecret"


def ask(*turns: Message, tickets: dict[str, Ticket] | None = None) -> Request:
    known = KnownTexts([PAGE])
    return request_of(turns, (tickets or {}).get, lambda turns, context: asked(turns, context, known.find))


def ask_user(text: str) -> Request:
    return ask(Message("user", text), tickets=KNOWN)


A, B = "qvpic-00000000000000aa", "qvpic-00000000000000bb"
KNOWN = {A: ticket("a"), B: ticket("b")}


@pytest.mark.parametrize("between", ["\n\n", " ", "\\n", "", "\n \\n"])
def test_runs_become_one_placeholder(between: str) -> None:
    request = ask_user(f"<{A}{between}{B}{between}{A}>")
    assert request.asked.question == "<[pages]>"
    assert request.asked.context == (Text("a", "a"), Text("b", "b"))
    assert request.asked.query == "q"


def test_text_between_tickets_stays() -> None:
    request = ask_user(f"{B}, then {A}")
    assert request.asked.question == "[pages], then [pages]"
    assert [node.text for node in request.nodes] == ["b", "a"]


def test_forged_names_are_text() -> None:
    assert ask_user(f"{A} qvpic-ffffffffffffffff").asked.question == "[pages] qvpic-ffffffffffffffff"


def test_text_beside_tickets_is_not_recognised() -> None:
    """So that no document can stand for a line of the prompt that equals its text."""
    request = ask_user(f"Context:\n{A}\na page\nQuery: a page\nAnswer: ")
    assert request.asked.question == "Context:\n[pages]\na page\nQuery: a page\nAnswer: "
    assert request.asked.context == (Text("a", "a"),)


def test_words_of_a_template_without_nodes() -> None:
    request = ask(
        Message("user", "Hi"), Message("assistant", "a page"), Message("user", "a page\nQuery: Who?\nAnswer: ")
    )
    assert request.asked.context == (PAGE,)
    assert request.asked.history[1].content == "a page"
    assert request.asked.query == "Who?"
    assert ask_user("[pages]").asked.query == "[pages]"


@pytest.mark.parametrize(
    ("roles", "system", "history", "question"),
    [
        ("s1 u2", "1", [], "2"),
        ("s1 s2 u3 a4 u5", "1\n\n2", ["user 3", "assistant 4"], "5"),
        ("u1 u2", None, [], "1\n\n2"),
        ("a1 u2", None, ["user ", "assistant 1"], "2"),
        ("t1 a2 a3 t4", None, ["user 1", "assistant 2\n\n3"], "4"),
    ],
)
def test_odd_roles(roles: str, system: str | None, history: list[str], question: str) -> None:
    found = ask(*turns(roles)).asked
    assert found.system == system
    assert [f"{turn.role} {turn.content}" for turn in found.history] == history
    assert (found.question, found.query) == (question, question)


@pytest.mark.parametrize("roles", ["u1 a2", "s1"])
def test_somebody_must_ask(roles: str) -> None:
    with pytest.raises(InputError, match="user's"):
        ask(*turns(roles))


def turns(roles: str) -> list[Message]:
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return turns_of([ChatMessage(role=names[each[0]], content=each[1:]) for each in roles.split()])
