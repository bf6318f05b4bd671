"""First tokens at the tiny geometry: what is timed is right, and so are the figures made of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from qvpic_rag.bench.ttft import Workload, build_requests, measure
from qvpic_rag.bench.ttft_figures import Spread, TtftFigures, spread
from qvpic_rag.bench.ttft_requests import Clock
from qvpic_rag.errors import ConfigError, ContextOverflowError

CPU = torch.device("cpu")


def silent(what: str) -> None:
    """Progress that nobody watches."""


@pytest.mark.parametrize("promoted", [0, 1])
def test_one_page_starts_with_full_prefills_token(promoted: int) -> None:
    workload = Workload("tiny", pages=1, promoted=promoted, text_tokens=200)
    requests, settings = build_requests(workload, device="cpu", dtype=None, say=silent)
    linked = requests.qvpic(Clock(CPU))
    assert linked == requests.full_pictures("high" if promoted else "low", Clock(CPU))
    assert requests.pic_text(Clock(CPU)) == requests.full_text(Clock(CPU))
    assert requests.full_text(Clock(CPU)).context == 4 + 200, "the template's prefix and the text"
    assert settings["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 4


def test_every_method_is_timed_in_every_round() -> None:
    seen: list[tuple[int, int, str]] = []
    workload = Workload("tiny", pages=2, promoted=1, text_tokens=100, rounds=2, dpis=(40, 72))
    figures = measure(workload, device="cpu", progress=lambda *step: seen.append(step))
    assert list(figures.stages) == ["full@72", "full@40", "full@text", "pic@text/native", "qvpic"]
    assert {len(rounds) for rounds in (*figures.stages.values(), figures.transfer)} == {2}
    order = [what for done, total, what in seen if what in figures.stages]
    assert order[:5] == list(figures.stages)
    assert order[5:10] == [*list(figures.stages)[1:], "full@72"], "the next round starts with another method"
    assert seen[-1] == (3, 3, "")
    assert set(figures.offline) == {"40", "72", "text"}
    # The promoted page is the larger one: QV-PIC lies between full prefill of both resolutions.
    assert figures.tokens["full@40"] < figures.tokens["qvpic"] < figures.tokens["full@72"]
    assert list(figures.stages["qvpic"][0]) == ["route", "prompt", "link", "prefill"]
    assert sum(share.median for share in figures.shares().values()) == pytest.approx(1, abs=0.2)
    assert json.loads(json.dumps(figures.to_dict()))["settings"]["pages"] == 2


def test_ratios_are_taken_round_by_round() -> None:
    figures = TtftFigures(
        settings={},
        environment={},
        tokens={"full@72": 9, "qvpic": 9},
        offline={},
        stages={
            "full@72": [{"prepare": 10.0, "prefill": 20.0}, {"prepare": 20.0, "prefill": 40.0}],
            "qvpic": [{"link": 1.0, "prefill": 2.0}, {"link": 2.0, "prefill": 10.0}],
        },
        transfer=[],
    )
    assert figures.ttft("full@72") == [30, 60]
    assert figures.ratios("full@72") == [10, 5]
    assert figures.ratios("full@72", leave_out="prepare") == [pytest.approx(20 / 3), pytest.approx(40 / 12)]
    assert figures.shares()["link"].median == pytest.approx((1 / 3 + 1 / 6) / 2)


def test_spread_is_median_and_quartiles() -> None:
    assert spread([3.0]) == Spread(3, 3, 3)
    assert spread([5.0, 1.0, 2.0, 4.0, 3.0]) == Spread(3, 2, 4)
    assert spread([3.0]).text(".1f") == "3.0 (3.0 to 3.0)"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"geometry": "huge"}, "geometry must be one of"),
        ({"scale": 2.0}, "scale must be above 0"),
        ({"pages": 0}, "pages must be at least 1"),
        ({"promoted": 11}, "promoted must be at most the number of pages, 10, not 11"),
        ({"promoted": -1}, "promoted must be at least 0"),
        ({"text_tokens": 0}, "text_tokens must be at least 1"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"dpis": (120, 72)}, "low below high"),
    ],
)
def test_wrong_workloads_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Workload(**({"geometry": "tiny"} | fields))  # type: ignore[arg-type]


def test_too_many_pages_are_refused_before_anything_is_built() -> None:
    steps: list[str] = []
    with pytest.raises(ContextOverflowError, match=r"3 pages need up to 5612 tokens and tiny takes 4096"):
        build_requests(Workload("tiny", pages=3, promoted=0), device="cpu", dtype=None, say=steps.append)
    assert steps == ["drawing pages"]


@pytest.mark.gpu
def test_an_accelerator_reads_pinned_blocks_and_finds_the_same_token() -> None:
    workload = Workload("tiny", pages=2, promoted=1, text_tokens=100)
    there, _ = build_requests(workload, device="cuda", dtype="float32", say=silent)
    here, _ = build_requests(workload, device="cpu", dtype="float32", say=silent)
    clock = Clock(torch.device("cuda"))
    found = there.qvpic(clock)
    assert found.context == here.qvpic(Clock(CPU)).context
    one, _ = build_requests(replace(workload, pages=1), device="cuda", dtype="float32", say=silent)
    assert one.qvpic(clock) == one.full_pictures("high", clock)
    there.transfer(clock)
    assert clock.stages["load"] > 0
