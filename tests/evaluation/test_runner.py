"""Runs: everything is measured once, whatever stops the process in between, and what fails is written down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qvpic_rag.errors import CompileError, ConfigError, ContextOverflowError, GenerationError, UnsupportedModelError
from qvpic_rag.evaluation.records import Example, Served
from qvpic_rag.evaluation.rundir import RunFolder
from qvpic_rag.evaluation.runner import Plan, run
from tests.evaluation.fakes import Calls, Fake, asked, model
from tests.evaluation.runs import settings

EXAMPLES = asked({"g": "abc", "h": "d"})
IDS = [example.id for example in EXAMPLES]
NOTHING = Plan(timed=0, served=0)
KINDS = ("examples", "answers", "timing", "offline", "served")


def go(
    path: Path,
    methods: Sequence[Fake],
    plan: Plan = NOTHING,
    examples: Sequence[Example] = EXAMPLES,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> dict[str, list[Any]]:
    with RunFolder.create(path, settings([method.name for method in methods])) as folder:
        run(folder, model(), methods, examples, plan, progress)
    return rows(path)


def rows(path: Path) -> dict[str, list[Any]]:
    folder = RunFolder.open(path)
    return {kind: list(folder.rows(kind)) for kind in KINDS}


def lines(path: Path) -> dict[str, int]:
    return {kind: len(file.read_bytes().splitlines()) for kind in KINDS if (file := path / f"{kind}.jsonl").exists()}


def keys(found: Sequence[Any]) -> list[tuple[str, str]]:
    return [(row.example, row.method) for row in found]


def test_every_example_through_every_method(tmp_path: Path) -> None:
    calls = Calls()
    told: list[tuple[int, int, str]] = []
    found = go(tmp_path, [Fake("x", calls), Fake("y", calls)], progress=lambda *what: told.append(what))
    assert found["examples"] == EXAMPLES
    assert keys(found["answers"]) == [(each, name) for each in IDS for name in "xy"]
    first = found["answers"][0]
    assert (first.text, first.f1, first.em, first.finish_reason, first.error) == ("x on a", 0, 0, "stop", "")
    assert (first.context_tokens, first.query_tokens, first.output_tokens, first.kv_bytes) == (10, 5, 2, 1000)
    assert not found["timing"]
    assert not found["served"]
    assert [done for done, _, _ in told] == list(range(1, 9))
    assert {total for _, total, _ in told} == {8}


def test_a_group_is_prepared_answered_and_let_go(tmp_path: Path) -> None:
    calls = Calls()
    go(tmp_path, [Fake("x", calls), Fake("y", calls)])
    order = [(what, method) for what, method, _ in calls.made]
    answers = [("answer", "x"), ("answer", "y")]
    ends = [("forget", "x"), ("forget", "y")]
    assert order == [
        *[("prepare", "x")] * 3, *[("prepare", "y")] * 3, *answers * 3, *ends,
        ("prepare", "x"), ("prepare", "y"), *answers, *ends,
    ]  # fmt: skip


def test_offline_work_once_for_each_group_and_method(tmp_path: Path) -> None:
    found = go(tmp_path, [Fake("x", Calls()), Fake("y", Calls())], Plan(timed=4, served=4))
    assert [(row.group, row.method, row.pages, row.seconds, row.nbytes) for row in found["offline"]] == [
        ("g", "x", 4, 2.0, 400), ("g", "y", 4, 2.0, 400), ("h", "x", 2, 1.0, 200), ("h", "y", 2, 1.0, 200),
    ]  # fmt: skip


def test_nothing_is_done_twice(tmp_path: Path) -> None:
    plan = Plan(timed=2, served=3)
    found = go(tmp_path, [Fake("x", Calls()), Fake("y", Calls())], plan)
    calls = Calls()
    assert go(tmp_path, [Fake("x", calls), Fake("y", calls)], plan) == found
    assert not calls.made
    assert lines(tmp_path) == {kind: len(rows) for kind, rows in found.items()}


def test_one_method_more(tmp_path: Path) -> None:
    plan = Plan(timed=2, served=2)
    before = go(tmp_path, [Fake("x", Calls())], plan)
    calls = Calls()
    after = go(tmp_path, [Fake("x", calls), Fake("y", calls)], plan)
    assert {method for _, method, _ in calls.made} == {"y"}
    for kind in ("answers", "timing", "offline", "served"):
        assert [row for row in after[kind] if row.method == "x"] == before[kind]
        assert len(after[kind]) == 2 * len(before[kind])
    assert RunFolder.open(tmp_path).settings["methods"] == ["x", "y"]


def _without_times(found: Mapping[str, Sequence[Any]]) -> dict[str, list[str]]:
    """Rows in any order; several callers' times are the clock's."""
    plain = {
        kind: [replace(row, wait=0.0, ttft=0.0, total=0.0) if isinstance(row, Served) else row for row in rows]
        for kind, rows in found.items()
    }
    return {kind: sorted(map(repr, rows)) for kind, rows in plain.items()}


def test_stopped_at_any_call(tmp_path: Path) -> None:
    plan = Plan(timed=2, repeats=2, served=2, callers=(1, 2))
    failing: dict[str, Any] = {"unprepared": {"b": CompileError("It broke.")}}

    def methods(calls: Calls) -> list[Fake]:
        return [Fake("x", calls), Fake("y", calls, **failing), Fake("z", calls, unanswered={"d": _TOO_LONG})]

    calls = Calls()
    whole = _without_times(go(tmp_path / "whole", methods(calls), plan))
    assert len(calls.made) > 50
    for stop in range(len(calls.made)):
        path = tmp_path / str(stop)
        killed, again = Calls(stop), Calls()
        with pytest.raises(KeyboardInterrupt):
            go(path, methods(killed), plan)
        before = rows(path)
        found = go(path, methods(again), plan)
        assert _without_times(found) == whole, stop
        assert lines(path) == {kind: len(rows) for kind, rows in found.items() if rows}, "written twice"
        # What was written down was not asked again: each call of the second process left a row of its own, but for
        # one before each request that is timed and was answered by the first.
        new_times = found["timing"][len(before["timing"]) :]
        cold = set(keys(new_times)) & set(keys(before["answers"]))
        assert len(again.of("time")) == len(new_times) + len(cold), stop
        new = [row for row in found["answers"][len(before["answers"]) :] if row.error != "It broke."]
        served = {(row.method, row.callers) for row in found["served"][len(before["served"]) :]}
        # Two requests for each number of callers, but one of y, whose b was not prepared.
        asked_by_callers = sum(1 if method == "y" else 2 for method, _ in served)
        assert len(again.of("answer")) == len(new) + asked_by_callers, stop


_TOO_LONG = ContextOverflowError("It does not fit.")


def test_stopped_between_any_two_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(timed=1, repeats=2, served=3, callers=(1, 2))
    whole = _without_times(go(tmp_path / "whole", [Fake("x", Calls()), Fake("y", Calls())], plan))
    append = RunFolder.append
    for stop in range(sum(map(len, whole.values()))):
        left = stop

        def killed(folder: RunFolder, kind: str, row: Any) -> None:
            nonlocal left
            if not left:
                raise KeyboardInterrupt
            left -= 1
            append(folder, kind, row)

        with monkeypatch.context() as patch:
            patch.setattr(RunFolder, "append", killed)
            with pytest.raises(KeyboardInterrupt):
                go(tmp_path / str(stop), [Fake("x", Calls()), Fake("y", Calls())], plan)
        found = go(tmp_path / str(stop), [Fake("x", Calls()), Fake("y", Calls())], plan)
        assert _without_times(found) == whole, stop
        assert lines(tmp_path / str(stop)) == {kind: len(rows) for kind, rows in found.items()}


def test_methods_take_turns_at_being_timed(tmp_path: Path) -> None:
    calls = Calls()
    found = go(tmp_path, [Fake(name, calls) for name in "xyz"], Plan(timed=2, served=0))
    assert [method for method, about in calls.of("time") if about == "a"] == list("xyzyzxzxy")
    assert {about for _, about in calls.of("time")} == {"a", "c"}, "spread over the suite"
    assert len(found["timing"]) == 18
    assert {row.repeat for row in found["timing"]} == {0, 1, 2}
    first = found["timing"][0]
    assert first.stages == {"embed": 1.0, "route": 0.5, "assemble": 0.25, "prefill": 2.0}
    assert (first.context_tokens, first.kv_bytes) == (10, 1000)


def test_who_is_timed_has_answered_in_the_same_process(tmp_path: Path) -> None:
    """Else the first request of a run that is taken up again would be slower than all others."""
    plan = Plan(timed=1, repeats=2, served=0)
    go(tmp_path, [Fake("x", Calls()), Fake("y", Calls())])
    calls = Calls()
    found = go(tmp_path, [Fake("x", calls), Fake("y", calls)], plan)
    assert [method for method, _ in calls.of("time")] == list("xy" + "xy" + "yx")
    assert len(found["timing"]) == 4


@pytest.mark.parametrize(("timed", "expected"), [(0, ""), (1, "a"), (3, "abc"), (4, "abcd"), (99, "abcd")])
def test_how_many_are_timed(tmp_path: Path, timed: int, expected: str) -> None:
    found = go(tmp_path, [Fake("x", Calls())], Plan(timed=timed, repeats=1, served=0))
    assert [row.example for row in found["timing"]] == list(expected)


@pytest.mark.parametrize("error", [_TOO_LONG, GenerationError("It broke."), CompileError("It broke.")])
def test_an_answer_that_fails_is_a_row(tmp_path: Path, error: Exception) -> None:
    calls = Calls()
    found = go(tmp_path, [Fake("x", calls, unanswered={"b": error}), Fake("y", calls)], Plan(timed=4, served=4))
    failed = [row for row in found["answers"] if row.error]
    assert keys(failed) == [("b", "x")]
    assert (failed[0].error, failed[0].f1, failed[0].em, failed[0].output_tokens) == (str(error), 0, 0, 0)
    assert len(found["answers"]) == 8
    assert ("b", "x") not in keys(found["timing"]) + keys(found["served"])
    assert len(set(keys(found["timing"]))) == 7
    assert len(set(keys(found["served"]))) == 7


def test_what_cannot_be_prepared_is_a_row_and_the_rest_of_its_group_is_answered(tmp_path: Path) -> None:
    calls = Calls()
    broken = Fake("x", calls, unprepared={"b": CompileError("Page 2 broke.")})
    found = go(tmp_path, [broken, Fake("y", calls)], Plan(timed=4, repeats=1, served=4, callers=(1,)))
    assert [(row.example, row.method, row.error) for row in found["answers"] if row.error] == [
        ("b", "x", "Page 2 broke.")
    ]
    assert ("x", "b") not in calls.of("answer") + calls.of("time")
    assert [(row.group, row.pages) for row in found["offline"] if row.method == "x"] == [("g", 3), ("h", 2)]
    for kind in ("timing", "served"):
        assert [row.example for row in found[kind] if row.method == "x"] == ["a", "c", "d"]
        assert [row.example for row in found[kind] if row.method == "y"] == IDS


def test_a_method_that_can_prepare_nothing(tmp_path: Path) -> None:
    plan = Plan(timed=4, served=4)
    broken: dict[str, Any] = {"unprepared": dict.fromkeys(IDS, CompileError("It broke."))}
    found = go(tmp_path, [Fake("x", Calls(), **broken)], plan)
    assert [row.error for row in found["answers"]] == ["It broke."] * 4
    assert not found["timing"] + found["offline"] + found["served"]
    calls = Calls()
    assert go(tmp_path, [Fake("x", calls, **broken)], plan) == found
    assert not calls.made


@pytest.mark.parametrize("error", [UnsupportedModelError("No."), RuntimeError("A defect."), ConfigError("No.")])
@pytest.mark.parametrize("where", ["unprepared", "unanswered"])
def test_other_errors_end_the_run(tmp_path: Path, error: Exception, where: str) -> None:
    wrong: dict[str, Any] = {where: {"c": error}}
    with pytest.raises(type(error), match=str(error)):
        go(tmp_path, [Fake("x", Calls(), **wrong)])
    assert not [row for row in rows(tmp_path)["answers"] if row.error]


def test_a_route_names_places_also_of_pages_that_look_alike(tmp_path: Path) -> None:
    one, two = EXAMPLES[0].pages
    example = replace(EXAMPLES[0], pages=(one, two, replace(one, number=2)))
    found = go(tmp_path, [Fake("x", Calls(), routes=True)], examples=[example])
    assert [(each["place"], each["rank"], each["promoted"]) for each in found["answers"][0].route] == [
        (0, 0, True), (1, 1, False), (2, 2, False),
    ]  # fmt: skip
    assert found["answers"][0].route[0] == {
        "place": 0, "dpi": 72, "score": 0.5, "rank": 0, "promoted": True, "tokens": 9,
    }  # fmt: skip


def test_right_answers_are_scored(tmp_path: Path) -> None:
    found = go(tmp_path, [Fake("x", Calls())], examples=[replace(EXAMPLES[0], answers=("nothing", "x on a"))])
    assert (found["answers"][0].f1, found["answers"][0].em) == (1, 1)


def test_a_suite_without_examples(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no examples"):
        go(tmp_path, [Fake("x", Calls())], examples=[])


@pytest.mark.parametrize(
    "wrong", [{"timed": -1}, {"served": -1}, {"repeats": 0}, {"callers": ()}, {"callers": (1, 0)}], ids=str
)
def test_plans_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be at least"):
        Plan(**wrong)
