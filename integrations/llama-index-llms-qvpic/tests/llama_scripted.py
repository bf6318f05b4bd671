"""A language model whose words can be scripted, and the demo documents as nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from qvpic_rag import Answer

from llama_index.llms.qvpic import QVPICLLM
from llama_index.llms.qvpic.conversation import Request

BADGE = "What is the badge code of Omar Reyes?"
CODE = "TB-209"


class ScriptedLLM(QVPICLLM):
    """The demo reader, which notes what it is asked and says what it is told to.

    Pages, prompts and caches are the real ones; only the words are scripted, for steps that need more language than
    the reader has. A script of None lets the reader speak.
    """

    _script: list[str | None] = PrivateAttr(default_factory=list)
    _asked: list[Request] = PrivateAttr(default_factory=list)

    def _stream(self, request: Request, options: dict[str, Any]) -> Any:
        self._asked.append(request)
        stream = super()._stream(request, options)
        said = self._script.pop(0) if self._script else None
        return stream if said is None else _Scripted(stream, said)

    @property
    def asked(self) -> list[Any]:
        """What the engine was asked, with the tickets in it as ``nodes``."""
        return [SimpleNamespace(**vars(request.asked), nodes=request.nodes) for request in self._asked]

    def says(self, *texts: str | None) -> None:
        self._script[:] = texts


class _Scripted:
    """A stream that reads the real one to its end and says something else."""

    def __init__(self, stream: Any, text: str) -> None:
        self._stream, self._text, self._pieces = stream, text, iter([text])

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    async def __aiter__(self) -> AsyncIterator[str]:
        for piece in self._pieces:
            yield piece
        async for _ in self._stream:
            pass

    @property
    def answer(self) -> Answer:
        list(self._stream)
        return replace(self._stream.answer, text=self._text)

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> _Scripted:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    async def __aenter__(self) -> _Scripted:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._stream.aclose()


def nodes_of(texts: dict[str, str]) -> list[TextNode]:
    """A node ``<name>-node`` of a document ``<name>`` for every text."""
    return [
        TextNode(
            text=text,
            id_=f"{name}-node",
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=name)},
        )
        for name, text in texts.items()
    ]
