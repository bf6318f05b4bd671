"""QV-PIC for LangChain: answers from precompiled KV caches of the retrieved documents' pages."""

from langchain_qvpic.chain import qvpic_rag_chain
from langchain_qvpic.chat import ChatQVPIC
from langchain_qvpic.documents import docs_to_qvpic_messages, document_block, qvpic_id
from langchain_qvpic.retriever import QVPICRetriever
from langchain_qvpic.vectorstore import QVPICVectorStore

__version__ = "0.1.0"

__all__ = [
    "ChatQVPIC",
    "QVPICRetriever",
    "QVPICVectorStore",
    "__version__",
    "docs_to_qvpic_messages",
    "document_block",
    "qvpic_id",
    "qvpic_rag_chain",
]
