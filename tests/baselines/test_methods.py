"""What holds of every method."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from qvpic_rag.baselines.base import Method
from qvpic_rag.baselines.finish import check_fits
from qvpic_rag.baselines.spec import make_method
from qvpic_rag.baselines.subject import Subject
from qvpic_rag.config import GenerateConfig
from qvpic_rag.errors import ConfigError, ContextOverflowError, InputError
from qvpic_rag.models import load_model
from qvpic_rag.models.text import load_text_model
from tests.baselines.conftest import World
from tests.baselines.fakes import BEFORE, PAGES, Drawn, Letters, answered, request
from tests.tiny import TEXT_FAMILIES

TEXT = ["full@text", "pic@text/native", "pic@text/dummy-2", "epic2@text", "epic1000@text", "top2@text", "prefix@text"]
PICTURES = ["full@72", "pic@72/native", "pic@120/prefix-free", "epic2@72", "qvpic+budget=1", "prefix@72"]
EVERY = [("llama", spec) for spec in TEXT] + [("qwen3_vl", spec) for spec in TEXT + PICTURES]
PREPARED = [pair for pair in EVERY if not pair[1].startswith(("full", "prefix"))]
every = pytest.mark.parametrize(("family", "spec"), EVERY)
prepared = pytest.mark.parametrize(("family", "spec"), PREPARED)


@every
def test_a_request_without_pages_is_a_plain_question(family: str, spec: str, world: Callable[..., World]) -> None:
    here = world(family)
    asked = request((), before=BEFORE)
    assert float((here.asked(spec, asked) - here.asked("full@text", asked)).abs().max()) <= 1e-4


@prepared
def test_asking_about_pages_that_are_not_prepared(family: str, spec: str, world: Callable[..., World]) -> None:
    method = world(family).method(spec)
    with pytest.raises(InputError, match=r"call prepare first"):
        method.answer(request())
    method.prepare(PAGES[:2], "")
    with pytest.raises(InputError, match=r"call prepare first"):
        method.answer(request())
    method.prepare(PAGES[2:], "")
    method.answer(request())


@pytest.mark.parametrize(("family", "spec"), [("llama", "pic@text/native"), ("qwen3_vl", "qvpic")])
def test_native_pages_hold_for_the_words_before_them_alone(family: str, spec: str, world: Callable[..., World]) -> None:
    method = world(family).method(spec)
    method.prepare(PAGES, "")
    with pytest.raises(InputError, match=r"not prepared as .* for this prompt"):
        method.answer(request(before=BEFORE))


@pytest.mark.parametrize(("family", "spec"), sorted(set(EVERY) - set(PREPARED)))
def test_what_keeps_nothing_needs_no_preparation(family: str, spec: str, world: Callable[..., World]) -> None:
    here = world(family)
    ours = answered(here.subject.model, here.method(spec), request())[1]
    assert torch.equal(ours, here.asked(spec, request()))


@every
def test_a_request_that_is_too_long(family: str, spec: str, world: Callable[..., World]) -> None:
    """It is refused, and the next one is answered as if nothing had been."""
    here = world(family)
    method = here.method(spec)
    method.prepare(PAGES, "")
    expected = answered(here.subject.model, method, request())[1]
    with pytest.raises(ContextOverflowError, match=r"5000 for the answer\) and the model takes 4096; use fewer"):
        method.answer(request(PAGES[::-1], new_tokens=5000))
    assert torch.allclose(answered(here.subject.model, method, request())[1], expected, atol=1e-5)


def test_a_request_may_fill_the_context(world: Callable[..., World]) -> None:
    model = world("llama").subject.model
    check_fits(model, 4000, 90, GenerateConfig(max_new_tokens=6))
    with pytest.raises(ContextOverflowError, match=r"4097 tokens \(4000 of context, 90 of question, 7 for"):
        check_fits(model, 4000, 90, GenerateConfig(max_new_tokens=7))


def _kept(method: Any) -> list[Any]:
    """What a method holds of tensors and arrays."""
    if hasattr(method, "_kept"):
        return [method._kept.cache.key_buffer]
    found = [block.keys for block in method._blocks._blocks.values()] if hasattr(method, "_blocks") else []
    found += [block.keys for block in method._blocks._texts.values()] if hasattr(method, "_blocks") else []
    found += [each.embeddings for each in getattr(method, "_inputs", {}).values()]
    known = vars(method._ranking).values() if hasattr(method, "_ranking") else []
    return found + [each for vectors in known if isinstance(vectors, dict) for each in vectors.values()]


@every
def test_forgetting_lets_go_and_everything_can_be_prepared_again(
    family: str, spec: str, world: Callable[..., World]
) -> None:
    here = world(family)
    method = here.method(spec)
    first = method.prepare(PAGES, "")
    expected = answered(here.subject.model, method, request())[1]
    held = [] if spec.startswith("full") else [weakref.ref(each) for each in _kept(method)]
    assert held or spec.startswith("full")
    method.forget()
    assert [each() for each in held if each() is not None] == []
    if (family, spec) in PREPARED:
        with pytest.raises(InputError, match=r"call prepare first"):
            method.answer(request())
    again = method.prepare(PAGES, "")
    assert (again.pages, again.nbytes) == (first.pages, first.nbytes)
    assert torch.allclose(answered(here.subject.model, method, request())[1], expected, atol=1e-5)


@every
def test_preparing_twice_costs_once(family: str, spec: str, world: Callable[..., World]) -> None:
    method = world(family).method(spec)
    first, again = method.prepare([*PAGES, PAGES[0]], ""), method.prepare(PAGES, "")
    assert first.pages == (4 if (family, spec) in PREPARED else 0)
    assert (again.pages, again.nbytes) == (0, 0)
    if first.pages:
        assert first.seconds > 0
        assert first.nbytes > 0


@every
def test_the_same_page_twice(family: str, spec: str, world: Callable[..., World]) -> None:
    """A copy of the page under another name says what the page itself says at its second place."""
    here = world(family)
    method = here.method(spec)
    copy = replace(PAGES[0], source="copy.txt")
    pages = [PAGES[0], PAGES[1], PAGES[0]]
    method.prepare([*pages, copy], "")
    ours = answered(here.subject.model, method, request(pages))
    theirs = answered(here.subject.model, method, request([*pages[:2], copy]))
    assert float((ours[1] - theirs[1]).abs().max()) <= 1e-5
    assert ours[0].usage == theirs[0].usage


@every
def test_asking_twice_gives_one_answer(family: str, spec: str, world: Callable[..., World]) -> None:
    here = world(family)
    method = here.method(spec)
    method.prepare(PAGES, BEFORE)
    asked = request(before=BEFORE, new_tokens=6)
    one, two = (answered(here.subject.model, method, asked) for _ in range(2))
    assert one[0].text == two[0].text
    assert torch.allclose(one[1], two[1], atol=1e-5)


@every
def test_threads_at_once_get_what_one_gets(family: str, spec: str, world: Callable[..., World]) -> None:
    """Not even what stands before the pages is compiled ahead."""
    here = world(family)
    method, alone = here.method(spec), here.method(spec)
    orders = [PAGES[:3], PAGES[1::-1], PAGES[2::-1], PAGES[:1], PAGES[1:3]]
    asked = [request(pages, after=f"Is it {place}?", new_tokens=3) for place, pages in enumerate(orders)]
    alone.prepare(PAGES, "")
    expected = [alone.answer(each) for each in asked]
    method.prepare(PAGES, "")
    if hasattr(method, "_blocks"):
        method._blocks._texts.clear()
    with ThreadPoolExecutor(len(asked)) as pool:
        found = list(pool.map(method.answer, asked))
    assert [(each.text, each.usage, each.route) for each in found] == [
        (each.text, each.usage, each.route) for each in expected
    ]


def _context(here: World, spec: str) -> int:
    """Tokens of a request's context, counted by hand."""
    head = len(here.subject.prompts.head(BEFORE))
    if "@text" in spec:
        sizes = [len(here.subject.prompts.chunk(page)) for page in PAGES]
        if spec == "top2@text":
            return head + sizes[0] + sizes[3]  # the question's letters are those of these two
        return head + sum(sizes)
    # 35 or 70 visual tokens between two others
    return head + (72 * 4 if "120" in spec else 37 * 3 + 72 if spec.startswith("qvpic") else 37 * 4)


