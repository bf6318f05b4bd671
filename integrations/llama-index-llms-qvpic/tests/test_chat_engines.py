"""Chats of three turns: each turn's nodes come from the bank, and the history reaches the model as turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.base.llms.types import MessageRole
from llama_index.core.schema import MetadataMode
from llama_scripted import BADGE, CODE, ScriptedLLM
from qvpic_rag.errors import InputError

TURNS = [
    (BADGE, CODE, "badges.txt"),
    ("What is the library room of Ines Falk?", "C17", "library.txt"),
    ("What is the parcel price of Tove Brandt?", "$48.20", "parcels.txt"),
]


def check(response: Any, llm: ScriptedLLM, turn: int, best: str) -> None:
    (call,) = [call for call in response.metadata["qvpic"] if call["nodes"]]
    assert call["compiled"] == []
    assert call["nodes"][0]["ref_doc_id"] == best
    assert call["query"] == TURNS[turn][0]
    request = llm.asked[-1]
    assert request.question == TURNS[turn][0]
    assert "[pages]" in (request.system or "")
    assert len(request.history) == 2 * turn
    assert all(found.node.text != found.node.get_content(MetadataMode.LLM) for found in response.source_nodes)


@pytest.mark.parametrize("mode", ["context", "condense_plus_context"])
def test_three_turns(index: VectorStoreIndex, llm: ScriptedLLM, mode: str) -> None:
    engine = llm.as_chat_engine(index, chat_mode=mode, similarity_top_k=2)
    for turn, (question, expected, best) in enumerate(TURNS):
        # Later turns stand behind a history, which the reader was not trained on for every wording: what it says then
        # is its own affair, what it is shown is tested. Condensing is scripted.
        condensing = mode == "condense_plus_context" and turn > 0
        llm.says(*([question] if condensing else []), *([expected] if turn else []))
        response = engine.chat(question)
        assert str(response) == expected
        check(response, llm, turn, best)


def test_a_long_chat_forgets_and_goes_on(index: VectorStoreIndex, make_llm: Callable[..., ScriptedLLM]) -> None:
    """The memory leaves room for pages, whose tokens it cannot see, and counts the model's own tokens."""
    llm = make_llm(max_context_tokens=1600)
    engine = llm.as_chat_engine(index, similarity_top_k=1)
    said = "internationalisation characteristically notwithstanding " * 4  # few tokens by other models' count
    turns = 10
    for turn in range(turns):
        llm.says(said)
        (call,) = engine.chat(f"{said} Turn {turn}? {BADGE}").metadata["qvpic"]
        assert len(call["nodes"]) == 1
    assert 2 <= len(llm.asked[-1].history) < 2 * (turns - 1)
    assert engine.chat(BADGE).metadata["qvpic"][0]["pages"]


@pytest.mark.parametrize("mode", ["context", "condense_plus_context"])
async def test_three_turns_async(index: VectorStoreIndex, llm: ScriptedLLM, mode: str) -> None:
    engine = llm.as_chat_engine(index, chat_mode=mode, similarity_top_k=2)
    for turn, (question, expected, best) in enumerate(TURNS):
        llm.says(*([question] if mode != "context" and turn else []), *([expected] if turn else []))
        response = await engine.achat(question)
        assert str(response) == expected
        check(response, llm, turn, best)


@pytest.mark.parametrize("mode", ["context", "condense_plus_context"])
def test_streamed_turns(index: VectorStoreIndex, llm: ScriptedLLM, mode: str) -> None:
    engine = llm.as_chat_engine(index, chat_mode=mode, similarity_top_k=2)
    for turn, (question, expected, best) in enumerate(TURNS):
        llm.says(*([question] if mode != "context" and turn else []), *([expected] if turn else []))
        response = engine.stream_chat(question)
        assert "".join(response.response_gen) == expected
        check(response, llm, turn, best)


async def test_streamed_async(index: VectorStoreIndex, llm: ScriptedLLM) -> None:
    engine = llm.as_chat_engine(index, similarity_top_k=2)
    response = await engine.astream_chat(BADGE)
    assert "".join([piece async for piece in response.async_response_gen()]) == CODE
    check(response, llm, 0, "badges.txt")


def test_the_system_prompt_follows_the_context(index: VectorStoreIndex, llm: ScriptedLLM) -> None:
    engine = llm.as_chat_engine(index, similarity_top_k=1, system_prompt="Be concise.")
    engine.chat(BADGE)
    assert (llm.asked[0].system or "").endswith("Be concise.")


def test_history_holds_what_was_said(index: VectorStoreIndex, llm: ScriptedLLM) -> None:
    engine = llm.as_chat_engine(index, similarity_top_k=1)
    engine.chat(BADGE)
    assert [(turn.role, turn.content) for turn in engine.chat_history] == [
        (MessageRole.USER, BADGE),
        (MessageRole.ASSISTANT, CODE),
    ]


def test_other_modes(index: VectorStoreIndex, llm: ScriptedLLM) -> None:
    response = llm.as_chat_engine(index, chat_mode="condense_question", similarity_top_k=1).chat(BADGE)
    assert CODE in str(response)
    assert response.metadata["qvpic"][-1]["nodes"][0]["ref_doc_id"] == "badges.txt"  # type: ignore[index]
    assert len(llm.asked[-1].nodes) == 1
    said = llm.as_chat_engine(index, chat_mode="simple").chat("Hello.")
    assert [call["nodes"] for call in said.metadata["qvpic"]] == [[]]  # type: ignore[index]
    assert llm.asked[-1].context == ()
    with pytest.raises(InputError, match="chat mode"):
        llm.as_chat_engine(index, chat_mode="react")
