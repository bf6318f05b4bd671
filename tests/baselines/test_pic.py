"""Position-independent caching: one page is full prefill, several see their conditioning and themselves alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from qvpic_rag.baselines.spec import make_method
from qvpic_rag.baselines.subject import Subject
from qvpic_rag.models import load_model
from tests.baselines.conftest import World
from tests.baselines.fakes import BEFORE, PAGES, QUESTION, Drawn, Uneven, answered, calls, page, request
from tests.baselines.reference import everything, linked, logits, picture, prompt_ends, text_chunk, tokens
from tests.matrix import Case, cases, families
from tests.tiny import TEXT_FAMILIES, load_tiny_model, page_image
from tests.tiny.images import HIGH

CONDITIONINGS = ["native", "prefix-free", "dummy-1", "dummy-5"]


def _condition(here: World, name: str, head: list[int]) -> list[int]:
    if name == "native":
        return head
    return tokens(here.folder, "x") * int(name.partition("-")[2]) if name.startswith("dummy") else []


@pytest.mark.parametrize("before", ["", BEFORE])
@cases(text=True)
def test_one_page_of_text_is_full_prefill(case: Case, before: str, world: Callable[..., World]) -> None:
    here = world(case.family, case.dtype)
    asked = request(PAGES[:1], before=before)
    if case.logits is not None:
        ours, full = here.asked("pic@text/native", asked), here.asked("full@text", asked)
        assert float((ours - full).abs().max()) <= case.logits
    head = prompt_ends(here.model, here.folder, QUESTION)[0]
    chunks = [text_chunk(here.folder, PAGES[0].text)]
    here.check(
        case,
        "pic@text/native",
        asked,
        lambda model, tail: everything(model, head + tokens(here.folder, before), chunks, tail),
    )


@pytest.mark.parametrize("before", ["", BEFORE])
@cases()
def test_one_picture_is_full_prefill(case: Case, before: str, world: Callable[..., World]) -> None:
    here = world(case.family, case.dtype)
    asked = request(PAGES[:1], before=before)
    if case.logits is not None:
        ours, full = here.asked("pic@120/native", asked), here.asked("full@120", asked)
        assert float((ours - full).abs().max()) <= case.logits
    head = prompt_ends(here.model, here.folder, QUESTION)[0] + tokens(here.folder, before)
    image = page_image(0, HIGH)
    here.check(
        case,
        "pic@120/native",
        asked,
        lambda model, tail: everything(model, head, [picture(model, here.folder, image)], tail),
    )


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
@cases(text=True)
def test_pages_of_text_see_their_conditioning_and_themselves(
    case: Case, conditioning: str, world: Callable[..., World]
) -> None:
    here = world(case.family, case.dtype)
    asked = request([PAGES[2], PAGES[0], PAGES[1]], before=BEFORE)
    head = prompt_ends(here.model, here.folder, QUESTION)[0] + tokens(here.folder, BEFORE)
    chunks = [text_chunk(here.folder, each.text) for each in asked.pages]
    condition = _condition(here, conditioning, head)
    here.check(
        case, f"pic@text/{conditioning}", asked, lambda model, tail: linked(model, head, chunks, tail, condition)
    )


@pytest.mark.parametrize("conditioning", CONDITIONINGS)
@cases()
def test_pictures_see_their_conditioning_and_themselves(
    case: Case, conditioning: str, world: Callable[..., World]
) -> None:
    here = world(case.family, case.dtype)
    asked = request([PAGES[2], PAGES[0], PAGES[1]], before=BEFORE)
    head = prompt_ends(here.model, here.folder, QUESTION)[0] + tokens(here.folder, BEFORE)
    condition = _condition(here, conditioning, head)
    here.check(
        case,
        f"pic@72/{conditioning}",
        asked,
        lambda model, tail: linked(
            model,
            head,
            [picture(model, here.folder, page_image(each.number)) for each in asked.pages],
            tail,
            condition,
        ),
    )


def test_conditionings_are_told_apart(world: Callable[..., World]) -> None:
    """The laws above would hold of a model that sees no conditioning at all; this one does."""
    here = world("qwen2_vl")
    found = [here.asked(f"pic@72/{name}", request(PAGES[:3])) for name in CONDITIONINGS]
    found.append(here.asked("full@72", request(PAGES[:3])))
    for number, one in enumerate(found):
        for other in found[:number]:
            assert float((one - other).abs().max()) > 1e-2


@pytest.fixture(scope="module")
def separated(tiny_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose template says " and " between two pictures."""
    folder = tmp_path_factory.mktemp("separated") / "model"
    shutil.copytree(tiny_folder("qwen2_vl"), folder)
    jinja = folder / "chat_template.jinja"
    text, shown = jinja.read_text(encoding="utf-8"), "{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    assert shown in text
    between = "{%- if counter.pictures > 1 -%}{{ ' and ' }}{%- endif -%}"
    jinja.write_text(text.replace(shown, between + shown), encoding="utf-8")
    return folder


