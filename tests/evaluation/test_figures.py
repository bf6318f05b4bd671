"""Names, figures and claims, against numbers worked out by hand."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qvpic_rag.errors import InputError
from qvpic_rag.evaluation.claims import claims
from qvpic_rag.evaluation.naming import MethodName, defaults, media, reference
from qvpic_rag.evaluation.records import OfflineCost, Served
from qvpic_rag.evaluation.rundir import RunFolder
from qvpic_rag.evaluation.tables import Estimate, Run, method_figures, percentile, served_figures
from qvpic_rag.evaluation.wording import claim_sentence
from tests.evaluation.runs import answered, example, routed, scored, timed, write


def load(path: Path) -> Run:
    return Run.load(RunFolder.open(path))


@pytest.mark.parametrize(
    ("name", "family", "medium", "conditioning"),
    [
        ("full@text", "full", "text", ""),
        ("full@72", "full", "72", ""),
        ("pic@text/native", "pic", "text", "native"),
        ("pic@72", "pic", "72", "native"),
        ("pic@120/dummy-16", "pic", "120", "dummy-16"),
        ("epic4@120", "epic", "120", ""),
        ("qvpic", "qvpic", "72-120", "native"),
        ("qvpic/prefix-free", "qvpic", "72-120", "prefix-free"),
        ("qvpic@60-144+alpha=0.5+router=hybrid", "qvpic", "60-144", "native"),
        ("top4@text", "top", "text", ""),
        ("prefix@120", "prefix", "120", ""),
        ("my own", "other", "", ""),
        ("something@72", "other", "", ""),
        ("qvpic+alpha=much", "other", "", ""),
        ("<b>", "other", "", ""),
    ],
)
def test_names_are_read(name: str, family: str, medium: str, conditioning: str) -> None:
    found = MethodName.read(name)
    assert (found.name, found.family, found.medium, found.conditioning) == (name, family, medium, conditioning)


def test_options_of_qvpic() -> None:
    found = MethodName.read("qvpic@60-144+alpha=0.5+budget=2")
    assert found.options == {"alpha": "0.5", "budget": "2", "router": "dense"}
    assert found.pair == ("60", "144")
    assert not found.is_qvpic()
    assert found.is_qvpic(medium=None, alpha=None, budget="2")
    assert MethodName.read("qvpic").is_qvpic()
    assert not MethodName.read("qvpic/prefix-free").is_qvpic()
    assert not MethodName.read("full@72").is_qvpic()


def test_defaults_are_named_once() -> None:
    names = ["qvpic+alpha=0.650+budget=4", "qvpic", "qvpic@72-144", "qvpic+alpha=0.5", "qvpic/prefix-free", "full@72"]
    assert [each.name for each in defaults(map(MethodName.read, names))] == ["qvpic", "qvpic@72-144"]


@pytest.mark.parametrize("option", ["token_budget=500", "alpha=0.5", "budget=2", "router=hybrid", "anything=1"])
def test_an_option_beside_the_defaults_is_another_method(tmp_path: Path, option: str) -> None:
    other = f"qvpic+{option}"
    read = MethodName.read(other)
    assert not read.is_qvpic()
    assert not read.is_qvpic(medium=None)
    assert defaults([read]) == []
    if option.partition("=")[0] not in ("alpha", "budget", "router"):
        assert not read.is_qvpic(alpha=None, budget=None, router=None), "no cell of the map of alpha and budget"
    scores = {"full@72": [1.0] * 4, "pic@72/prefix-free": [0.0] * 4, "qvpic": [0.5] * 4, other: [0.75] * 4}
    run = load(scored(tmp_path, scores, dict.fromkeys(scores, 5.0)))
    assert {each.first for each in claims(run)} == {"qvpic"}


def test_conditionings_are_ordered_from_nothing_to_native() -> None:
    names = ["native", "dummy-16", "native-short", "dummy-4", "prefix-free", "something"]
    found = sorted((MethodName.read(f"pic@72/{name}") for name in names), key=lambda method: method.strength)
    wanted = ["prefix-free", "something", "dummy-4", "dummy-16", "native-short", "native"]
    assert [each.conditioning for each in found] == wanted


def test_the_reference_is_full_prefill_at_the_highest_resolution() -> None:
    assert reference(["qvpic", "full@72", "full@120", "full@text"]) == "full@120"
    assert reference(["full@text", "pic@text"]) == "full@text"
    assert reference(["qvpic"]) is None
    assert media(map(MethodName.read, ["pic@120", "full@96", "pic@text", "pic@72"]), "pic") == ["text", "72", "120"]


def test_figures_of_a_method(tmp_path: Path) -> None:
    rows = [example(f"e{n}", f"g{n // 2}") for n in range(6)]
    first, second = [1.0, 0.5, 0.0, 1.0, 1.0, 0.25], [0.5, 0.5, 0.0, 0.0, 1.0, 0.0]
    rows += [answered(f"e{n}", "full@120", value, kv_bytes=4000) for n, value in enumerate(first)]
    rows += [
        answered(f"e{n}", "qvpic", value, error="" if n else "out of memory", kv_bytes=1000 * n)
        for n, value in enumerate(second)
    ]
    for n in range(3):
        rows += timed(f"e{2 * n}", "full@120", [100.0, 200.0, 300.0 * (n + 1)])
        rows += timed(f"e{2 * n}", "qvpic", [30.0, 50.0 * (n + 1)])
    rows += [OfflineCost("g0", "qvpic", 3, 1.5, 900), OfflineCost("g1", "qvpic", 1, 0.1, 100)]
    run = load(write(tmp_path, ["full@120", "qvpic"], rows))
    full, qvpic = method_figures(run)

    assert (full.method, full.n, full.errors, full.difference, full.ratio) == ("full@120", 6, 0, None, None)
    assert (qvpic.n, qvpic.errors) == (6, 1)
    assert qvpic.f1 is not None
    assert qvpic.difference is not None
    assert qvpic.f1.mean == pytest.approx(np.mean(second))
    assert qvpic.difference.mean == pytest.approx(np.mean(second) - np.mean(first))
    assert qvpic.em is not None
    assert qvpic.em.mean == pytest.approx(1 / 6)
    base, times = [200.0, 300.0, 400.0], [40.0, 65.0, 90.0]
    assert full.ttft is not None
    assert full.ttft.mean == pytest.approx(np.mean(base))
    assert qvpic.ttft_median == 65
    assert qvpic.ratio == pytest.approx(statistics.median(b / a for a, b in zip(base, times, strict=True)))
    assert (qvpic.tokens, qvpic.kv_bytes) == (100, 3000), "failed answers have no context"
    assert qvpic.offline_seconds == pytest.approx(0.4)
    assert qvpic.offline_bytes == 250

    # Intervals resample the three groups whole.
    draws = np.random.default_rng(5).integers(3, size=(20_000, 3))
    means = np.array(second).reshape(3, 2).mean(1)[draws].mean(1)
    assert (qvpic.f1.low, qvpic.f1.high) == pytest.approx(tuple(np.percentile(means, [2.5, 97.5])), abs=0.02)


def test_differences_are_over_examples_of_both(tmp_path: Path) -> None:
    rows = [example(f"e{n}", f"g{n}") for n in range(4)]
    rows += [answered(f"e{n}", "full@72", 1.0) for n in range(4)]
    rows += [answered(f"e{n}", "qvpic", 0.5) for n in range(1, 3)]
    found = method_figures(load(write(tmp_path, ["full@72", "qvpic"], rows)))[1]
    assert (found.n, found.difference) == (2, Estimate(-0.5, -0.5, -0.5))


def test_one_group_gives_no_interval(tmp_path: Path) -> None:
    rows = [example("a"), example("b"), *(answered(name, "m", 0.5) for name in "ab")]
    [found] = method_figures(load(write(tmp_path, ["m"], rows)))
    assert found.f1 == Estimate(0.5, None, None)
    assert found.f1.spread == (0, 0)


def test_methods_without_answers_are_left_out(tmp_path: Path) -> None:
    run = load(write(tmp_path, ["m", "full@72"], [example("a"), answered("a", "m")]))
    assert [each.name for each in run.methods] == ["m"]
    assert run.reference is None


def test_an_answer_to_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the example 'b' but not the example"):
        load(write(tmp_path / "a", ["m"], [example("a"), answered("b", "m")]))
    with pytest.raises(InputError, match="a route of 'm' for 'a' with a page too many"):
        load(
            write(tmp_path / "b", ["m"], [example("a"), answered("a", "m", route=(routed(1, promoted=True, rank=0),))])
        )


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 1))
def test_percentiles_are_numpys(values: list[float], share: float) -> None:
    assert percentile(values, share) == pytest.approx(np.percentile(values, 100 * share), rel=1e-9, abs=1e-6)


def test_percentiles_of_callers(tmp_path: Path) -> None:
    rows = [example("a"), *(example(f"e{n}") for n in range(101))]
    rows += [Served("b", 4, f"e{n}", 0.0, float(n), float(2 * n)) for n in range(101)]
    rows += [Served("b", 16, "a", 0.0, 1.0, 2.0), Served("a", 4, "a", 0.0, 7.0, 8.0)]
    found = served_figures(load(write(tmp_path, ["b", "a"], rows)))
    assert [(each.method, each.callers, each.n) for each in found] == [("b", 4, 101), ("b", 16, 1), ("a", 4, 1)]
    assert found[0].ttft == pytest.approx((50, 95, 99, 100))
    assert found[0].total == pytest.approx((100, 190, 198, 200))
    assert found[1].ttft == (1, None, None, 1)
    assert [each.at_once for each in found] == [True, False, False]


@pytest.mark.parametrize(("count", "shown"), [(1, 2), (19, 2), (20, 3), (99, 3), (100, 4)])
def test_percentiles_need_requests_above_them(tmp_path: Path, count: int, shown: int) -> None:
    rows = [Served("m", 1, f"e{n}", 0.0, float(n), float(n)) for n in range(count)]
    [found] = served_figures(load(write(tmp_path, ["m"], rows)))
    for values in (found.ttft, found.total):
        assert len([each for each in values if each is not None]) == shown
        assert values[-1] == count - 1


def test_claims(tmp_path: Path) -> None:
    scores = {
        "full@72": [1.0] * 12,
        "pic@72/native": [0.8] * 12,
        "pic@72/prefix-free": [0.2] * 12,
        "pic@72/dummy-4": [0.8, 0.9, 0.7] * 4,
        "pic@72/dummy-8": [1.0] * 12,
        "qvpic": [0.9] * 12,
        "qvpic/prefix-free": [0.9] * 12,
    }
    run = load(scored(tmp_path, scores, {"full@72": 100.0, "qvpic": 40.0}))
    found = {(each.text, each.first, each.second): (each.verdict, round(each.gain.mean, 6)) for each in claims(run)}
    assert found == {
        ("The native prefix beats no prefix", "pic@72/native", "pic@72/prefix-free"): ("seen", 0.6),
        ("The native prefix beats no prefix", "qvpic", "qvpic/prefix-free"): ("not seen", 0.0),
        ("The native prefix beats a dummy prefix", "pic@72/native", "pic@72/dummy-4"): ("not seen", 0.0),
        ("The native prefix beats a dummy prefix", "pic@72/native", "pic@72/dummy-8"): ("reversed", -0.2),
        ("QV-PIC beats naive caching", "qvpic", "pic@72/prefix-free"): ("seen", 0.7),
        ("QV-PIC's first token comes before full prefill's", "qvpic", "full@72"): ("seen", 60.0),
    }


def test_a_claim_rests_on_the_groups_of_its_own_pair(tmp_path: Path) -> None:
    methods = ["full@72", "pic@72/prefix-free", "qvpic"]
    rows: list[Any] = [example(f"e{n}", f"g{n // 2}") for n in range(40)]
    rows += [answered(f"e{n}", method) for n in range(40) for method in methods[::2]]
    rows += [answered(f"e{n}", methods[1]) for n in range(24)]
    for n in range(6):
        rows += timed(f"e{n}", "qvpic", [1.0]) + timed(f"e{n + 2}", "full@72", [2.0])
    found = {each.unit: each for each in claims(load(write(tmp_path, methods, rows)))}
    assert (found["F1"].n, found["F1"].groups, found["ms"].n, found["ms"].groups) == (24, 12, 4, 2)
    assert "rough" not in claim_sentence(found["F1"])
    assert claim_sentence(found["ms"]).endswith("; only 2 groups, so the interval is rough).")


def test_one_group_tells_nothing(tmp_path: Path) -> None:
    rows = [example("a"), answered("a", "pic@72/native"), answered("a", "pic@72/prefix-free", 0.0)]
    [found] = claims(load(write(tmp_path, ["pic@72/native", "pic@72/prefix-free"], rows)))
    assert (found.verdict, found.n, found.gain.mean) == ("not told", 1, 1.0)
