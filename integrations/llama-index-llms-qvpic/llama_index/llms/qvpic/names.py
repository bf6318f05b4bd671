"""What a node is called in the bank, and what of it the model reads."""

from __future__ import annotations

import hashlib

from llama_index.core.schema import BaseNode, MetadataMode, TextNode
from qvpic_rag.render import is_blank

__all__ = ["is_empty", "ref_doc_of", "source_of", "sources_begin", "text_of"]

_OURS = "llamaindex/"  # what other programs name their documents in the same bank does not begin so


def ref_doc_of(node: BaseNode) -> str:
    """The document that a node belongs to; a document that was never split belongs to itself."""
    return node.ref_doc_id or node.node_id


def sources_begin(ref_doc_id: str) -> str:
    """What the bank's names of all nodes of a document begin with, and no others do.

    Ids are arbitrary text; the first ``#`` ends the document's id, in which it is escaped.
    """
    return _OURS + ref_doc_id.replace("%", "%25").replace("#", "%23") + "#"


def source_of(node: BaseNode) -> str:
    """The name under which the bank links a node's pages: its document, and a digest of what is read.

    A node's own id would do, but splitters draw a new one each time, and so would leave the old name behind.
    """
    digest = hashlib.sha256(text_of(node).encode("utf-8", "surrogatepass")).hexdigest()
    return sources_begin(ref_doc_of(node)) + digest[:32]


def text_of(node: BaseNode) -> str:
    """What a language model is shown of a node: its text with the metadata that is meant for models."""
    if isinstance(node, TextNode):  # a ticketed node answers with its ticket; its text is that of a plain node
        return TextNode.get_content(node, MetadataMode.LLM)
    return node.get_content(MetadataMode.LLM)


def is_empty(node: BaseNode) -> bool:
    """Whether a node has nothing that can be drawn, such as a picture without a text."""
    return is_blank(text_of(node))
