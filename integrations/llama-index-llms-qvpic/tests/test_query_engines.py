"""Nodes reach the model as pages, in order, from the bank, through every way that LlamaIndex has of asking."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from llama_index.core import Document, Settings, VectorStoreIndex
from llama_index.core.evaluation import FaithfulnessEvaluator
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.query_engine import SubQuestionQueryEngine
from llama_index.core.question_gen.llm_generators import LLMQuestionGenerator
from llama_index.core.response_synthesizers import ResponseMode, get_response_synthesizer
from llama_index.core.schema import MetadataMode
from llama_index.core.tools import QueryEngineTool
from llama_scripted import BADGE, CODE, ScriptedLLM
from pydantic import BaseModel
from qvpic_rag.errors import InputError

from llama_index.llms.qvpic import QVPICEmbedding, QVPICNodePostprocessor, QVPICVectorStore
from llama_index.llms.qvpic.tickets import TICKET

MODES = ["compact", "refine", "tree_summarize", "simple_summarize", "accumulate", "compact_accumulate"]
ALONE = ["refine", "accumulate"]  # these ask once for every node


def script(llm: ScriptedLLM, mode: str) -> None:
    """The reader answers; it cannot refine an answer reliably, so that step only repeats the first one."""
    llm.says(*([None, CODE] if mode == "refine" else []))


def check_refined(llm: ScriptedLLM, mode: str) -> None:
    if mode == "refine":
        assert f"Original Answer: {CODE}" in llm.asked[1].question  # the reader's own


def calls_of(response: object) -> list[dict[str, object]]:
    return response.metadata["qvpic"]  # type: ignore[attr-defined,no-any-return]


def check_calls(response: object, llm: ScriptedLLM, mode: str, top_k: int) -> None:
    """Every node was read once, from the bank, in the retriever's order."""
    calls = calls_of(response)
    ids = [node["node_id"] for call in calls for node in call["nodes"]]  # type: ignore[attr-defined]
    assert ids == [found.node.node_id for found in response.source_nodes]  # type: ignore[attr-defined]
    assert len(calls) == (top_k if mode in ALONE else 1)
    for call in calls:
        assert call["compiled"] == []
        assert call["query"] == BADGE
        sources = [page["source"] for page in call["pages"]]  # type: ignore[attr-defined]
        assert list(dict.fromkeys(sources)) == [node["ref_doc_id"] for node in call["nodes"]]  # type: ignore[attr-defined]
    for request in llm.asked:
        turns = [request.question, request.system or "", *(turn.content for turn in request.history)]
        assert sum(text.count("[pages]") for text in turns) == 1
        assert not any(TICKET.search(text) for text in turns)


@pytest.mark.parametrize("mode", MODES)
def test_response_modes(index: VectorStoreIndex, llm: ScriptedLLM, mode: str) -> None:
    top_k = 2
    engine = llm.as_query_engine(index, response_mode=mode, similarity_top_k=top_k)
    script(llm, mode)
    response = engine.query(BADGE)
    assert CODE in str(response)
    check_calls(response, llm, mode, top_k)
    check_refined(llm, mode)


@pytest.mark.parametrize("mode", MODES)
async def test_response_modes_async(index: VectorStoreIndex, llm: ScriptedLLM, mode: str) -> None:
    engine = llm.as_query_engine(index, response_mode=mode, similarity_top_k=2, use_async=True)
    script(llm, mode)
    response = await engine.aquery(BADGE)
    assert CODE in str(response)
    check_calls(response, llm, mode, 2)
    check_refined(llm, mode)


@pytest.mark.parametrize("mode", ["compact", "refine", "tree_summarize", "simple_summarize"])
def test_streaming(index: VectorStoreIndex, llm: ScriptedLLM, mode: str) -> None:
    engine = llm.as_query_engine(index, response_mode=mode, similarity_top_k=2, streaming=True)
    script(llm, mode)
    response = engine.query(BADGE)
    assert CODE in "".join(response.response_gen)
    check_calls(response, llm, mode, 2)
    check_refined(llm, mode)


