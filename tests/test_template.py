"""Prompt parts read off chat templates: whole prompts are reproduced, and templates that cannot work are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from qvpic_rag.errors import InputError, TemplateError
from qvpic_rag.models import VisionInputs, load_model
from qvpic_rag.records import Message
from qvpic_rag.template import ChatTemplate
from tests.matrix import families
from tests.reference import build_prompt
from tests.serve import Served, serve

QUESTION = "Which door is the red one?"
VARIANTS = ["default", "newline", "thinking", "system", "no_system"]


def _template(folder: Path, **options: Any) -> ChatTemplate:
    remote = '"auto_map"' in (folder / "config.json").read_text(encoding="utf-8")
    return ChatTemplate(load_model(str(folder), trust_remote_code=remote), **options)


@pytest.mark.parametrize("variant", VARIANTS)
@families()
def test_parts_make_the_whole_prompt(
    family: str,
    variant: str,
    tiny_folder: Callable[..., Path],
    tiny_model: Callable[..., Any],
    make_page_images: Callable[..., list[Image.Image]],
) -> None:
    folder = tiny_folder(family, template=variant)
    served = serve(folder)
    pages = make_page_images(3)
    template = served.template
    row = list(template.prefix)
    for number, block in enumerate(served.compile(pages)):
        row += [*(template.separator if number else ()), *block.token_ids.tolist()]
    row += template.suffix([Message("user", QUESTION)])
    assert row == build_prompt(tiny_model(family, template=variant), folder, pages, QUESTION).ids


def test_glm_prefix_is_the_papers_four_tokens(tiny_folder: Callable[..., Path]) -> None:
    assert len(_template(tiny_folder("glm4v")).prefix) == 4


@families()
def test_system_prompt_is_part_of_the_prefix(family: str, tiny_folder: Callable[..., Path]) -> None:
    plain = _template(tiny_folder(family))
    system = _template(tiny_folder(family), system_prompt="Answer briefly.")
    assert system.digest != plain.digest
    assert system.suffix([Message("user", QUESTION)]) == plain.suffix([Message("user", QUESTION)])
    assert "Answer briefly." in system._tokenizer.decode(system.prefix)


@families()
def test_history_follows_the_pages(family: str, tiny_folder: Callable[..., Path]) -> None:
    template = _template(tiny_folder(family))
    turns = [Message("user", "First?"), Message("assistant", "One answer."), Message("user", "Second?")]
    text = template._tokenizer.decode(template.suffix(turns))
    assert text.index("First?") < text.index("One answer.") < text.index("Second?")
    assert "'type'" not in text
    assert "'type'" not in template._tokenizer.decode(template.without_pages(turns))


@pytest.mark.parametrize(
    ("variant", "reason"), [("numbered", "depending on its place|changes the text"), ("text_only", "text only")]
)
@pytest.mark.parametrize("family", ["glm4v", "qwen2_vl", "llava_onevision"])
def test_templates_that_cannot_work_are_refused(
    family: str, variant: str, reason: str, tiny_folder: Callable[..., Path]
) -> None:
    with pytest.raises(TemplateError, match=reason):
        _template(tiny_folder(family, template=variant))


@families()
def test_a_question_cannot_smuggle_in_a_picture(family: str, tiny_folder: Callable[..., Path]) -> None:
    template = _template(tiny_folder(family))
    placeholder = template._tokenizer.convert_ids_to_tokens(template._image)
    for text in (placeholder, f"What is {placeholder} here?", placeholder * 3):
        with pytest.raises(InputError, match="picture placeholder"):
            template.suffix([Message("user", text)])
        with pytest.raises(InputError, match="picture placeholder"):
            template.without_pages([Message("user", text)])


def test_a_conversation_needs_a_user_turn(tiny_folder: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match="no user turn"):
        _template(tiny_folder("qwen3_vl")).suffix([Message("assistant", "Hello.")])


def test_the_template_of_the_processor_wins_over_the_tokenizers(
    tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    """Older checkpoints keep the picture template in chat_template.json and a text template with the tokenizer."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder("qwen2_vl"), folder)
    jinja = folder / "chat_template.jinja"
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": jinja.read_text(encoding="utf-8")}))
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["chat_template"] = "{% for m in messages %}{{ m.content }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    jinja.unlink()
    assert _template(folder).prefix == _template(tiny_folder("qwen2_vl")).prefix


def test_text_between_pictures_only(
    tiny_folder: Callable[..., Path], make_page_images: Callable[..., list[Image.Image]], tmp_path: Path
) -> None:
    """A separator belongs to no page: it is compiled once and linked between them."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder("qwen2_vl"), folder)
    jinja = folder / "chat_template.jinja"
    picture = "{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    text = jinja.read_text(encoding="utf-8")
    assert picture in text
    between = "{%- if counter.pictures > 1 -%}{{ ' and ' }}{%- endif -%}"
    jinja.write_text(text.replace(picture, between + picture), encoding="utf-8")
    served = serve(folder)
    template = served.template
    assert template._tokenizer.decode(template.separator) == " and "
    pages = make_page_images(3)
    context, ids = served.link(served.compile(pages), QUESTION)
    assert [*context.token_ids.tolist(), *ids] == build_prompt(served.model.model, folder, pages, QUESTION).ids
    reference = served.model.positions(torch.tensor([[*context.token_ids.tolist(), *ids]]), _vision(served, pages))
    assert torch.equal(context.positions, reference[:, 0, : context.tokens])


def _vision(served: Served, pages: list[Image.Image]) -> VisionInputs:
    return served.model.encode_images(pages, together=True)
