"""The whole pipeline, from text to answer, on every family: the same answer as the stages called by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from qvpic_rag import QVPIC, Document
from qvpic_rag.config import RenderProfile
from tests.matrix import Case, cases
from tests.serve import serve

PROFILE = RenderProfile(
    name="small",
    page_width=64,
    page_height=30,
    margin_left=2,
    margin_right=2,
    margin_top=2,
    margin_bottom=2,
    font_size=6,
    line_height=8,
    font="bundled",
)
DOCUMENTS = [
    Document(
        "A red door. It has a brass handle and a bell. Nobody has opened it since the long winter of the flood.", "door"
    ),
    Document("A green field with nine cows in it.", "field"),
]


@cases()
def test_from_text_to_answer(case: Case, tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_folder(case.family)
    with QVPIC.from_pretrained(
        str(folder),
        tmp_path / "bank",
        embedder="demo",
        profile=PROFILE,
        dpis=(48, 72),
        top_k=3,
        dtype=case.dtype,
        trust_remote_code=case.row.remote,
    ) as rag:
        report = rag.ingest(DOCUMENTS)
        assert report.pages >= 3
        assert report.compiled == 2 * report.pages
        answer = rag.ask("Which door is the red one?", max_new_tokens=8)
        assert {page.dpi for page in answer.route.pages} <= {48, 72}
        assert answer.route.pages[0].source == "door"
        pictures = [rag.page_image(rag.page(page.page_id), page.dpi) for page in answer.route.pages]
    engine = serve(folder, dtype=case.dtype)
    by_hand = engine.generate(engine.compile(pictures), "Which door is the red one?")
    if case.dtype == "float32":  # in bfloat16 a batch of pages may round otherwise than one page
        assert (answer.text, answer.finish_reason) == (by_hand.text, by_hand.finish_reason)
    assert answer.usage.output_tokens <= 8


def test_a_thinking_model(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    """The generation prompt opens the reasoning; a model that never closes it has not answered yet."""
    with QVPIC.from_pretrained(
        str(tiny_folder("glm4v", template="thinking")),
        tmp_path / "bank",
        embedder="demo",
        profile=PROFILE,
        dpis=(48, 72),
    ) as rag:
        rag.ingest(DOCUMENTS)
        answer = rag.ask("Which door?", max_new_tokens=8)
    assert answer.text == ""
    assert answer.reasoning
    assert answer.finish_reason == "length"


@pytest.mark.parametrize("family", ["qwen2_5_vl", "glm4v"])
def test_a_bank_is_bound_to_its_model(family: str, tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    from qvpic_rag.errors import BankMismatchError

    options = {"embedder": "demo", "profile": PROFILE, "dpis": (48, 72)}
    with QVPIC.from_pretrained(str(tiny_folder(family)), tmp_path / "bank", **options) as rag:  # type: ignore[arg-type]
        rag.ingest(DOCUMENTS)
    for other in (tiny_folder(family, seed=1), tiny_folder("qwen3_vl")):
        with pytest.raises(BankMismatchError) as caught:
            QVPIC.open(tmp_path / "bank", model=str(other))
        assert caught.value.field == "model"
    with pytest.raises(BankMismatchError) as caught:
        QVPIC.open(tmp_path / "bank", model=str(tiny_folder(family, template="newline")))
    assert caught.value.field == "prefix"