@every
def test_figures_of_an_answer(family: str, spec: str, world: Callable[..., World]) -> None:
    here = world(family)
    method = here.method(spec)
    method.prepare(PAGES, BEFORE)
    answer = method.answer(request(before=BEFORE, new_tokens=6))
    timing, usage, model = answer.timing, answer.usage, here.subject.model
    stages = timing.embed + timing.search + timing.route + timing.load + timing.assemble + timing.prefill
    assert stages == pytest.approx(timing.ttft, abs=1e-6)
    assert timing.ttft + timing.decode == pytest.approx(timing.total, abs=1e-6)
    assert min(timing.prefill, timing.decode, timing.ttft) > 0
    assert (timing.embed > 0) is (timing.route > 0) is spec.startswith(("top", "qvpic"))
    assert (timing.assemble > 0) is spec.startswith(("pic", "epic", "qvpic", "prefix"))
    assert usage.context_tokens == _context(here, spec)
    assert usage.query_tokens == len(here.subject.prompts.tail(request().after))
    assert usage.output_tokens == 6 or answer.finish_reason == "stop"
    assert usage.kv_bytes == 2 * 4 * model.layers * model.kv_heads * model.head_dim * usage.context_tokens


@pytest.mark.gpu
@every
def test_an_accelerator_gives_what_the_cpu_gives(
    family: str, spec: str, world: Callable[..., World], tiny_folder: Callable[..., Path]
) -> None:
    here = world(family)
    load: Callable[..., Any] = load_text_model if family in TEXT_FAMILIES else load_model
    model = load(str(tiny_folder(family)), device="cuda", dtype="float32")
    method = make_method(spec, Subject(model, Drawn(), Letters()))
    for asked in (request(before=BEFORE), request(PAGES[:2], before=BEFORE)):
        method.prepare(asked.pages, asked.before)
        assert float((answered(model, method, asked)[1].cpu() - here.asked(spec, asked)).abs().max()) <= 1e-2


def test_methods_over_pictures_without_a_renderer(world: Callable[..., World]) -> None:
    subject = Subject(world("qwen2_vl").subject.model)
    with pytest.raises(ConfigError, match="need a renderer"):
        make_method("pic@72", subject).prepare(PAGES, "")


@pytest.mark.parametrize("spec", ["qvpic", "top2@text"])
def test_methods_that_choose_without_an_embedder(spec: str, world: Callable[..., World]) -> None:
    with pytest.raises(ConfigError, match="give an embedder"):
        make_method(spec, Subject(world("qwen2_vl").subject.model, Drawn())).prepare(PAGES, "")


def test_pages_are_drawn_once_for_all_methods(world: Callable[..., World]) -> None:
    drawn = Drawn()
    subject = Subject(world("qwen2_vl").subject.model, drawn)
    methods: list[Method] = [make_method(spec, subject) for spec in ("full@72", "pic@72", "epic2@72", "prefix@72")]
    for method in methods:
        method.prepare(PAGES, "")
        method.answer(request())
    assert drawn.drawn == [(page.number, 72) for page in PAGES]


def test_the_families_here_are_one_of_each_kind() -> None:
    assert {family in TEXT_FAMILIES for family, _ in EVERY} == {True, False}
