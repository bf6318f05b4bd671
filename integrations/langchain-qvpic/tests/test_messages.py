"""Messages to requests: documents by verified blocks and by their texts, roles, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from qvpic_rag import Message, Page, Recognised
from qvpic_rag.errors import InputError
from qvpic_rag.pipeline.conversation import Asked, asked
from qvpic_rag.pipeline.recognise import KnownTexts

from langchain_qvpic import docs_to_qvpic_messages, document_block, qvpic_id
from langchain_qvpic.messages import turns_and_documents

PAGE = Page(("Alpha is the first one.",), "Alpha is the first one.", "a", 0)
OTHER = Page(("Beta is two.",), "Beta is two.", "b", 0)
DOCUMENT = Document("Some text.", metadata={"source": "s"})


def request(*messages: BaseMessage) -> Asked:
    return asked(*turns_and_documents(messages), KnownTexts([PAGE, OTHER]).find)


def test_documents_and_a_question() -> None:
    second = Document("More text.", id="x")
    found = request(*docs_to_qvpic_messages({"question": "Who?", "context": [DOCUMENT, second]}))
    assert [(each.text, each.source) for each in found.context if not isinstance(each, Page)] == [
        ("Some text.", "s"),
        ("More text.", "x"),
    ]
    assert (found.question, found.query, found.system, found.history) == ("Who?", "Who?", None, ())


def test_history_and_system() -> None:
    messages = docs_to_qvpic_messages(
        {
            "question": "Who?",
            "context": [DOCUMENT],
            "system": "Be brief.",
            "chat_history": [HumanMessage("Hi."), AIMessage("Hello.")],
            "unrelated": 1,
        }
    )
    found = request(*messages)
    assert found.system == "Be brief."
    assert found.history == (Message("user", "Hi."), Message("assistant", "Hello."))


@pytest.mark.parametrize(
    "inputs",
    [
        "Who?",
        {"context": []},
        {"question": 1, "context": []},
        {"question": "Who?"},
        {"question": "Who?", "context": "text"},
        {"question": "Who?", "context": ["text"]},
        {"question": "Who?", "context": [], "chat_history": "Hi."},
        {"question": "Who?", "context": [], "system": 1},
    ],
)
def test_wrong_inputs(inputs: Any) -> None:
    with pytest.raises(InputError):
        docs_to_qvpic_messages(inputs)


@pytest.mark.parametrize("extras", [None, {}, {"qvpic_id": 1}, {"qvpic_id": qvpic_id("Secret.")}, "text", {"id": "x"}])
def test_a_block_with_a_wrong_id_is_plain_text(extras: object) -> None:
    block = {**document_block(DOCUMENT), "extras": extras}
    found = request(HumanMessage([block, "Who?"]))
    assert found.context == ()
    assert found.question == "Some text.\nWho?"


def test_a_changed_text_is_plain_text() -> None:
    found = request(HumanMessage([{**document_block(DOCUMENT), "text": "Changed."}, "Who?"]))
    assert found.context == ()
    assert found.question == "Changed.\nWho?"


def test_blocks_inside_a_text_leave_their_place() -> None:
    block = document_block(DOCUMENT)
    found = request(HumanMessage(["Context:", block, block, "Question: Who?"]))
    assert found.question == f"Context:\n{Recognised.PLACEHOLDER}\nQuestion: Who?"
    assert found.query == "Who?"


def test_texts_of_stored_pages() -> None:
    prompt = "Answer from this:\n\nAlpha is the first one.\n\nBeta is two.\n\nQuestion: Which?\nHelpful Answer:"
    found = request(SystemMessage("Be brief."), HumanMessage(prompt))
    assert found.context == (PAGE, OTHER)
    assert found.question == "Answer from this:\n\n[pages]\n\nQuestion: Which?\nHelpful Answer:"
    assert (found.query, found.system) == ("Which?", "Be brief.")


def test_a_context_beside_its_name() -> None:
    found = request(SystemMessage("Be brief. Context: Alpha is the first one.\n\nBeta is two."), HumanMessage("Which?"))
    assert found.context == (PAGE, OTHER)
    assert found.system == "Be brief. Context: [pages]"
    hub = request(
        HumanMessage("Use it.\nQuestion: Which? \nContext: Alpha is the first one.\n\nBeta is two. \nAnswer:")
    )
    assert hub.question == "Use it.\nQuestion: Which? \nContext: [pages] \nAnswer:"
    assert hub.query == "Which?"
    assert request(HumanMessage("Context: Gamma is three.")).question == "Context: Gamma is three."


def test_documents_leave_the_prompt_as_it_is() -> None:
    found = request(HumanMessage([document_block(DOCUMENT), f"{PAGE.text}\n\nWho says so?"]))
    assert [each.source for each in found.context] == ["s"]
    assert found.question == f"{PAGE.text}\n\nWho says so?"


def test_a_turn_that_is_a_page_stays_a_question() -> None:
    found = request(HumanMessage("Alpha is the first one."))
    assert (found.question, found.context) == ("Alpha is the first one.", ())


def test_what_the_model_said_is_no_document() -> None:
    found = request(HumanMessage("Which?"), AIMessage("Alpha is the first one."), HumanMessage("Sure?"))
    assert found.history[1].content == "Alpha is the first one."
    assert found.context == ()


def test_messages_of_one_role_are_one_turn() -> None:
    found = request(
        SystemMessage("A"), HumanMessage("b"), HumanMessage("c"), AIMessage("d"), SystemMessage("E"),
        ChatMessage("e", role="assistant"), ChatMessage("f", role="user"),
    )  # fmt: skip
    assert found.system == "A\n\nE"
    assert found.history == (Message("user", "b\n\nc"), Message("assistant", "d\n\ne"))
    assert found.question == "f"


def test_reasoning_is_no_part_of_the_conversation() -> None:
    said = AIMessage([{"type": "reasoning", "reasoning": "Hm."}, {"type": "text", "text": "Two."}])
    assert request(HumanMessage("What?"), said, HumanMessage("Sure?")).history[1].content == "Two."


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "user's"),
        ([SystemMessage("a")], "user's"),
        ([HumanMessage("a"), AIMessage("b")], "user's"),
        ([HumanMessage("a"), ToolMessage("b", tool_call_id="1"), HumanMessage("c")], "tool"),
        ([HumanMessage("a"), FunctionMessage("b", name="f"), HumanMessage("c")], "function"),
        ([ChatMessage("a", role="critic")], "critic"),
        ([HumanMessage([{"type": "image", "url": "x"}])], "image"),
        ([HumanMessage([{"type": "text-plain", "base64": "x"}])], "text-plain"),
        ([HumanMessage.model_construct(content=[5])], "int"),
        ([HumanMessage.model_construct(content=None)], "NoneType"),
        (
            [HumanMessage("a"), AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": "1"}]), HumanMessage("b")],
            "tool",
        ),
    ],
)
def test_what_is_refused(messages: list[BaseMessage], words: str) -> None:
    with pytest.raises(InputError, match=words):
        request(*messages)
