"""Several callers at once: one queue in front of the model, and figures that are complete or made again."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, median

import pytest

from qvpic_rag.errors import GenerationError
from qvpic_rag.evaluation.records import Served
from qvpic_rag.evaluation.rundir import RunFolder
from qvpic_rag.evaluation.serving import serve
from qvpic_rag.models import LanguageModel
from tests.evaluation.fakes import Calls, Fake, asked, model
from tests.evaluation.runs import settings

EXAMPLES = asked({"g": "abcd", "h": "efgh"})
SECONDS = 0.04


def go(path: Path, method: Fake, callers: tuple[int, ...], subject: LanguageModel | None = None) -> list[Served]:
    with RunFolder.create(path, settings([method.name])) as folder:
        serve(folder, subject or model(), method, EXAMPLES, callers)
    return [row for row in RunFolder.open(path).rows("served") if isinstance(row, Served)]


def test_waits_grow_with_callers(tmp_path: Path) -> None:
    calls = Calls()
    found = go(tmp_path, Fake("x", calls, seconds=SECONDS), (1, 4))
    assert [(row.callers, row.example) for row in found] == [(n, each.id) for n in (1, 4) for each in EXAMPLES]
    alone, together = ([row.wait for row in found if row.callers == count] for count in (1, 4))
    answer = 1000 * SECONDS
    assert median(alone) < answer / 2
    # Four ask at once: the second waits for one answer, the fourth for three, and so does whoever asks again. How
    # late a thread is woken on a busy machine is left room for.
    for place, wait in enumerate(sorted(together[:4])):
        assert wait > (place - 0.5) * answer
    assert mean(together[4:]) > 2 * answer
    for row in found:
        assert row.ttft == pytest.approx(row.wait + answer / 2)
        assert row.total == pytest.approx(row.wait + answer)
    assert len(calls.of("prepare")) == len(EXAMPLES)
    assert calls.made[-1] == ("forget", "x", "")


def test_each_number_of_callers_is_told_and_measured_once(tmp_path: Path) -> None:
    go(tmp_path, Fake("x", Calls()), (1,))
    told: list[int] = []
    calls = Calls()
    with RunFolder.create(tmp_path, settings(["x"])) as folder:
        serve(folder, model(), Fake("x", calls), EXAMPLES, (1, 4, 16), told.append)
        assert told == [4, 16]
        assert len(calls.of("answer")) == 2 * len(EXAMPLES)
    calls = Calls()
    assert len(go(tmp_path, Fake("x", calls), (1, 4, 16))) == 3 * len(EXAMPLES)
    assert not calls.made


def test_what_is_incomplete_is_asked_in_full(tmp_path: Path) -> None:
    """A process that was killed between two records: the others alone would have a shorter queue."""
    kept = Served("x", 4, "a", 1.0, 2.0, 3.0)
    with RunFolder.create(tmp_path, settings(["x"])) as folder:
        folder.append("served", kept)
    calls = Calls()
    found = go(tmp_path, Fake("x", calls), (4,))
    assert sorted(about for _, about in calls.of("answer")) == [each.id for each in EXAMPLES]
    assert found[0] == kept
    assert [row.example for row in found] == [each.id for each in EXAMPLES]


def test_a_failure_ends_it_and_leaves_no_half(tmp_path: Path) -> None:
    broken = Fake("x", Calls(), unanswered={"f": GenerationError("It broke.")})
    with pytest.raises(GenerationError, match=r"It broke\."):
        go(tmp_path, broken, (1, 4))
    assert not list(RunFolder.open(tmp_path).rows("served"))


def test_a_model_s_queue_is_free_afterwards(tmp_path: Path) -> None:
    subject = model()
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, Fake("x", Calls(stop=12)), (4,), subject)
    assert len(go(tmp_path, Fake("x", Calls()), (4,), subject)) == len(EXAMPLES)