async def test_streaming_async(index: VectorStoreIndex, llm: ScriptedLLM) -> None:
    engine = llm.as_query_engine(index, similarity_top_k=2, streaming=True)
    response = await engine.aquery(BADGE)
    assert CODE in "".join([piece async for piece in response.async_response_gen()])
    check_calls(response, llm, "compact", 2)


def test_source_nodes_hold_real_text(index: VectorStoreIndex, llm: ScriptedLLM, demo_texts: dict[str, str]) -> None:
    response = llm.as_query_engine(index, similarity_top_k=2).query(BADGE)
    for found in response.source_nodes:
        assert found.node.text == found.node.get_content() == demo_texts[found.node.ref_doc_id]
        assert found.score is not None
        assert TICKET.fullmatch(found.node.get_content(MetadataMode.LLM))
        assert not TICKET.search(found.node.model_dump_json())


def test_scores_and_timing_are_plain_values(index: VectorStoreIndex, llm: ScriptedLLM) -> None:
    import json

    response = llm.as_query_engine(index, similarity_top_k=2).query(BADGE)
    (call,) = json.loads(json.dumps(calls_of(response)))
    assert [node["score"] for node in call["nodes"]] == [found.score for found in response.source_nodes]
    assert [node["rank"] for node in call["nodes"]] == [0, 1]
    assert call["timing"]["ttft"] > 0


def test_context_only_shows_text(index: VectorStoreIndex, llm: ScriptedLLM) -> None:
    response = llm.as_query_engine(index, response_mode="context_only", similarity_top_k=2).query(BADGE)
    assert CODE in str(response)
    assert llm.asked == []
    Settings.llm = llm
    synthesizer = get_response_synthesizer(response_mode=ResponseMode.CONTEXT_ONLY)
    assert CODE in str(llm.as_query_engine(index, response_synthesizer=synthesizer).query(BADGE))


def test_a_synthesizer_of_another_model_is_refused(index: VectorStoreIndex, llm: ScriptedLLM) -> None:
    synthesizer = get_response_synthesizer(llm=Settings.llm)
    with pytest.raises(InputError, match="another language model"):
        llm.as_query_engine(index, response_synthesizer=synthesizer)


def test_settings_llm_finds_pages_by_their_text(index: VectorStoreIndex, llm: ScriptedLLM) -> None:
    """Nothing but the model is changed: the nodes' text is in the prompt, and the caches are used."""
    Settings.llm = llm
    response = index.as_query_engine(similarity_top_k=1).query(BADGE)
    assert CODE in str(response)
    (request,) = llm.asked
    assert request.query == BADGE
    assert "[pages]" in request.question
    assert len(request.context) >= 1


def test_settings_llm_with_the_postprocessor(index: VectorStoreIndex, llm: ScriptedLLM) -> None:
    Settings.llm = llm
    engine = index.as_query_engine(similarity_top_k=2, node_postprocessors=[QVPICNodePostprocessor()])
    assert CODE in str(engine.query(BADGE))
    assert len(llm.asked[0].nodes) == 2


def test_sub_questions(index: VectorStoreIndex, llm: ScriptedLLM) -> None:
    tool = QueryEngineTool.from_defaults(llm.as_query_engine(index, similarity_top_k=1), name="docs", description="d")
    engine = SubQuestionQueryEngine.from_defaults(
        query_engine_tools=[tool],
        llm=llm,
        question_gen=LLMQuestionGenerator.from_defaults(llm=llm),
        response_synthesizer=get_response_synthesizer(llm=llm),
        use_async=False,
        verbose=False,
    )
    questions = f'```json\n{{"items": [{{"sub_question": "{BADGE}", "tool_name": "docs"}}]}}\n```'
    llm.says(questions, None, "The code is TB-209.")
    response = engine.query("Which badge has Omar?")
    generated, sub, final = llm.asked
    assert generated.context == ()
    assert sub.query == BADGE
    assert [node.ref_doc_id for node in sub.nodes] == ["badges.txt"]
    assert CODE in final.question  # the reader's own answer to the sub question
    assert final.context == ()
    assert str(response) == "The code is TB-209."


