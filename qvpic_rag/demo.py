"""The demonstration: bundled documents, bundled reader, three questions, and full prefill beside every answer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qvpic_rag.baselines import FullPrefill
from qvpic_rag.config import GenerateConfig
from qvpic_rag.pipeline import QVPIC
from qvpic_rag.records import Answer, Document, Message

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Shown", "demo_documents", "run_demo"]

_DEMO = Path(__file__).parent / "assets" / "demo"
_SETTINGS: dict[str, Any] = {"max_new_tokens": 32}


@dataclass(frozen=True)
class Shown:
    """One question with both ways of answering it from the same pages.

    ``expected`` is what the documents say. ``full`` is full prefill of the same pages at high resolution, pictures
    rendered beforehand; its ``timing.ttft`` compares with ``cached.timing.ttft``, which includes query embedding,
    search and routing.
    """

    question: str
    expected: str
    cached: Answer
    full: Answer

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
    questions = tomllib.loads((_DEMO / "questions.toml").read_text(encoding="utf-8"))["question"]
    _ask_both_ways(rag, baseline, questions[0])  # first passes allocate memory; neither way should pay for that
    for entry in questions:
        yield _ask_both_ways(rag, baseline, entry)


def _ask_both_ways(rag: QVPIC, baseline: FullPrefill, entry: dict[str, str]) -> Shown:
    cached = rag.ask(entry["text"], **_SETTINGS)
    pictures = [rag.page_image(rag.page(page.page_id), rag.engine.high) for page in cached.route.pages]
    full = baseline.answer([Message("user", entry["text"])], pictures, GenerateConfig(**_SETTINGS))
    return Shown(entry["text"], entry["answer"], cached, full)
