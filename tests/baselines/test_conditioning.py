"""What pages are compiled under, by name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qvpic_rag.baselines.conditioning import Conditioning
from qvpic_rag.baselines.spec import make_method
from qvpic_rag.baselines.subject import Subject
from qvpic_rag.errors import ConfigError
from qvpic_rag.models import load_model
from qvpic_rag.models.text import load_text_model
from tests.baselines.conftest import World
from tests.baselines.fakes import BEFORE, PAGES, QUESTION, Drawn, answered, request
from tests.baselines.reference import Chunk, everything, linked, logits, picture, prompt_ends, text_chunk, tokens
from tests.matrix import families
from tests.tiny import TEXT_FAMILIES, page_image

VARIANTS = ["system", "no_system"]


def _chunks(here: World, *, text: bool) -> list[Chunk]:
    if text:
        return [text_chunk(here.folder, page.text) for page in PAGES[:2]]
    return [picture(here.model, here.folder, page_image(page.number)) for page in PAGES[:2]]


@pytest.mark.parametrize("variant", VARIANTS)
@families(text=True)
def test_the_short_prefix_is_never_longer_and_requests_use_it(
    family: str, variant: str, world: Callable[..., World]
) -> None:
    """With a default system prompt it is the prefix with an empty one; without, it is the template's own."""
    here = world(family, template=variant)
    native = Conditioning("native").ids(here.subject, BEFORE)
    short = Conditioning("native-short").ids(here.subject, BEFORE)
    head, tail = prompt_ends(here.model, here.folder, QUESTION, system="" if variant == "system" else None)
    head = head + tokens(here.folder, BEFORE)
    assert list(short) == head
    assert (len(short) < len(native)) is (variant == "system")
    over = "text" if family in TEXT_FAMILIES else "72"
    ours = here.asked(f"pic@{over}/native-short", request(PAGES[:2], before=BEFORE))
    pieces = linked(here.model, head, _chunks(here, text=over == "text"), tail, head)
    assert float((ours - logits(here.model, pieces)).abs().max()) <= 1e-4


@families(text=True)
def test_names_and_their_tokens(family: str, world: Callable[..., World]) -> None:
    here = world(family)
    head = prompt_ends(here.model, here.folder, QUESTION)[0]
    x = tokens(here.folder, "x")
    assert len(x) == 1
    expected = {
        "native": head + tokens(here.folder, BEFORE),
        "prefix-free": [],
        "dummy-1": x,
        "dummy-4": x * 4,
        "dummy-9999": x * 9999,
    }
    for name, ids in expected.items():
        assert list(Conditioning(name).ids(here.subject, BEFORE)) == ids
        assert Conditioning(name).prompts(here.subject) is here.subject.prompts


@pytest.mark.parametrize(
    "name",
    ["", "Native", "native ", "native\n", "short", "dummy", "dummy-", "dummy-0", "dummy-04", "dummy-10000", "dummy--1"],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"native, native-short, prefix-free or dummy-k"):
        Conditioning(name)


def _changed(folder: Path, target: Path, template: str) -> Path:
    shutil.copytree(folder, target)
    (target / "chat_template.jinja").write_text(template, encoding="utf-8")
    return target


@pytest.mark.parametrize("family", ["llama", "qwen2_vl"])
def test_a_template_that_takes_no_system_turn_has_its_own_prefix_only(
    family: str, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = tiny_folder(family, template="no_system")
    own = (source / "chat_template.jinja").read_text(encoding="utf-8")
    refuses = "{%- if messages[0].role == 'system' -%}{{ raise_exception('No system turns.') }}{%- endif -%}"
    folder = _changed(source, tmp_path / "model", refuses + own)
    load: Callable[[str], Any] = load_text_model if family in TEXT_FAMILIES else load_model
    subject = Subject(load(str(folder)), Drawn())
    assert Conditioning("native-short").ids(subject, "") == Conditioning("native").ids(subject, "")


@pytest.mark.parametrize("spec", ["pic@text/native", "pic@text/prefix-free", "epic1000@text", "prefix@text"])
def test_a_template_with_nothing_before_the_pages(spec: str, tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    plain = "{%- for message in messages -%}{{ message.content }}{%- endfor -%}{{ '\\n>' }}"
    folder = _changed(tiny_folder("llama"), tmp_path / "model", plain)
    subject = Subject(load_text_model(str(folder)))
    model = subject.model.model
    tail = tokens(folder, QUESTION + "\n>")
    for before, pages in (("", ()), ("", PAGES[:1]), (BEFORE, PAGES[:1])):
        method = make_method(spec, subject)
        method.prepare(pages, before)
        ours = answered(subject.model, method, request(pages, before=before))[1]
        chunks = [text_chunk(folder, page.text) for page in pages]
        free = spec == "pic@text/prefix-free" and before
        head = tokens(folder, before)
        pieces = linked(model, head, chunks, tail, []) if free else everything(model, head, chunks, tail)
        assert float((ours - logits(model, pieces)).abs().max()) <= 1e-4
