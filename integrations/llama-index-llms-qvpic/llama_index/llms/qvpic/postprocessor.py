"""The node postprocessor that puts tickets in place of retrieved nodes."""

from __future__ import annotations

from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import Document, IndexNode, NodeWithScore, QueryBundle, TextNode

from llama_index.llms.qvpic.names import is_empty, ref_doc_of, text_of
from llama_index.llms.qvpic.responses import calls_now
from llama_index.llms.qvpic.tickets import TICKETS, Ticket, TicketNode

__all__ = ["QVPICNodePostprocessor"]

_TEXTS = (TextNode, TicketNode, Document, IndexNode)  # whose subclasses may show a model something else than text


class QVPICNodePostprocessor(BaseNodePostprocessor):
    """Lets :class:`QVPICLLM` see which nodes were retrieved, in which order and with which scores.

    Put it last, in query and chat engines whose language model is a ``QVPICLLM``; ``QVPICLLM.as_query_engine`` and
    ``as_chat_engine`` do. Not for engines that return retrieved text to somebody else (``context_only``, retriever
    tools): those would see tickets. A postprocessor behind it that changes a node's text has the new text prefilled.
    Nodes of other kinds, such as pictures, stay as they are.
    """

    @classmethod
    def class_name(cls) -> str:
        """The name that LlamaIndex stores."""
        return "QVPICNodePostprocessor"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query = query_bundle.query_str if query_bundle is not None else ""
        return [_ticketed(found, query, rank) for rank, found in enumerate(nodes)]

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return self._postprocess_nodes(nodes, query_bundle)  # too little work for a thread


def _ticketed(found: NodeWithScore, query: str, rank: int) -> NodeWithScore:
    node = found.node
    if not isinstance(node, TextNode | Document) or type(node) not in _TEXTS or is_empty(node):
        return found
    ticket = Ticket(
        text=text_of(node),
        node_id=node.node_id,
        ref_doc_id=ref_doc_of(node),
        query=query,
        rank=rank,
        score=None if found.score is None else float(found.score),
        calls=calls_now(),
    )
    return NodeWithScore(node=TicketNode.of(node, TICKETS.mint(ticket)), score=found.score)
