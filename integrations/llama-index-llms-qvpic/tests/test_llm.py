"""The language model by itself: its eight methods, what they report, how they wait, stop and fail."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import PromptTemplate
from llama_index.core.base.llms.types import ChatMessage, ImageBlock
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler, TokenCountingHandler
from llama_scripted import BADGE, CODE, ScriptedLLM
from pydantic import ValidationError
from qvpic_rag import QVPIC
from qvpic_rag.errors import ConfigError, InputError, QueueFullError
from qvpic_rag.pipeline import lazy

from llama_index.llms.qvpic import QVPICLLM


@pytest.fixture
def prompt(demo_texts: dict[str, str]) -> str:
    """A prompt that another program put together, with the real text in it."""
    rule = "-" * 21
    return (
        f"Context information is below.\n{rule}\n{demo_texts['badges.txt']}\n{rule}\n"
        f"Given the context information and not prior knowledge, answer the query.\nQuery: {BADGE}\nAnswer: "
    )


async def test_all_eight_methods_agree(llm: ScriptedLLM, prompt: str) -> None:
    messages = [ChatMessage(role="user", content=prompt)]
    whole = [
        llm.complete(prompt).text,
        llm.chat(messages).message.content,
        (await llm.acomplete(prompt)).text,
        (await llm.achat(messages)).message.content,
    ]
    streams = [
        list(llm.stream_complete(prompt)),
        list(llm.stream_chat(messages)),
        [each async for each in await llm.astream_complete(prompt)],
        [each async for each in await llm.astream_chat(messages)],
    ]
    whole += ["".join(each.delta for each in stream) for stream in streams]
    whole += [streams[0][-1].text, streams[1][-1].message.content]
    assert set(whole) == {CODE}
    for stream in streams:
        assert stream[0].raw is None
        assert stream[-1].raw["compiled"] == []
        assert len(stream[-1].raw["pages"]) >= 1
    assert all(request.query == BADGE for request in llm.asked)


def test_raw_and_counts(llm: ScriptedLLM, prompt: str) -> None:
    response = llm.complete(prompt)
    usage = response.raw["usage"]
    assert response.additional_kwargs["prompt_tokens"] == usage["context_tokens"] + usage["query_tokens"]
    assert response.additional_kwargs["completion_tokens"] == usage["output_tokens"] > 0
    assert response.raw["timing"]["ttft"] > 0


def test_text_that_is_not_stored_is_prefilled(llm: ScriptedLLM) -> None:
    response = llm.complete("The badge code of Rex Moor is AB-12.\nWhat is the badge code of Rex Moor?")
    assert response.raw["pages"] == []
    assert llm.asked[0].context == ()


def test_metadata(make_llm: Callable[..., ScriptedLLM], bank: object) -> None:
    with QVPIC.open(bank) as rag:  # type: ignore[arg-type]
        real = rag.engine.model.max_context
    assert make_llm().metadata.context_window == real
    limited = make_llm(max_context_tokens=600, max_new_tokens=7).metadata
    assert (limited.context_window, limited.num_output, limited.is_chat_model) == (600, 7, True)


def test_the_real_budget_is_enforced(index: object, make_llm: Callable[..., ScriptedLLM]) -> None:
    """Tickets make a prompt look short; pages that do not fit are dropped, and the response says so."""
    llm = make_llm(max_context_tokens=800)
    response = llm.as_query_engine(index, similarity_top_k=7).query(BADGE)  # type: ignore[arg-type]
    (call,) = response.metadata["qvpic"]
    assert call["dropped"]
    usage = call["usage"]
    assert usage["context_tokens"] + usage["query_tokens"] + llm.max_new_tokens <= 800
    strict = make_llm(max_context_tokens=800, overflow="error")
    with pytest.raises(InputError, match="800"):
        strict.as_query_engine(index, similarity_top_k=7).query(BADGE)  # type: ignore[arg-type]


def test_callbacks(llm: ScriptedLLM, prompt: str) -> None:
    debug = LlamaDebugHandler(print_trace_on_end=False)
    counter = TokenCountingHandler()
    llm.callback_manager = CallbackManager([debug, counter])
    response = llm.complete(prompt)
    list(llm.stream_complete(prompt))
    assert len(debug.get_event_pairs(CBEventType.LLM)) == 2
    assert counter.llm_token_counts[0].prompt_token_count == response.additional_kwargs["prompt_tokens"]


async def watch(pauses: list[float]) -> None:
    """Note how long the event loop kept this task waiting, in seconds."""
    while True:
        before = time.perf_counter()
        await asyncio.sleep(0.01)
        pauses.append(time.perf_counter() - before)


async def test_the_event_loop_is_not_blocked(llm: ScriptedLLM, prompt: str) -> None:
    """Also not by loading the model, which the first call does."""
    entered: list[float] = []
    real = llm._request

    def slow(turns: object) -> object:
        entered.append(time.perf_counter())
        time.sleep(0.5)
        return real(turns)  # type: ignore[arg-type]

    object.__setattr__(llm, "_request", slow)
    pauses: list[float] = []
    watcher = asyncio.create_task(watch(pauses))
    await asyncio.sleep(0)  # it begins to look
    await llm.acomplete(prompt)
    watcher.cancel()
    assert entered
    assert max(pauses) < 0.45


async def test_cancelling_frees_the_model(llm: ScriptedLLM, prompt: str) -> None:
    task = asyncio.create_task(llm.acomplete(prompt, max_new_tokens=2000))
    while not llm.asked:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await asyncio.wait_for(llm.acomplete(prompt), 60)).text == CODE


def test_a_stream_that_is_not_read_on_frees_the_model(llm: ScriptedLLM, prompt: str) -> None:
    stream = llm.stream_complete(prompt)
    next(stream)
    stream.close()
    assert llm.complete(prompt).text == CODE


def test_a_full_queue_is_said(make_llm: Callable[..., ScriptedLLM], prompt: str) -> None:
    from qvpic_rag.pipeline.turns import turns_of

    llm = make_llm(max_waiting=0)
    turns = turns_of(llm.rag.engine.model)
    with turns.turn(9), pytest.raises(QueueFullError):
        llm.complete(prompt)
    assert llm.complete(prompt).text == CODE


def test_options_of_a_call(llm: ScriptedLLM, prompt: str) -> None:
    assert llm.complete(prompt, max_new_tokens=1).raw["finish_reason"] == "length"
    assert "209" not in llm.complete(prompt, stop="-").text
    with pytest.raises(ConfigError, match="max_tokens"):
        llm.complete(prompt, max_tokens=1)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ValidationError, match="top_k"):
        QVPICLLM(model="demo", bank="b", top_k=3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"alpha": 5},
        {"budget": -1},
        {"token_budget": -1},
        {"router": "sparse"},
        {"overflow": "fall"},
        {"temperature": -1.0},
    ],
)
def test_wrong_options_are_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        QVPICLLM(model="demo", bank="b", **wrong)


def test_options_that_are_the_engines_own(llm: ScriptedLLM, prompt: str) -> None:
    for name in ("system", "context", "query", "top_k"):
        with pytest.raises(ConfigError, match=name):
            llm.complete(prompt, **{name: None})
    with pytest.raises(InputError, match="string"):
        llm.complete(None)


def test_only_text(llm: ScriptedLLM) -> None:
    with pytest.raises(InputError, match="text"):
        llm.chat([ChatMessage(role="user", blocks=[ImageBlock(url="http://localhost/a.png")])])


def test_pickles_without_its_model(llm: ScriptedLLM, prompt: str) -> None:
    text = llm.complete(prompt).text
    sent = pickle.dumps(llm)
    assert len(sent) < 20_000
    again = pickle.loads(sent)
    assert (again.model, again.bank, again.max_new_tokens) == (llm.model, llm.bank, llm.max_new_tokens)
    assert again.complete(prompt).text == text
    again.close()


async def test_loading_the_model_does_not_block_the_event_loop(bank: Path, prompt: str) -> None:
    """LlamaIndex looks at the model's metadata in the loop before it calls anything."""
    real = QVPIC.from_pretrained

    def slow(**options: Any) -> QVPIC:
        time.sleep(1.0)
        return real(**options)

    pauses: list[float] = []
    watcher = asyncio.create_task(watch(pauses))
    await asyncio.sleep(0)  # it begins to look
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lazy.QVPIC, "from_pretrained", slow)
        for call in ("acomplete", "apredict", "achat", "astream_chat"):
            asked: Any = [ChatMessage(content=prompt)]
            asked = {"acomplete": prompt, "apredict": PromptTemplate(prompt)}.get(call, asked)
            await getattr(QVPICLLM(model="demo", bank=bank, max_new_tokens=24), call)(asked)
    watcher.cancel()
    assert max(pauses) < 0.9


def test_a_copy_and_a_changed_option_have_engines_of_their_own(bank: Path) -> None:
    llm = QVPICLLM(model="demo", bank=bank, max_new_tokens=24)
    first = llm.rag
    other = llm.model_copy(update={"namespace": "other"})
    assert other.rag is not first
    assert other.rag.bank.namespace == "other"
    assert copy.deepcopy(llm).rag is not first
    assert llm.rag is first
    llm.budget = 0
    assert llm.rag is not first
    assert {page.dpi for page in llm.rag.ask(BADGE, max_new_tokens=2).route.pages} == {72}
    other.close()
    assert llm.complete(BADGE).text  # closing one closes no other


def test_a_stream_outlives_its_models_object(bank: Path, prompt: str) -> None:
    def handler() -> Any:
        return QVPICLLM(model="demo", bank=bank, max_new_tokens=24).stream_complete(prompt)

    stream = handler()
    gc.collect()
    assert [*stream][-1].text == CODE


def test_closing_lets_go_of_the_engine(bank: Path) -> None:
    llm = QVPICLLM(model="demo", bank=bank)
    engine = weakref.ref(llm.rag)
    llm.close()
    gc.collect()
    assert engine() is None
