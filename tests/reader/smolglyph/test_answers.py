"""SmolLM2's own answers: collected once, kept, continued."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from qvpic_rag.errors import ConfigError
from qvpic_rag.models.smolglyph.base import Base
from qvpic_rag.models.smolglyph.model import build_model
from qvpic_rag.reader.smolglyph import answers
from qvpic_rag.reader.smolglyph.corpus import Corpus
from qvpic_rag.reader.smolglyph.lessons import Prose
from qvpic_rag.reader.smolglyph.requests import ABOUT, Prompts
from tests.reader.smolglyph.conftest import TOWER
from tests.reader.smolglyph.texts import english


def test_answers_are_collected_once(
    tiny_base: Base, prompts: Prompts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "_TOGETHER", 3)
    monkeypatch.setattr(answers, "_LONGEST", 6)
    model = build_model(tiny_base, TOWER, seed=0)
    corpus = Corpus(tuple(english(0, 30)), ("x",), ("x",))
    prose = Prose(corpus, "train", prompts.tokenizer)
    said: list[str] = []
    path = tmp_path / "answers.jsonl"
    first = answers.load_answers(path, 2, model, prompts, prose, 1, said.append)
    more = answers.load_answers(path, 5, model, prompts, prose, 1, said.append)
    assert more[:2] == first
    assert len(said) == 2
    assert answers.load_answers(path, 5, model, prompts, prose, 1, said.append) == more
    assert len(said) == 2
    for each in more:
        assert each.request in ABOUT
        assert any(each.text in text for text in corpus.train)
    path.write_text("{}\n")
    with pytest.raises(ConfigError, match=r"answers\.jsonl"):
        answers.load_answers(path, 5, model, prompts, prose, 1, said.append)


def test_a_file_that_was_cut_off_goes_on(
    tiny_base: Base, prompts: Prompts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "_TOGETHER", 2)
    monkeypatch.setattr(answers, "_LONGEST", 4)
    model = build_model(tiny_base, TOWER, seed=0)
    prose = Prose(Corpus(tuple(english(0, 30)), ("x",), ("x",)), "train", prompts.tokenizer)
    path = tmp_path / "answers.jsonl"
    whole = answers.load_answers(path, 4, model, prompts, prose, 1, print)
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    for cut in (len(text) - 1, len(text) - 9, len("".join(lines[:3])), len(lines[0]) + 1, 5):
        path.write_text(text[:cut])
        assert answers.load_answers(path, 4, model, prompts, prose, 1, print) == whole
        assert path.read_text() == text
    assert [each.name for each in tmp_path.iterdir()] == ["answers.jsonl"]
    path.write_text(lines[0] + "half\n" + "".join(lines[2:]))
    with pytest.raises(ConfigError, match=r"answers\.jsonl"):
        answers.load_answers(path, 4, model, prompts, prose, 1, print)


def test_answers_are_the_models_greedy_ones(tiny_base: Base, prompts: Prompts) -> None:
    """Token by token, one text alone, without a cache."""
    model = build_model(tiny_base, TOWER, seed=0)
    texts = [f"Box {number} is in the hall." for number in range(10, 99)]
    texts = [text for text in texts if len(prompts.ids(text)) == len(prompts.ids(texts[0]))][:2]
    assert len(texts) == 2
    replies = answers.answer(model, prompts, texts, "What?", 5)
    for text, reply in zip(texts, replies, strict=True):
        context = prompts.as_text([text], [prompts.asked("What?", "")])
        ids = [*context.prefix, *context.open, *context.close, *context.asked[0].prompt]
        start = len(ids)
        with torch.no_grad():
            for _ in range(5):
                ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        kept = ids[start:]
        ends = [place for place, token in enumerate(kept) if token in (0, 2)]
        assert reply == prompts.tokenizer.decode(kept[: ends[0]] if ends else kept).strip()
