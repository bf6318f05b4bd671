"""QV-PIC as a method: the paper's routing over the paper's caches, and an answer that says what was done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from qvpic_rag.baselines.base import Request
from qvpic_rag.baselines.spec import make_method
from qvpic_rag.baselines.subject import Subject
from qvpic_rag.config import RouteConfig
from qvpic_rag.embed import load_embedder
from qvpic_rag.errors import ConfigError
from qvpic_rag.route import route
from tests.baselines.conftest import World
from tests.baselines.fakes import BEFORE, PAGES, QUESTION, Drawn, Letters, request
from tests.baselines.reference import linked, picture, prompt_ends, tokens
from tests.embed.small import save_bge
from tests.matrix import Case, cases, families
from tests.tiny import page_image
from tests.tiny.images import HIGH, LOW


def _scores(asked: Request) -> list[float]:
    vectors = Letters().encode([*(page.text for page in asked.pages), asked.query])
    return [float(vector @ vectors[-1]) for vector in vectors[:-1]]


@families()
def test_without_a_budget_every_page_is_low(family: str, world: Callable[..., World]) -> None:
    here, asked = world(family), request(before=BEFORE)
    ours, low = here.asked("qvpic+budget=0", asked), here.asked("pic@72/native", asked)
    assert float((ours - low).abs().max()) <= 1e-6


@families()
def test_with_all_of_the_mass_every_page_is_high(family: str, world: Callable[..., World]) -> None:
    here, asked = world(family), request(before=BEFORE)
    assert min(_scores(asked)) > 0
    ours, high = here.asked("qvpic+alpha=1+budget=100", asked), here.asked("pic@120/native", asked)
    assert float((ours - high).abs().max()) <= 1e-6


@pytest.mark.parametrize("conditioning", ["native", "prefix-free", "dummy-3"])
@cases()
def test_a_mixture_is_what_linking_by_hand_gives(case: Case, conditioning: str, world: Callable[..., World]) -> None:
    """Two of four pages at the high resolution, all in the request's order."""
    here = world(case.family, case.dtype)
    asked = request([PAGES[3], PAGES[0], PAGES[2], PAGES[1]], before=BEFORE)
    ranking = sorted(range(4), key=lambda place: -_scores(asked)[place])[:2]
    sizes = [HIGH if place in ranking else LOW for place in range(4)]
    assert sizes not in ([HIGH, HIGH, LOW, LOW], [LOW, LOW, HIGH, HIGH])
    head = prompt_ends(here.model, here.folder, QUESTION)[0] + tokens(here.folder, BEFORE)
    dummies = tokens(here.folder, "x") * 3 if conditioning == "dummy-3" else []
    here.check(
        case,
        f"qvpic/{conditioning}+alpha=1+budget=2",
        asked,
        lambda model, tail: linked(
            model,
            head,
            [
                picture(model, here.folder, page_image(page.number, size))
                for page, size in zip(asked.pages, sizes, strict=True)
            ],
            tail,
            head if conditioning == "native" else dummies,
        ),
    )


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2), (2, 2, 1, 0)])
@pytest.mark.parametrize(("alpha", "budget"), [(0.65, 4), (0.3, 4), (1.0, 2), (0.5, 0), (1.0, 4)])
def test_the_answer_says_how_pages_were_routed(
    alpha: float, budget: int, order: Sequence[int], world: Callable[..., World]
) -> None:
    here = world("qwen2_vl")
    asked = request([PAGES[place] for place in order])
    method = here.method(f"qvpic+alpha={alpha}+budget={budget}")
    method.prepare(asked.pages, asked.before)
    answer = method.answer(asked)
    decisions = route(_scores(asked), RouteConfig(alpha, budget))
    found = answer.route.pages
    assert [(page.page_id, page.source, page.number) for page in found] == [
        (page.digest, page.source, page.number) for page in asked.pages
    ]
    assert [(page.rank, page.promoted) for page in found] == [(each.rank, each.promoted) for each in decisions]
    assert [page.score for page in found] == pytest.approx(_scores(asked))
    assert [page.dpi for page in found] == [120 if each.promoted else 72 for each in decisions]
    assert [page.tokens for page in found] == [72 if each.promoted else 37 for each in decisions]
    head = len(here.subject.prompts.head(""))
    assert answer.usage.context_tokens == head + sum(page.tokens for page in found)
    assert (answer.route.dropped, answer.route.compiled, answer.route.note) == ((), (), "")


def test_other_resolutions(world: Callable[..., World]) -> None:
    drawn = Drawn()
    subject = Subject(world("qwen2_vl").subject.model, drawn, Letters())
    method = type(world("qwen2_vl").method("qvpic"))(subject, (60, 144), "native", RouteConfig(), "other")
    method.prepare(PAGES[:2], "")
    assert {dpi for _, dpi in drawn.drawn} == {60, 144}


def test_pages_are_embedded_and_compiled_once_and_counted(world: Callable[..., World]) -> None:
    here = world("qwen2_vl")
    letters = Letters()
    subject = Subject(here.subject.model, Drawn(), letters)
    method = type(here.method("qvpic"))(subject, (72, 120), "native", RouteConfig(), "qvpic")
    cost = method.prepare([*PAGES, PAGES[0]], "")
    low, high = (here.method(f"pic@{dpi}").prepare(PAGES, "") for dpi in (72, 120))
    assert cost.pages == 4
    assert cost.nbytes == low.nbytes + high.nbytes + 4 * 26 * 4
    assert cost.seconds > 0
    assert letters.encoded == [page.text for page in PAGES]
    again = method.prepare(PAGES, "")
    assert (again.pages, again.nbytes) == (0, 0)
    method.answer(request())
    assert letters.encoded == [*(page.text for page in PAGES), QUESTION]  # pages are not embedded for a question


def test_the_hybrid_router_needs_an_embedder_with_heads(world: Callable[..., World], tmp_path: Path) -> None:
    """It is refused when it is made; nothing is compiled or embedded before."""
    model = world("qwen2_vl").subject.model
    with pytest.raises(ConfigError, match=r"^The embedder 'letters' has no .* use router=dense or .* BAAI/bge-m3\.$"):
        make_method("qvpic+router=hybrid", Subject(model, Drawn(), Letters()))
    with pytest.raises(ConfigError, match="give an embedder"):
        make_method("qvpic+router=hybrid", Subject(model, Drawn()))
    method = make_method("qvpic+router=hybrid", Subject(model, Drawn(), load_embedder(str(save_bge(tmp_path)))))
    method.prepare(PAGES, "")
    assert len(method.answer(request()).route.pages) == len(PAGES)
