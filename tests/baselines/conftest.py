"""Subjects over tiny models, and the models alone for references."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
from tests.baselines.fakes import Drawn, Letters, answered
from tests.baselines.reference import Piece, logits
from tests.matrix import Case
from tests.tiny import TEXT_FAMILIES

__all__ = ["World"]


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

    def check(self, case: Case, ours: torch.Tensor, pieces: Callable[[PreTrainedModel], list[Piece]]) -> None:
        """float32: equal to the masked pass; bfloat16: no further from float32 than a small multiple of it."""
        exact = logits(self.exact, pieces(self.exact))
        if case.logits is not None:
            assert float((ours - exact).abs().max()) <= case.logits
        else:
            same = logits(self.model, pieces(self.model))
            assert float((ours - exact).abs().max()) <= case.ratio * float((same - exact).abs().max())


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
            made[key] = World(
                subject, folder, tiny_model(family, dtype, **options), tiny_model(family, **options)
            )
        return made[key]

    return get
