"""Many callers, one model: nobody hangs, nobody is lost, nobody gets another's answer."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableConfig, RunnableParallel
from qvpic_rag import QVPIC, RequestConfig
from qvpic_rag.errors import GenerationError, InputError, QueueFullError
from qvpic_rag.pipeline.turns import turns_of

from langchain_qvpic import ChatQVPIC, docs_to_qvpic_messages

ASKED = {
    "What is the badge code of Omar Reyes?": "TB-209",
    "What is the library room of Ines Falk?": "C17",
    "What is the parcel price of Tove Brandt?": "$48.20",
}


@pytest.fixture
def asked(documents: list[Document]) -> list[list[BaseMessage]]:
    return [docs_to_qvpic_messages({"question": each, "context": documents}) for each in ASKED]


def test_batch(llm: ChatQVPIC, asked: list[list[BaseMessage]]) -> None:
    alone = [llm.invoke(each).content for each in asked]
    together = llm.batch(asked * 4, config={"max_concurrency": 6})
    assert [each.content for each in together] == alone * 4


def test_threads_that_stream(llm: ChatQVPIC, asked: list[list[BaseMessage]]) -> None:
    alone = [llm.invoke(each).content for each in asked]
    with ThreadPoolExecutor(8) as pool:
        streamed = list(pool.map(lambda each: "".join(str(c.content) for c in llm.stream(each)), asked * 4))
    assert streamed == alone * 4


async def test_async_leaves_the_loop_free(llm: ChatQVPIC, asked: list[list[BaseMessage]]) -> None:
    with turns_of(llm.rag.engine.model).turn(0):  # nothing is answered until this turn ends
        task = asyncio.create_task(llm.ainvoke(asked[0]))
        for _ in range(5):
            await asyncio.sleep(0.01)
        assert not task.done()
    assert (await task).content == llm.invoke(asked[0]).content


async def test_a_cancelled_task_frees_the_model(llm: ChatQVPIC, asked: list[list[BaseMessage]]) -> None:
    with turns_of(llm.rag.engine.model).turn(0):
        task = asyncio.create_task(llm.ainvoke(asked[0]))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await llm.ainvoke(asked[1])


def test_a_full_queue(full_bank: Path, asked: list[list[BaseMessage]]) -> None:
    with ChatQVPIC(model="demo", bank=full_bank, max_waiting=0) as llm:
        with turns_of(llm.rag.engine.model).turn(0):  # one is answered, none may wait
            with pytest.raises(QueueFullError, match="max_waiting"):
                llm.invoke(asked[0])
            with pytest.raises(QueueFullError):
                list(llm.stream(asked[0]))
            failed = llm.batch(asked, return_exceptions=True)
            assert all(isinstance(each, QueueFullError) for each in failed)
        assert llm.invoke(asked[0]).content


@pytest.fixture
def held(llm: ChatQVPIC, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """``held()``: tokens generated so far; every token takes a moment."""
    network = llm.rag.engine.model.model
    tokens = 0
    original = network.forward

    def slow(*args: Any, **kwargs: Any) -> Any:
        nonlocal tokens
        tokens += 1
        threading.Event().wait(0.05)
        return original(*args, **kwargs)

    monkeypatch.setattr(network, "forward", slow)
    return lambda: tokens


def test_a_consumer_that_stops_reading(llm: ChatQVPIC, asked: list[list[BaseMessage]], held: Callable[[], int]) -> None:
    stream = llm.stream(asked[0])
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    stopped = held()
    threading.Event().wait(0.15)
    assert held() == stopped < 6
    assert llm.invoke(asked[0], max_tokens=1)


async def test_an_async_consumer_that_stops_reading(
    llm: ChatQVPIC, asked: list[list[BaseMessage]], held: Callable[[], int]
) -> None:
    stream = llm.astream(asked[0])
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    await asyncio.sleep(
        0.15
    )  # LangChain leaves the inner generator to the event loop, which closes it in its next round
    stopped = held()
    await asyncio.sleep(0.15)
    assert held() == stopped < 6
    assert await llm.ainvoke(asked[0], max_tokens=1)


async def test_a_model_that_fails(
    llm: ChatQVPIC, asked: list[list[BaseMessage]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(llm.rag.engine.model.model, "forward", fail)
        with pytest.raises(GenerationError):
            llm.invoke(asked[0])
        with pytest.raises(GenerationError):
            list(llm.stream(asked[0]))
        with pytest.raises(GenerationError):
            await llm.ainvoke(asked[0])
        with pytest.raises(GenerationError):
            _ = [chunk async for chunk in llm.astream(asked[0])]
        found = llm.batch(asked, return_exceptions=True)
        assert all(isinstance(each, GenerationError) for each in found)
    assert llm.invoke(asked[0]).content


@pytest.fixture(params=[0, 1])
def narrow(request: pytest.FixtureRequest, full_bank: Path) -> Iterator[ChatQVPIC]:
    """A chat model in front of which hardly any question may wait."""
    with ChatQVPIC(model="demo", bank=full_bank, max_waiting=request.param, max_tokens=1) as llm:
        yield llm


async def test_a_batch_waits_for_itself(narrow: ChatQVPIC, asked: list[list[BaseMessage]]) -> None:
    inputs = asked[:1] * 9
    for config in (None, RunnableConfig(max_concurrency=9), [RunnableConfig(tags=["x"])] * 9):
        assert len(narrow.batch(inputs, config)) == 9
        assert len(await narrow.abatch(inputs, config)) == 9
        assert {at for at, _ in narrow.batch_as_completed(inputs, config)} == set(range(9))
        assert {at async for at, _ in narrow.abatch_as_completed(inputs, config)} == set(range(9))
    assert len(await narrow.bind(stop=["x"]).abatch(inputs)) == 9
    assert narrow.batch([]) == await narrow.abatch([]) == list(narrow.batch_as_completed([])) == []
    with pytest.raises(InputError):
        narrow.batch([[AIMessage("No question.")]] * 2)
    failed = narrow.batch([[AIMessage("No question.")]] * 2, return_exceptions=True)
    assert all(isinstance(each, InputError) for each in failed)


async def test_a_batch_of_a_graph_is_bounded_by_its_caller(narrow: ChatQVPIC, asked: list[list[BaseMessage]]) -> None:
    graph = RunnableParallel(answer=narrow)  # calls the model once for each input, all at once
    found = await graph.abatch(asked[:1] * 9, return_exceptions=True)
    assert any(isinstance(each, QueueFullError) for each in found)
    assert len(await graph.abatch(asked[:1] * 9, {"max_concurrency": 1})) == 9


async def test_a_usual_batch_is_no_overflow(llm: ChatQVPIC, asked: list[list[BaseMessage]]) -> None:
    default = inspect.signature(QVPIC.from_pretrained).parameters["max_waiting"].default
    assert default == RequestConfig().max_waiting  # what is said of one holds for the other
    graph = RunnableParallel(answer=llm.bind(max_tokens=1))
    assert len(await graph.abatch(asked[:1] * 100)) == 100
