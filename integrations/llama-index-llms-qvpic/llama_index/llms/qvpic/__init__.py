"""LlamaIndex on precompiled page caches: a language model that reads retrieved nodes without prefilling their text.

>>> from llama_index.llms.qvpic import QVPICLLM                            # doctest: +SKIP
>>> llm = QVPICLLM(model="demo", bank="./bank")                            # doctest: +SKIP
>>> llm.as_query_engine(index).query("What is the badge code of Ada?")     # doctest: +SKIP
"""

from __future__ import annotations

from llama_index.llms.qvpic.embedding import QVPICEmbedding
from llama_index.llms.qvpic.engines import QVPICQueryEngine
from llama_index.llms.qvpic.llm import QVPICLLM
from llama_index.llms.qvpic.names import source_of
from llama_index.llms.qvpic.postprocessor import QVPICNodePostprocessor
from llama_index.llms.qvpic.tickets import TicketExpiredError
from llama_index.llms.qvpic.transform import QVPICTransform
from llama_index.llms.qvpic.vector_store import QVPICVectorStore

__version__ = "0.1.0"

__all__ = [
    "QVPICLLM",
    "QVPICEmbedding",
    "QVPICNodePostprocessor",
    "QVPICQueryEngine",
    "QVPICTransform",
    "QVPICVectorStore",
    "TicketExpiredError",
    "__version__",
    "source_of",
]
