"""The card's tables, from a tiny random reader: everything runs through the engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from qvpic_rag.config import RenderProfile
from qvpic_rag.errors import ConfigError, ModelNotFoundError
from qvpic_rag.models import load_model
from qvpic_rag.models.smolglyph import adapter
from qvpic_rag.models.smolglyph.base import Base
from qvpic_rag.models.smolglyph.lora import Lora
from qvpic_rag.models.smolglyph.model import build_model
from qvpic_rag.reader.smolglyph import evaluate
from qvpic_rag.reader.smolglyph.corpus import Corpus
from qvpic_rag.reader.smolglyph.evaluate import GlyphExaminer, measure, trained_on
from tests.reader.smolglyph.conftest import TOWER
from tests.reader.smolglyph.texts import english

CORPUS = Corpus(("x",), ("x",), tuple(english(0, 9)))


@pytest.fixture(scope="module")
def examiner(tiny_base: Base, tmp_path_factory: pytest.TempPathFactory) -> GlyphExaminer:
    folder = tmp_path_factory.mktemp("reader")
    model = build_model(tiny_base, TOWER, seed=1)
    lora = Lora(model.config.text_config, 2, seed=1)
    about = {"tower": TOWER.to_dict(), "rank": 2, "base": tiny_base.digest}
    adapter.save_adapter(model.model.visual.state_dict(), lora.state_dict(), about, folder / "adapter")
    adapter.assemble(folder / "adapter", folder / "model", base=tiny_base)
    return GlyphExaminer(load_model(str(folder / "model")), CORPUS, RenderProfile.load("smolglyph"))


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_REPEATED", "_ANSWERED", "_TOLD"):
        monkeypatch.setattr(evaluate, name, 4)
    torch.manual_seed(0)


def test_pages_are_of_the_test_split_and_the_same_again(examiner: GlyphExaminer) -> None:
    for kind in ("prose", "facts"):
        first = examiner.pages(kind, 5)
        assert first == examiner.pages(kind, 5)
        assert len(first) == 5
    assert all(any(page.text in text for text in CORPUS.test) for _, page in examiner.pages("prose", 5))


def test_one_page_over_its_cache_answers_as_full_prefill(examiner: GlyphExaminer) -> None:
    outcomes = list(examiner.exact_match(1, range(1), 72))
    assert len(outcomes) == 2 * 5
    for full, native in zip(outcomes[::2], outcomes[1::2], strict=True):
        assert (full.method, native.method) == ("full", "native")
        assert full.question == native.question
        assert full.question.endswith(" Answer briefly.")
        assert full.answer == native.answer


def test_the_tables(examiner: GlyphExaminer) -> None:
    said: list[str] = []
    letters, exact, gates, told = measure(examiner, pages=1, asked=1, progress=said.append)
    assert letters.count("\n") == 2 + 4
    assert exact.count("\n") == 2 + 4
    assert gates.count("reached") == 3
    assert "What is this about?" in told
    assert len(said) == 4 + 4 + 1
    for table in (letters, exact, gates, told):
        assert len({line.count("|") - line.count("\\|") for line in table.splitlines()}) == 1


def test_text_without_a_page_of_prose_is_refused(examiner: GlyphExaminer) -> None:
    short = Corpus(("x",), ("x",), tuple(text[:200] for text in CORPUS.test))
    with pytest.raises(ConfigError, match="No paragraph"):
        GlyphExaminer(examiner.model, short, RenderProfile.load("smolglyph"))


def test_another_model_does_not_say_what_it_was_trained_on(tmp_path: Path) -> None:
    (tmp_path / adapter.ADAPTER).write_bytes(b"x")
    for name in ("demo", str(tmp_path), "nowhere"):
        with pytest.raises(ModelNotFoundError, match="holds no smolglyph adapter"):
            trained_on(name)
    save_file({"x": torch.zeros(1)}, tmp_path / adapter.ADAPTER)
    with pytest.raises(ModelNotFoundError, match="holds no smolglyph adapter"):
        trained_on(str(tmp_path))


def test_gates() -> None:
    table = evaluate._gates({"prose": [0.3, 0.08], "1": [0.2, 0.66], "4": [0.5, 0.54]})
    assert [line.split("|")[-2].strip() for line in table.splitlines()[2:]] == ["reached", "reached", "not reached"]
