"""The bundled reader: that it is what the recipe makes, and a small fixed part of its card's measurements."""

from __future__ import annotations

import json

import pytest
from transformers import AutoConfig, AutoTokenizer

from qvpic_rag.config import RenderProfile
from qvpic_rag.models import BUNDLED, load_model
from qvpic_rag.models.reader_images import image_processor
from qvpic_rag.reader.evaluate import Examiner, Outcome, character_errors
from qvpic_rag.reader.export import new_reader
from qvpic_rag.reader.network import Dimensions, build_model
from qvpic_rag.reader.pictures import PROFILE
from qvpic_rag.reader.tokens import build_tokenizer


@pytest.fixture(scope="module")
def examiner() -> Examiner:
    return Examiner(load_model("demo"), RenderProfile.load(PROFILE), (72, 120))


def test_training_can_go_on_from_it() -> None:
    model, _ = new_reader(seed=0, start=BUNDLED["demo"])
    assert 5e6 < sum(parameter.numel() for parameter in model.parameters()) < 8e6


def test_its_files_are_what_export_writes() -> None:
    tokenizer = build_tokenizer()
    model = build_model(Dimensions(), len(tokenizer), seed=0)
    written = AutoConfig.from_pretrained(BUNDLED["demo"]).to_dict()
    for part in ("text_config", "vision_config"):
        wanted = model.config.to_dict()[part]
        assert {name: written[part].get(name) for name in wanted if name != "dtype"} == {
            name: value for name, value in wanted.items() if name != "dtype"
        }
    bundled = AutoTokenizer.from_pretrained(BUNDLED["demo"])
    assert bundled.get_vocab() == tokenizer.get_vocab()
    assert bundled.chat_template == tokenizer.chat_template
    settings = json.loads((BUNDLED["demo"] / "preprocessor_config.json").read_text(encoding="utf-8"))
    assert settings == json.loads(json.dumps(image_processor("Glm4vImageProcessor")))
    assert sum(path.stat().st_size for path in BUNDLED["demo"].iterdir()) < 16e6


def _share(outcomes: list[Outcome], method: str, mode: str) -> float:
    chosen = [each.right for each in outcomes if (each.method, each.mode) == (method, mode)]
    return sum(chosen) / len(chosen)


@pytest.mark.parametrize(("pages", "least"), [(1, 0.75), (4, 0.7)])
def test_it_answers_from_page_caches_as_well_as_by_full_prefill(examiner: Examiner, pages: int, least: float) -> None:
    found = list(examiner.exact_match(pages, range(10), 4, methods=("full", "native"), modes=("low", "high")))
    for mode in ("low", "high"):
        assert _share(found, "native", mode) >= least
        assert _share(found, "native", mode) >= _share(found, "full", mode) - 0.1


def test_over_one_page_both_are_the_same(examiner: Examiner) -> None:
    found = list(examiner.exact_match(1, range(10, 16), 3, methods=("full", "native"), modes=("low", "high")))
    full, native = ([each.answer for each in found if each.method == method] for method in ("full", "native"))
    assert sum(a == b for a, b in zip(full, native, strict=True)) >= len(full) - 1  # ties in rounding aside


def test_it_writes_pages_down(examiner: Examiner) -> None:
    read = list(examiner.transcriptions(range(6), 120))
    wrong = sum(character_errors(said, found) for _, said, found in read)
    assert wrong < 0.18 * sum(len(said) for _, said, _ in read)