@pytest.mark.parametrize("conditioning", ["native", "prefix-free"])
def test_separators_see_what_stands_before_the_pages(conditioning: str, separated: Path) -> None:
    subject = Subject(load_model(str(separated)), Drawn())
    model = load_tiny_model(separated)
    head, tail = prompt_ends(model, separated, QUESTION)
    chunks = [picture(model, separated, page_image(each.number)) for each in PAGES[:3]]
    method = make_method(f"pic@72/{conditioning}", subject)
    method.prepare(PAGES, "")
    ours = answered(subject.model, method, request(PAGES[:3]))[1]
    condition = head if conditioning == "native" else []
    pieces = linked(model, head, chunks, tail, condition, tokens(separated, " and "))
    assert float((ours - logits(model, pieces)).abs().max()) <= 1e-4


def test_separators_are_computed_again_by_epic(separated: Path) -> None:
    subject = Subject(load_model(str(separated)), Drawn())
    expected = answered(subject.model, make_method("full@72", subject), request(PAGES[:3]))[1]
    method = make_method("epic500@72", subject)
    method.prepare(PAGES, "")
    ours = answered(subject.model, method, request(PAGES[:3]))[1]
    assert float((ours - expected).abs().max()) <= 1e-4
    assert (
        make_method("prefix@72", subject).answer(request(PAGES[:3], new_tokens=4)).text
        == make_method("full@72", subject).answer(request(PAGES[:3], new_tokens=4)).text
    )


@families()
def test_pages_of_several_sizes_are_compiled_as_each_would_be_alone(family: str, world: Callable[..., World]) -> None:
    """Pictures of one size share a forward pass, four at most; the order of pages and their sizes changes nothing."""
    here = world(family)
    subject = Subject(here.subject.model, Uneven())
    pages = [page(number, f"Page {number}.") for number in range(16)]
    together, alone = make_method("pic@72", subject), make_method("pic@72", subject)
    with calls(subject.model.text_model) as decoded:
        cost = together.prepare(pages, "")
    assert cost.pages == 16
    assert len(decoded) == 1 + 6  # what stands before pages; three sizes, of each five or six pages
    for each in pages:
        alone.prepare([each], "")
    asked = request(pages[::-1])
    ours, expected = (answered(subject.model, method, asked)[1] for method in (together, alone))
    assert float((ours - expected).abs().max()) <= 1e-4


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_pages_are_told_apart_by_what_is_read_of_them(family: str, world: Callable[..., World]) -> None:
    """Two texts that would be drawn alike are two pages where text is read."""
    here = world(family)
    tabs = page(0, "a\tb")
    spaces = type(tabs)(lines=tabs.lines, text="a    b", source="b.txt", number=0)
    assert tabs.digest == spaces.digest
    method = here.method("pic@text/native")
    method.prepare([tabs, spaces], "")
    for each in (tabs, spaces):
        ours = answered(here.subject.model, method, request([each]))[1]
        assert float((ours - here.asked("full@text", request([each]))).abs().max()) <= 1e-4


def test_pages_of_text_are_what_they_are_in_any_company(world: Callable[..., World]) -> None:
    """What was prepared for one request serves another."""
    here = world("qwen3")
    method = here.method("pic@text/prefix-free")
    first = method.prepare(PAGES[:2], BEFORE)
    assert (first.pages, method.prepare(PAGES[:2], BEFORE).pages) == (2, 0)
    assert method.prepare(PAGES, "").pages == 2  # prefix-free pages hold for any words before them
    ours = answered(here.subject.model, method, request(PAGES[::-1]))[1]
    assert torch.allclose(ours, here.asked("pic@text/prefix-free", request(PAGES[::-1])), atol=1e-5)