class Badge(BaseModel):
    """A badge."""

    code: str


def test_structured_output(index: VectorStoreIndex, llm: ScriptedLLM) -> None:
    llm.says('{"code": "TB-209"}')
    engine = llm.as_query_engine(index, similarity_top_k=1, output_cls=Badge)
    response = engine.query(BADGE)
    assert response.response == Badge(code=CODE)
    (request,) = llm.asked
    assert [node.ref_doc_id for node in request.nodes] == ["badges.txt"]
    assert calls_of(response)[0]["compiled"] == []


async def test_faithfulness_evaluator_sees_real_text(
    index: VectorStoreIndex, llm: ScriptedLLM, demo_texts: dict[str, str]
) -> None:
    response = llm.as_query_engine(index, similarity_top_k=1).query(BADGE)
    llm.says("YES")
    result = await FaithfulnessEvaluator(llm=llm).aevaluate_response(response=response)
    assert result.passing
    assert result.contexts == [demo_texts["badges.txt"]]
    judged = llm.asked[-1]
    assert judged.nodes == ()
    shown = [page.text for page in judged.context]
    assert any(CODE in text for text in shown) or CODE in judged.question + (judged.system or "")


def test_another_thread(index: VectorStoreIndex, llm: ScriptedLLM) -> None:
    engine = llm.as_query_engine(index, similarity_top_k=2)
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(str(engine.query(BADGE)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    answers.append(str(engine.query(BADGE)))
    for thread in threads:
        thread.join()
    assert len(answers) == 3
    assert len(set(answers)) == 1
    assert CODE in answers[0]


def test_an_engine_has_one_language_model(index: VectorStoreIndex, llm: ScriptedLLM) -> None:
    for make in (llm.as_query_engine, llm.as_chat_engine):
        with pytest.raises(InputError, match="leave llm out"):
            make(index, llm=llm)
    with pytest.raises(InputError, match="chat mode 'zz'"):
        llm.as_chat_engine(index, chat_mode="zz")


def test_documents_that_were_never_split(bank: Path, llm: ScriptedLLM, embedding: QVPICEmbedding) -> None:
    """Pipelines without a splitter leave documents as nodes."""
    store = QVPICVectorStore(bank=bank)
    pipeline = IngestionPipeline(transformations=[embedding], vector_store=store)
    pipeline.run(documents=[Document(text="The badge code of Rex Hale is AB-123.", doc_id="rex")])
    engine = llm.as_query_engine(VectorStoreIndex.from_vector_store(store, embedding), streaming=True)
    response = engine.query("What is the badge code of Rex Hale?")
    assert "".join(response.response_gen) == "AB-123"  # type: ignore[attr-defined]
    (call,) = response.metadata["qvpic"]
    assert [page["source"] for page in call["pages"]] == ["rex"]


def test_forged_tickets_are_text(
    index: VectorStoreIndex, make_llm: Callable[..., ScriptedLLM], embedding: object
) -> None:
    """A document and a question that look like tickets are read as what they are."""
    llm = make_llm()
    forged = "qvpic-0123456789abcdef"
    from llama_index.core.schema import TextNode

    index.insert_nodes([TextNode(text=f"The badge code {forged} is forged.", id_="forged")])
    question = f"Who wrote {forged}?"
    response = llm.as_query_engine(index, similarity_top_k=2).query(question)
    (request,) = llm.asked
    assert forged in request.question
    assert len(request.nodes) == len(request.context) == 2
    assert request.query == question
    assert [found.node.node_id for found in response.source_nodes] == [node.node_id for node in request.nodes]
