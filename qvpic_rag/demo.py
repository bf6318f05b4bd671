"""The demonstration: bundled documents, bundled reader, three questions, and full prefill beside every answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from qvpic_rag.baselines import FullPrefill
from qvpic_rag.config import GenerateConfig
from qvpic_rag.pipeline import QVPIC
from qvpic_rag.records import Answer, Document, Message

__all__ = ["Shown", "demo_documents", "run_demo"]

_DEMO = Path(__file__).parent / "assets" / "demo"
_SETTINGS: dict[str, Any] = {"max_new_tokens": 32}
_REPETITIONS = 3


@dataclass(frozen=True)
class Shown:
    """One question with both ways of answering it from the same pages.

    Attributes
    ----------
    expected : str
        What the documents say.
    cached, full : Answer
        From the bank, and by full prefill of the same pages at high resolution, pictures rendered beforehand.
    cached_ttft, full_ttft : float
        Time to first token, milliseconds: medians over repetitions in turn, because machines are noisy. The first
        includes query embedding, search and routing.
    """

    question: str
    expected: str
    cached: Answer
    full: Answer
    cached_ttft: float
    full_ttft: float

    @property
    def correct(self) -> bool:
        """Whether the cached answer is what the documents say."""
        return self.cached.text == self.expected


def demo_documents() -> list[Document]:
    """The bundled documents, named by their files."""
    files = sorted((_DEMO / "documents").glob("*.txt"))
    return [Document(file.read_text(encoding="utf-8"), file.name) for file in files]


def run_demo(rag: QVPIC) -> Iterator[Shown]:
    """Ask the bundled questions of an engine that holds the bundled documents."""
    baseline = FullPrefill(rag.engine.model, rag.engine.template)
    questions = json.loads((_DEMO / "questions.json").read_text(encoding="utf-8"))
    _ask_both_ways(rag, baseline, questions[0], 1)  # first passes allocate memory; neither way should pay for that
    for entry in questions:
        yield _ask_both_ways(rag, baseline, entry, _REPETITIONS)


def _ask_both_ways(rag: QVPIC, baseline: FullPrefill, entry: dict[str, str], repetitions: int) -> Shown:
    messages, settings = [Message("user", entry["text"])], GenerateConfig(**_SETTINGS)
    cached_times, full_times = [], []
    for _ in range(repetitions):
        cached = rag.ask(entry["text"], **_SETTINGS)
        pictures = [rag.page_image(rag.page(page.page_id), rag.engine.high) for page in cached.route.pages]
        full = baseline.answer(messages, pictures, settings)
        cached_times.append(cached.timing.ttft)
        full_times.append(full.timing.ttft)
    return Shown(entry["text"], entry["answer"], cached, full, median(cached_times), median(full_times))
