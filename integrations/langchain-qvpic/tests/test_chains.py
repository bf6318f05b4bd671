"""Chains and graphs: the right answers, from caches."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_classic.chains.retrieval import create_retrieval_chain
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableParallel, RunnablePassthrough
from langgraph.graph import END, START, MessagesState, StateGraph
from qvpic_rag.errors import InputError

from langchain_qvpic import ChatQVPIC, QVPICRetriever, QVPICVectorStore, docs_to_qvpic_messages, qvpic_rag_chain

ASKED = {
    "What is the badge code of Omar Reyes?": "TB-209",
    "What is the travel city of Tove Brandt?": "Odessa",
    "What is the parcel price of Tove Brandt?": "$48.20",
}
QUESTION, ANSWER = next(iter(ASKED.items()))


@pytest.fixture
def retriever(store: QVPICVectorStore) -> QVPICRetriever:
    return QVPICRetriever(vectorstore=store, k=3)


def cached(message: AIMessage) -> bool:
    route = message.response_metadata["route"]
    return bool(route["pages"]) and route["compiled"] == [] and route["dropped"] == []


async def test_rag_chain(llm: ChatQVPIC, retriever: QVPICRetriever) -> None:
    chain = qvpic_rag_chain(retriever, llm)
    for question, answer in ASKED.items():
        found = chain.invoke(question)
        assert list(found) == ["answer", "context", "question"]
        assert found == {"answer": answer, "context": retriever.invoke(question), "question": question}
    assert [each["answer"] for each in await chain.abatch(list(ASKED))] == list(ASKED.values())
    assert (await chain.ainvoke({"question": QUESTION}))["answer"] == ANSWER


async def test_rag_chain_streams(llm: ChatQVPIC, retriever: QVPICRetriever) -> None:
    chain = qvpic_rag_chain(retriever, llm)
    for pieces in (list(chain.stream(QUESTION)), [each async for each in chain.astream(QUESTION)]):
        answers = [each["answer"] for each in pieces if "answer" in each]
        assert len(answers) > 2
        assert "".join(answers) == ANSWER
        assert {"question": QUESTION} in pieces


def test_rag_chain_with_given_documents(llm: ChatQVPIC, retriever: QVPICRetriever, documents: list[Document]) -> None:
    chain = qvpic_rag_chain(retriever, llm)
    badges = [each for each in documents if each.id == "badges.txt"]
    assert chain.invoke({"question": QUESTION, "context": badges})["answer"] == ANSWER
    nothing = chain.invoke({"question": QUESTION, "context": []})
    assert nothing["context"] == []  # and not what the retriever would have found
    assert ANSWER not in nothing["answer"]


@pytest.mark.parametrize("wrong", [1, {}, {"question": None}, {"question": "Who?", "input": "Who?"}])
def test_rag_chain_refuses(llm: ChatQVPIC, retriever: QVPICRetriever, wrong: Any) -> None:
    with pytest.raises(InputError):
        qvpic_rag_chain(retriever, llm).invoke(wrong)


def test_lcel(llm: ChatQVPIC, retriever: QVPICRetriever) -> None:
    chain = RunnableParallel(context=retriever, question=RunnablePassthrough()) | docs_to_qvpic_messages | llm
    answer = chain.invoke(QUESTION)
    assert answer.content == ANSWER
    assert cached(answer)


TEMPLATES = {
    "lcel": [("human", "Answer the question based only on the following context:\n{context}\n\nQuestion: {input}\n")],
    "system": [
        (
            "system",
            "You are an assistant for question-answering tasks. Use the following pieces of retrieved context to "
            "answer the question. If you don't know the answer, say that you don't know. Use three sentences maximum "
            "and keep the answer concise.\n\n{context}",
        ),
        ("human", "{input}"),
    ],
    "beside": [
        (
            "system",
            "Use the given context to answer the question. If you don't know the answer, say you don't know. Use three "
            "sentence maximum and keep the answer concise. Context: {context}",
        ),
        ("human", "{input}"),
    ],
    "apart": [("human", "{context}"), ("human", "{input}")],
}


@pytest.mark.parametrize("template", list(TEMPLATES))
def test_stuff_documents(llm: ChatQVPIC, retriever: QVPICRetriever, template: str) -> None:
    prompt = ChatPromptTemplate.from_messages(TEMPLATES[template])
    seen: list[AIMessage] = []

    def keep(message: AIMessage) -> str:
        seen.append(message)
        return str(message.content)

    chain = create_retrieval_chain(retriever, create_stuff_documents_chain(llm, prompt, output_parser=keep))  # type: ignore[arg-type]
    for question, answer in ASKED.items():
        found = chain.invoke({"input": question})
        assert found["answer"] == answer
        assert cached(seen[-1])
        used = {page["source"].split("/", 3)[3] for page in seen[-1].response_metadata["route"]["pages"]}
        assert used == {each.id for each in found["context"]}


def test_message_state_of_langgraph(llm: ChatQVPIC, retriever: QVPICRetriever) -> None:
    class State(MessagesState):
        context: list[Document]

    def retrieve(state: State) -> dict[str, Any]:
        return {"context": retriever.invoke(str(state["messages"][-1].content))}

    def answer(state: State) -> dict[str, Any]:
        *history, asking = state["messages"]
        given = {"question": asking.content, "context": state["context"], "chat_history": history}
        return {"messages": [llm.invoke(docs_to_qvpic_messages(given))]}

    graph = StateGraph(State)
    graph.add_node("retrieve", retrieve)
    graph.add_node("answer", answer)
    graph.add_edge(START, "retrieve")
    graph.add_edge("retrieve", "answer")
    graph.add_edge("answer", END)
    app = graph.compile()
    state: Any = app.invoke({"messages": [HumanMessage(QUESTION)], "context": []})
    assert state["messages"][-1].content == ANSWER
    assert cached(state["messages"][-1])
    again = app.invoke({"messages": [*state["messages"], HumanMessage(list(ASKED)[1])], "context": []})
    assert len(again["messages"]) == 4
    assert cached(again["messages"][-1])
    pieces = app.stream({"messages": [HumanMessage(QUESTION)], "context": []}, stream_mode="messages")
    assert "".join(str(chunk.content) for chunk, _ in pieces) == ANSWER


def test_blocks_in_the_state_of_langgraph(llm: ChatQVPIC, retriever: QVPICRetriever) -> None:
    graph = StateGraph(MessagesState)
    graph.add_node("answer", lambda state: {"messages": [llm.invoke(state["messages"])]})
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    messages = docs_to_qvpic_messages({"question": QUESTION, "context": retriever.invoke(QUESTION)})
    last = graph.compile().invoke({"messages": messages})["messages"][-1]
    assert last.content == ANSWER
    assert cached(last)
