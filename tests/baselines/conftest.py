"""Subjects over tiny models, and the models alone for references."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from qvpic_rag.baselines.base import Method, Request
from qvpic_rag.baselines.spec import make_method
from qvpic_rag.baselines.subject import Subject
from qvpic_rag.models import load_model
from qvpic_rag.models.text import load_text_model
from tests.baselines.fakes import QUESTION, Drawn, Letters, answered
from tests.baselines.reference import Piece, logits, prompt_ends
from tests.matrix import Case
from tests.tiny import TEXT_FAMILIES

__all__ = ["World"]

QUESTIONS = (QUESTION, "What sat where?", "Who is tall?", "Name the day.")
Pieces = Callable[[PreTrainedModel, list[int]], list[Piece]]


@dataclass(frozen=True)
class World:
    """One family at one dtype: the subject that methods get, and what references are computed with.

    ``exact`` is the same model in float32.
    """

    subject: Subject
    folder: Path
    model: PreTrainedModel
    exact: PreTrainedModel

    def method(self, spec: str) -> Method:
        """A new method."""
        return make_method(spec, self.subject)

    def asked(self, spec: str, request: Request) -> torch.Tensor:
        """Logits of a new method, prepared for the request."""
        method = self.method(spec)
        method.prepare(request.pages, request.before)
        return answered(self.subject.model, method, request)[1]

    def check(self, case: Case, spec: str, request: Request, pieces: Pieces) -> None:
        """Compare a method with the masked pass over ``pieces(model, tail)``.

        float32: equal. bfloat16: over some questions, no further from float32 than a small multiple of that pass.
        """
        method = self.method(spec)
        method.prepare(request.pages, request.before)
        errors, plain = [], []
        for question in QUESTIONS if case.logits is None else QUESTIONS[:1]:
            ours = answered(self.subject.model, method, replace(request, after=question))[1]
            tail = prompt_ends(self.model, self.folder, question)[1]
            exact = logits(self.exact, pieces(self.exact, tail))
            errors.append(float((ours - exact).abs().max()))
            if case.logits is None:
                plain.append(float((logits(self.model, pieces(self.model, tail)) - exact).abs().max()))
        assert max(errors) <= (case.logits if case.logits is not None else case.ratio * max(plain))


@pytest.fixture(scope="session")
def world(tiny_folder: Callable[..., Path], tiny_model: Callable[..., Any]) -> Callable[..., World]:
    """``world(family, dtype="float32", **options)``, made once; leave its models as they are."""
    made: dict[tuple[str, str, str], World] = {}

    def get(family: str, dtype: str = "float32", **options: Any) -> World:
        key = (family, dtype, repr(sorted(options.items())))
        if key not in made:
            folder = tiny_folder(family, **options)
            if family in TEXT_FAMILIES:
                model = load_text_model(str(folder), device="cpu", dtype=dtype)
            else:
                model = load_model(
                    str(folder), device="cpu", dtype=dtype, trust_remote_code=family == "llava_onevision2"
                )
            subject = Subject(model, None if family in TEXT_FAMILIES else Drawn(), Letters())
            made[key] = World(subject, folder, tiny_model(family, dtype, **options), tiny_model(family, **options))
        return made[key]

    return get
