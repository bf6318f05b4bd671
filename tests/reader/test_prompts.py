"""The prompts of the demo reader: their shape, their errors, and that they are what the frameworks send."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest

from qvpic_rag.errors import ConfigError
from qvpic_rag.reader.prompts import (
    PLACEHOLDER,
    REFINE_STYLES,
    STYLES,
    SYSTEM_PROMPTS,
    conversation,
    fixed_texts,
)
from qvpic_rag.records import Message

QUESTION = "Which {river} crosses Ulm?"
EXISTING = "The {Iller}."
HISTORY = (("Where is Ulm?", "In {Swabia}."), ("And Linz?", "In Austria."))
CHAT_ENGINES = ("llama-index-context-chat", "llama-index-condense-chat")
WITH_SYSTEM_TURN = {style for style in STYLES if style.endswith("-chat") or style.startswith("llama-index-chat-")} - {
    "llama-index-chat-refine"
}

quiet = pytest.mark.filterwarnings("ignore")


def turns(style: str, **options: Any) -> tuple[Message, ...]:
    return conversation(style, QUESTION, existing=EXISTING if style in REFINE_STYLES else None, **options)


def joined(sent: list[tuple[str, str]]) -> list[Message]:
    """What the engine makes of a framework's turns: system texts stand at the head of the first user turn."""
    roles = {"human": "user", "ai": "assistant"}
    messages = [Message(roles.get(role, role), text) for role, text in sent]
    system = [message.content for message in messages if message.role == "system"]
    rest = [message for message in messages if message.role != "system"]
    return [Message("user", "\n\n".join([*system, rest[0].content])), *rest[1:]]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("system", [None, *SYSTEM_PROMPTS[:2]])
@pytest.mark.parametrize("history", [(), HISTORY], ids=["no history", "history"])
def test_turns_alternate_and_end_with_the_question(
    style: str, system: str | None, history: tuple[tuple[str, str], ...]
) -> None:
    asked = turns(style, system=system, history=history)
    assert [turn.role for turn in asked] == ["user", "assistant"] * len(history) + ["user"]
    assert asked[-1].content.count(QUESTION) == 1
    whole = "\n".join(turn.content for turn in asked)
    assert whole.count(QUESTION) == 1
    assert whole.count(PLACEHOLDER) == (style != "bare")
    assert whole.count(EXISTING) == (style in REFINE_STYLES)
    assert system is None or system in asked[0].content
    assert [turn.content for turn in asked[1:-1]] == [text for pair in history for text in pair][1:]


@pytest.mark.parametrize("style", STYLES)
def test_the_head_goes_to_the_first_user_turn(style: str) -> None:
    alone, with_history = turns(style), turns(style, history=HISTORY)
    head = with_history[0].content.removesuffix(HISTORY[0][0])
    assert bool(head) == (style in WITH_SYSTEM_TURN)
    assert alone[0].content == head + with_history[-1].content


@pytest.mark.parametrize("style", STYLES)
def test_a_callers_system_text_comes_first_but_in_chat_engines(style: str) -> None:
    plain, told = turns(style)[0].content, turns(style, system="Be brief.")[0].content
    if style in CHAT_ENGINES:
        assert told == plain.removesuffix(f"\n\n{QUESTION}") + f"Be brief.\n\n{QUESTION}"
    else:
        assert told == f"Be brief.\n\n{plain}"


def test_a_bare_question_stays_as_it_is() -> None:
    assert conversation("bare", QUESTION) == (Message("user", QUESTION),)
    assert conversation("bare", QUESTION, system="Be brief.") == (Message("user", f"Be brief.\n\n{QUESTION}"),)


def test_styles_differ() -> None:
    assert len({turns(style) for style in STYLES}) == len(STYLES)
    assert set(REFINE_STYLES) < set(STYLES)


def test_text_that_looks_like_a_field_is_left_alone() -> None:
    text = "What do {pages}, {existing} and {} mean?"
    assert conversation("llama-index-refine", text, existing="{question}")[0].content.count(text) == 1


