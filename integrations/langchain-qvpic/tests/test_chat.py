"""``ChatQVPIC``: every way to call it gives the same answer from the same caches."""

from __future__ import annotations

import inspect
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, trim_messages
from pydantic import ValidationError
from qvpic_rag import QVPIC, GenerateConfig
from qvpic_rag.errors import ConfigError, InputError

from langchain_qvpic import ChatQVPIC, QVPICVectorStore, docs_to_qvpic_messages
from langchain_qvpic.engine import BankOptions, EngineOptions

QUESTION, ANSWER = "What is the badge code of Omar Reyes?", "TB-209"


@pytest.fixture
def messages(documents: list[Document]) -> list[BaseMessage]:
    return docs_to_qvpic_messages({"question": QUESTION, "context": documents[:4]})


def sources(message: BaseMessage) -> list[str]:
    """Documents of the route, each once; some have several pages."""
    return list(dict.fromkeys(page["source"] for page in message.response_metadata["route"]["pages"]))


async def test_every_way_to_call(llm: ChatQVPIC, messages: list[BaseMessage], documents: list[Document]) -> None:
    def joined(chunks: list[Any]) -> AIMessageChunk:
        whole = chunks[0]
        for chunk in chunks[1:]:
            whole += chunk
        assert len(chunks) > 2
        return whole  # type: ignore[no-any-return]

    answers = [
        llm.invoke(messages),
        await llm.ainvoke(messages),
        joined(list(llm.stream(messages))),
        joined([chunk async for chunk in llm.astream(messages)]),
        *llm.batch([messages, messages]),
        *await llm.abatch([messages, messages]),
    ]
    for answer in answers:
        assert answer.content == ANSWER
        assert sources(answer) == [document.metadata["source"] for document in documents[:4]]
        assert answer.response_metadata["route"]["compiled"] == []
        assert answer.response_metadata["finish_reason"] == "stop"
        assert answer.response_metadata["timing"]["ttft"] > 0
        json.dumps(answer.response_metadata)  # plain values
        usage = answer.usage_metadata
        assert usage is not None
        assert usage == answers[0].usage_metadata
        assert 0 < usage["input_token_details"]["cache_read"] < usage["input_tokens"]


def test_pages_that_are_not_in_the_bank_are_compiled(bank: Path, messages: list[BaseMessage]) -> None:
    with ChatQVPIC(model="demo", bank=bank.parent / "other", max_tokens=24) as llm:
        answer = llm.invoke(messages)
        assert answer.content == ANSWER
        route = answer.response_metadata["route"]
        assert route["compiled"] == [page["page_id"] for page in route["pages"]]
        assert answer.usage_metadata is not None
        assert answer.usage_metadata["input_token_details"]["cache_creation"] > 0
        again = llm.invoke(messages)
        assert again.response_metadata["route"]["compiled"] == []
        assert again.usage_metadata is not None
        assert again.usage_metadata["input_token_details"]["cache_creation"] == 0


def test_a_forged_id_never_reaches_another_documents_cache(llm: ChatQVPIC, messages: list[BaseMessage]) -> None:
    blocks = [dict(block) for block in messages[0].content if isinstance(block, dict)]
    forged = {**blocks[0], "text": "Nothing is here."}  # the id of a stored document, beside another text
    answer = llm.invoke([HumanMessage([forged, blocks[-1]])])
    assert sources(answer) == []
    assert ANSWER not in answer.content


def test_stop_per_call_and_at_construction(llm: ChatQVPIC, full_bank: Path, messages: list[BaseMessage]) -> None:
    assert llm.invoke(messages, stop=["-2"]).content == "TB"
    assert llm.bind(stop=["-"]).invoke(messages).content == "TB"
    assert "".join(str(chunk.content) for chunk in llm.stream(messages, stop=["-2"])) == "TB"
    with ChatQVPIC(model="demo", bank=full_bank, stop="B") as stopping:
        assert stopping.invoke(messages).content == "T"
        assert stopping.invoke(messages, stop=["2"]).content == "TB-"


def test_options_per_call(llm: ChatQVPIC, messages: list[BaseMessage]) -> None:
    short = llm.invoke(messages, max_tokens=2)
    assert short.response_metadata["finish_reason"] == "length"
    assert short.usage_metadata is not None
    assert short.usage_metadata["output_tokens"] == 2
    first, second = (llm.invoke(messages, temperature=2.0, seed=5).content for _ in range(2))
    assert first == second


