"""The facade and everything that wires stages together; no stage imports another one, only this package does."""

from qvpic_rag.pipeline.facade import QVPIC
from qvpic_rag.pipeline.ingest import IngestReport
from qvpic_rag.pipeline.stream import AnswerStream

__all__ = ["QVPIC", "AnswerStream", "IngestReport"]