@pytest.mark.parametrize(
    ("style", "existing", "message"),
    [
        ("llama-index", None, r"no prompt style 'llama-index'; choose from bare, "),
        ("llama-index-refine", None, r"'llama-index-refine' improves an existing answer; pass it as existing="),
        ("bare", "Danube.", r"'bare' has no place for an existing answer; leave existing= out"),
    ],
)
def test_errors_name_the_style(style: str, existing: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        conversation(style, QUESTION, existing=existing)


def test_fixed_texts_are_all_there_is_besides_question_and_answer() -> None:
    texts = fixed_texts()
    assert len(set(texts)) == len(texts)
    assert all(texts)
    assert not any("{" in text for text in texts)
    for style in STYLES:
        pieces = re.split(f"{re.escape(QUESTION)}|{re.escape(EXISTING)}", turns(style)[0].content)
        assert {piece for piece in pieces if piece} <= set(texts)


def recorder(*, chat: bool, system: str | None = None) -> tuple[Any, list[list[tuple[str, str]]]]:
    """A LlamaIndex model that answers ``EXISTING``, and the turns of every call it got."""
    llms = pytest.importorskip("llama_index.core.llms")
    calls: list[list[tuple[str, str]]] = []

    class Recorder(llms.CustomLLM):
        @property
        def metadata(self) -> Any:
            return llms.LLMMetadata(is_chat_model=chat)

        def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
            calls.append([("user", prompt)])
            return llms.CompletionResponse(text=EXISTING)

        def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
            raise NotImplementedError

        def chat(self, messages: Any, **kwargs: Any) -> Any:
            calls.append([(message.role.value, message.content) for message in messages])
            return llms.ChatResponse(message=llms.ChatMessage(role="assistant", content=EXISTING))

    return Recorder(system_prompt=system), calls


def nodes(count: int) -> list[Any]:
    schema = pytest.importorskip("llama_index.core.schema")
    return [schema.NodeWithScore(node=schema.TextNode(text=PLACEHOLDER), score=1.0) for _ in range(count)]


@quiet
@pytest.mark.parametrize("system", [None, "Be brief."])
@pytest.mark.parametrize("chat", [False, True], ids=["plain", "chat"])
@pytest.mark.parametrize(
    ("mode", "styles"),
    [
        ("compact", ["qa"]),
        ("refine", ["qa", "refine"]),
        ("tree_summarize", ["tree-summarize"]),
        ("simple_summarize", ["simple"]),
        ("accumulate", ["qa"]),
        ("compact_accumulate", ["qa"]),
    ],
)
def test_llama_index_synthesizers_send_these_prompts(
    mode: str, styles: list[str], chat: bool, system: str | None
) -> None:
    synthesizers = pytest.importorskip("llama_index.core.response_synthesizers")
    model, calls = recorder(chat=chat, system=system)
    synthesizers.get_response_synthesizer(llm=model, response_mode=mode).synthesize(QUESTION, nodes(len(styles)))
    names = [f"llama-index-chat-{style}" if chat else f"llama-index-{style}" for style in styles]
    assert [joined(call) for call in calls] == [list(turns(name, system=system)) for name in names]


@quiet
@pytest.mark.parametrize("system", [None, " Be brief.\n"])
@pytest.mark.parametrize("history", [(), (("Where is Ulm?", "In Swabia."),)], ids=["no history", "history"])
@pytest.mark.parametrize(
    ("style", "engine"),
    [
        ("llama-index-context-chat", "ContextChatEngine"),
        ("llama-index-condense-chat", "CondensePlusContextChatEngine"),
    ],
)
def test_llama_index_chat_engines_send_these_prompts(
    style: str, engine: str, history: tuple[tuple[str, str], ...], system: str | None
) -> None:
    engines = pytest.importorskip("llama_index.core.chat_engine")
    memory = pytest.importorskip("llama_index.core.memory")
    retrievers = pytest.importorskip("llama_index.core.retrievers")
    llms = pytest.importorskip("llama_index.core.llms")

    class Retriever(retrievers.BaseRetriever):
        def _retrieve(self, query_bundle: Any) -> Any:
            return nodes(1)

    model, calls = recorder(chat=True)
    earlier = [
        llms.ChatMessage(role=role, content=text)
        for pair in history
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]
    # The default memory opens a database and leaves it open.
    kept = memory.ChatMemoryBuffer.from_defaults(chat_history=earlier, llm=model)
    chat = getattr(engines, engine).from_defaults(retriever=Retriever(), llm=model, system_prompt=system, memory=kept)
    chat.chat(QUESTION)
    assert joined(calls[-1]) == list(turns(style, history=history, system=system))


@quiet
def test_langchain_retrieval_qa_sends_these_prompts() -> None:
    stuff = pytest.importorskip("langchain_classic.chains.question_answering.stuff_prompt")
    retrieval_qa = pytest.importorskip("langchain_classic.chains.retrieval_qa.prompt")
    fields = {"context": PLACEHOLDER, "question": QUESTION}
    assert [Message("user", stuff.PROMPT.format(**fields))] == list(turns("langchain-retrieval-qa"))
    assert retrieval_qa.PROMPT == stuff.PROMPT
    chat = [(message.type, message.content) for message in stuff.CHAT_PROMPT.format_messages(**fields)]
    assert joined(chat) == list(turns("langchain-retrieval-qa-chat"))


@quiet
@pytest.mark.parametrize(
    ("style", "module", "name", "variable"),
    [
        ("langchain-stuff-chat", "retrieval_qa.base", "RetrievalQA", "system_prompt"),
        (
            "langchain-conversation-chat",
            "conversational_retrieval.base",
            "ConversationalRetrievalChain",
            "qa_system_prompt",
        ),
    ],
)
def test_langchain_docstrings_show_these_prompts(style: str, module: str, name: str, variable: str) -> None:
    chains = pytest.importorskip(f"langchain_classic.chains.{module}")
    prompts = pytest.importorskip("langchain_core.prompts")
    shown = re.search(rf"\b{variable} = (\(\n.*?\n *\))\n", getattr(chains, name).__doc__, re.DOTALL)
    assert shown is not None
    # A docstring that is not raw has its "\n" escapes already turned into line breaks.
    text = ast.literal_eval(re.sub(r'"\n\n"', r'"\\n\\n"', shown[1]))
    template = prompts.ChatPromptTemplate.from_messages(
        [("system", text), prompts.MessagesPlaceholder("chat_history"), ("human", "{input}")]
    )
    earlier = [(role, text) for pair in HISTORY for role, text in zip(("human", "ai"), pair, strict=True)]
    messages = template.format_messages(context=PLACEHOLDER, input=QUESTION, chat_history=earlier)
    sent = [(message.type, message.content) for message in messages]
    assert joined(sent) == list(turns(style, history=HISTORY))