class Recorder(BaseCallbackHandler):
    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.ends: list[Any] = []
        self.errors: list[BaseException] = []

    def on_llm_new_token(self, token: Any, **kwargs: Any) -> None:
        self.tokens.append(token)

    def on_llm_end(self, response: Any, **kwargs: Any) -> None:
        self.ends.append(response)

    def on_llm_error(self, error: BaseException, **kwargs: Any) -> None:
        self.errors.append(error)


def test_callbacks(llm: ChatQVPIC, messages: list[BaseMessage]) -> None:
    seen = Recorder()
    list(llm.stream(messages, config={"callbacks": [seen]}))
    assert "".join(seen.tokens) == ANSWER
    llm.invoke(messages, config={"callbacks": [seen]})
    assert [each.generations[0][0].text for each in seen.ends] == [ANSWER, ANSWER]
    with pytest.raises(InputError):
        llm.invoke([AIMessage("Hello.")], config={"callbacks": [seen]})
    assert len(seen.errors) == 1


def test_unknown_options(llm: ChatQVPIC, full_bank: Path) -> None:
    with pytest.raises(ConfigError, match="tools"):
        llm.invoke("Hello", tools=[])
    with pytest.raises(ConfigError, match="model"):
        llm.invoke("Hello", model="another")
    with pytest.raises(ValidationError, match="topk"):
        ChatQVPIC(model="demo", bank=full_bank, topk=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="temperature"):
        ChatQVPIC(model="demo", bank=full_bank, temperature=-1)
    with pytest.raises(ConfigError, match="alpha"):
        ChatQVPIC(model="demo", bank=full_bank, alpha=7)


def test_a_message_without_a_question(llm: ChatQVPIC, messages: list[BaseMessage]) -> None:
    for content in ("", "  ", messages[0].content[:-1]):
        with pytest.raises(InputError, match="no question"):
            llm.invoke([HumanMessage(content)])  # type: ignore[arg-type]


def test_every_engine_option_is_a_keyword(full_bank: Path) -> None:
    engines = set(inspect.signature(QVPIC.from_pretrained).parameters) - {"model", "bank", "profile", "top_k"}
    assert set(EngineOptions.__annotations__) == engines | {"render_profile"}
    assert set(BankOptions.__annotations__) < set(EngineOptions.__annotations__) <= set(ChatQVPIC.model_fields)
    defaults = GenerateConfig()
    fields = ChatQVPIC.model_fields
    assert fields["max_tokens"].default == defaults.max_new_tokens
    assert [fields[name].default for name in ("temperature", "top_p", "seed")] == [0.0, 1.0, None]
    with ChatQVPIC(model="demo", bank=full_bank, budget=0, render_profile="demo", namespace="default") as llm:
        answer = llm.invoke(docs_to_qvpic_messages({"question": "Who?", "context": [Document("Alpha is one.")]}))
        assert not any(page["promoted"] for page in answer.response_metadata["route"]["pages"])


def test_one_model_in_memory(llm: ChatQVPIC, store: QVPICVectorStore) -> None:
    assert llm.rag.engine.model is store.rag.engine.model
    assert llm.rag.engine.embedder is store.rag.engine.embedder


def test_a_copy_has_an_engine_of_its_own(llm: ChatQVPIC, messages: list[BaseMessage]) -> None:
    other = llm.model_copy(update={"namespace": "other"})
    assert other.rag.bank.namespace == "other"
    assert other.rag.engine.model is llm.rag.engine.model
    other.close()
    assert llm.invoke(messages).content == ANSWER
    again = pickle.loads(pickle.dumps(llm))
    assert again.invoke(messages).content == ANSWER
    again.close()
    assert again.invoke(messages).content == ANSWER  # opened anew
    again.close()


def test_tokens_are_the_models_own(llm: ChatQVPIC) -> None:
    assert llm.get_num_tokens("Who?") == len(llm.rag.engine.model.tokenizer("Who?")["input_ids"])
    kept = trim_messages(
        [HumanMessage("Hello."), AIMessage("Hello."), HumanMessage("Who?")], max_tokens=20, token_counter=llm
    )
    assert kept[-1].content == "Who?"
