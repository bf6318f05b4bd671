"""A text model's chat template, cut where the context stands."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from qvpic_rag.baselines.text_template import TextTemplate
from qvpic_rag.errors import InputError, TemplateError
from qvpic_rag.models import LanguageModel
from qvpic_rag.models.text import load_text_model
from qvpic_rag.records import Message
from tests.baselines.conftest import World
from tests.baselines.fakes import QUESTION


@pytest.fixture
def with_template(tiny_folder: Callable[..., Path], tmp_path: Path) -> Callable[[str], LanguageModel]:
    """``with_template(jinja)``: a model with another chat template."""
    folder = Path(shutil.copytree(tiny_folder("llama"), tmp_path / "model"))

    def load(jinja: str) -> LanguageModel:
        (folder / "chat_template.jinja").write_text(jinja, encoding="utf-8")
        return load_text_model(str(folder))

    return load


@pytest.mark.parametrize("system", [None, "", "Answer briefly."])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_parts_make_the_whole_prompt(family: str, system: str | None, world: Callable[..., World]) -> None:
    model = world(family).subject.model
    template = TextTemplate(model, system_prompt=system)
    turns = [{"role": "user", "content": QUESTION}]
    if system is not None:
        turns.insert(0, {"role": "system", "content": system})
    whole = model.tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    assert [*template.prefix, *template.suffix([Message("user", QUESTION)])] == whole
    assert template.separator == ()


def test_history_follows_the_context(world: Callable[..., World]) -> None:
    model = world("llama").subject.model
    turns = [Message("user", "First?"), Message("assistant", "One answer."), Message("user", "Second?")]
    text = model.tokenizer.decode(TextTemplate(model).suffix(turns))
    assert text.startswith("First?")
    assert text.index("One answer.") < text.index("Second?")


def test_a_conversation_without_a_user(world: Callable[..., World]) -> None:
    with pytest.raises(InputError, match="no user turn"):
        TextTemplate(world("llama").subject.model).suffix([Message("assistant", "Yes.")])


def test_half_a_surrogate_pair_is_no_character(world: Callable[..., World]) -> None:
    model = world("llama").subject.model
    template = TextTemplate(model)
    assert template.suffix([Message("user", "a\ud800b")]) == template.suffix([Message("user", "a?b")])


@pytest.mark.parametrize(
    ("jinja", "reason"),
    [
        ("{{ raise_exception('No.') }}", r"failed \(No\.\)"),
        ("{{ messages[0].content.nothing() }}", "failed"),
        ("Nothing of it.", "does not print the user's turn exactly once"),
        ("{{ messages[0].content }} {{ messages[0].content }}", "does not print the user's turn exactly once"),
        ("{{ messages[0].content[3:] }}", "does not print the user's turn exactly once"),
    ],
)
def test_templates_that_cannot_work_are_refused(
    jinja: str, reason: str, with_template: Callable[[str], LanguageModel]
) -> None:
    with pytest.raises(TemplateError, match=reason):
        TextTemplate(with_template(jinja))


@pytest.mark.parametrize("filter_", ["trim", "string", "replace('\\r', '')"])
def test_templates_may_tidy_up_what_is_said(filter_: str, with_template: Callable[[str], LanguageModel]) -> None:
    model = with_template("user: {{ messages[-1].content | " + filter_ + " }}\nassistant:")
    template = TextTemplate(model)
    assert model.tokenizer.decode(list(template.prefix)) == "user: "
    assert model.tokenizer.decode(template.suffix([Message("user", QUESTION)])) == QUESTION + "\nassistant:"
