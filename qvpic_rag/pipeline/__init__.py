"""The facade and everything that wires stages together; no stage imports another one, only this package does."""

from qvpic_rag.pipeline.conversation import Asked
from qvpic_rag.pipeline.facade import QVPIC
from qvpic_rag.pipeline.ingest import IngestReport
from qvpic_rag.pipeline.lazy import LazyEngine
from qvpic_rag.pipeline.recognise import Recognised
from qvpic_rag.pipeline.shared import shared_embedder
from qvpic_rag.pipeline.stream import AnswerStream

__all__ = ["QVPIC", "AnswerStream", "Asked", "IngestReport", "LazyEngine", "Recognised", "shared_embedder"]
