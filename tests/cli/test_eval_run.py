"""``qvpic eval run``: the bundled reader measured, and its reports and audits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qvpic_rag.baselines.base import Request
from qvpic_rag.baselines.full import Full
from qvpic_rag.demo import demo_documents
from qvpic_rag.evaluation import commands
from qvpic_rag.evaluation.rundir import RunFolder
from qvpic_rag.records import Answer
from tests.cli.conftest import Run

SMALL = ("--suite", "facts", "--questions", 2, "--pages", 2, "--timed", 1, "--served", 2)
METHODS = ["full@72", "pic@72/native", "qvpic"]


def rows(path: Path, kind: str) -> list[Any]:
    return list(RunFolder.open(path).rows(kind))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_its_report_and_its_audit(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "a run"
    command = ("eval", "run", *SMALL, "--methods", ",".join(METHODS), "--device", "cpu", "--out", out)
    result = run(*command)
    assert (result.code, result.err) == (0, "")
    assert result.out == f"{out}\nLook at it with: qvpic eval report '{out}'\n"
    folder = RunFolder.open(out)
    assert folder.settings["methods"] == METHODS
    assert folder.settings["embedder"] == "demo"
    counts = {kind: len(rows(out, kind)) for kind in ("examples", "answers", "timing", "offline", "served")}
    assert counts == {"examples": 2, "answers": 6, "timing": 9, "offline": 2, "served": 18}
    assert not [row for row in rows(out, "answers") if row.error]

    before = contents(out)
    assert run(*command).out == result.out
    assert contents(out) == before, "something was done twice"

    # An option given twice counts once, the last time.
    assert run(*command, "--methods", "pic@72/dummy-4").code == 0
    assert RunFolder.open(out).settings["methods"] == [*METHODS, "pic@72/dummy-4"]
    assert len(rows(out, "answers")) == 8
    for name in ("answers.jsonl", "timing.jsonl", "offline.jsonl", "served.jsonl"):
        assert contents(out)[name].startswith(before[name])

    refused = run(*command, "--seed", 1)
    assert refused.code == 2
    assert refused.error == f"{out} holds a run with suite.seed 0, not 1; use another --out."

    report = run("eval", "report", out)
    assert (report.code, report.err) == (0, "")
    assert Path(report.out.strip()).is_file()
    assert "pic@72/dummy-4" in (out / "REPORT.md").read_text(encoding="utf-8")
    assert (out / "report.html").is_file()
    assert list((out / "plots").iterdir())
    audit = run("eval", "audit", out)
    assert (audit.code, audit.err) == (0, "")
    assert Path(audit.out.strip()).exists()
    assert (out / "audit").is_dir()
    # What was written beside the records does not keep a run from being gone on with.
    assert run(*command).code == 0


def test_stopped_and_gone_on_with(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("eval", "run", *SMALL, "--served", 0, "--methods", "full@72", "--device", "cpu", "--out", tmp_path)
    answer, asked = Full.answer, 0

    def stopped(self: Full, request: Request) -> Answer:
        nonlocal asked
        asked += 1
        if asked == 3:
            raise KeyboardInterrupt
        return answer(self, request)

    with monkeypatch.context() as patch:
        patch.setattr(Full, "answer", stopped)
        result = run(*command)
    assert (result.code, result.out) == (1, "")
    assert result.err == "Interrupted; what was stored stays, run the same command again to go on.\n"
    assert (len(rows(tmp_path, "answers")), len(rows(tmp_path, "timing"))) == (1, 1)
    assert run("eval", "report", tmp_path).code == 0
    assert run(*command).code == 0
    assert (len(rows(tmp_path, "answers")), len(rows(tmp_path, "timing"))) == (2, 3)


def test_two_models(run: Run, tmp_path: Path) -> None:
    """A second one that cannot be loaded leaves the first one's run."""
    command = (
        *SMALL,
        "--timed",
        0,
        "--served",
        0,
        "--methods",
        "full@72",
        "--device",
        "cpu",
        "--out",
        tmp_path / "out",
    )
    result = run("eval", "run", *command, "--model", "demo", "--model", tmp_path / "none")
    assert result.code == 2
    assert "none" in result.error
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["demo"]
    assert run("eval", "report", tmp_path / "out").code == 0


@pytest.fixture
def own(tmp_path: Path) -> dict[str, Path]:
    """The bundled documents, and questions about them."""
    documents = tmp_path / "documents"
    documents.mkdir()
    for document in demo_documents():
        (documents / document.source).write_text(document.text, encoding="utf-8")
    questions = tmp_path / "asked.jsonl"
    rows = [
        {"question": "What is the badge code of Omar Reyes?", "answer": "TB-209", "evidence": "badges.txt"},
        {"question": "Who owns locker 5520?", "answer": "Tove Brandt", "evidence": ["lockers.txt"]},
    ]
    questions.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return {"documents": documents, "questions": questions, "out": tmp_path / "out"}


def test_one_s_own_questions(run: Run, own: dict[str, Path]) -> None:
    options = [part for name, value in own.items() for part in (f"--{name}", value)]
    command = ("eval", "run", "--suite", "folder", *options, "--top-k", 4, "--methods", "full@120,qvpic,top2@text")
    result = run(*command, "--timed", 0, "--served", 0, "--max-new-tokens", 16, "--device", "cpu")
    assert (result.code, result.err) == (0, "")
    folder = RunFolder.open(own["out"])
    assert folder.settings["suite"]["top_k"] == 4
    assert len(folder.settings["suite"]["digests"]) == len(demo_documents())
    examples = rows(own["out"], "examples")
    assert [len(example.pages) for example in examples] == [4, 4]
    assert all(example.evidence for example in examples), "retrieval found the evidence"
    found = {(row.example, row.method): row.text for row in rows(own["out"], "answers")}
    assert found["q1", "qvpic"] == found["q1", "full@120"] == "TB-209"
    assert found["q2", "qvpic"] == found["q2", "full@120"] == "Tove Brandt"
    assert run("eval", "audit", own["out"]).code == 0

    own["questions"].write_text('{"question": "Who?", "answer": "Ada"}', encoding="utf-8")
    changed = run(*command, "--timed", 0, "--served", 0, "--max-new-tokens", 16, "--device", "cpu")
    assert changed.code == 2
    assert "holds a run with suite.sha256" in changed.error


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--methods", "full@72", "--preset", "q1"), "Give either methods"),
        ((), "Give either methods"),
        (("--methods", "ful@72"), "There is no method 'ful@72'"),
        (("--methods", "full@72,"), "There is no method ''"),
        (("--methods", "full@72,full@72"), "given twice"),
        (("--methods", "full@72", "--pages", "2,x"), "--pages must be whole numbers, not 'x'"),
        (("--methods", "full@72", "--pages", "17"), "facts.pages must be a whole number"),
        (("--methods", "full@72", "--questions", "many"), "--questions must be whole numbers"),
        (("--methods", "full@72", "--kinds", "fact,riddle"), "facts.kinds must be some of"),
        (("--methods", "full@72", "--top-k", 3), "The suite facts has no option 'top_k'"),
        (("--methods", "full@72", "--suite", "squad"), "There is no suite 'squad'"),
        (("--methods", "full@72", "--suite", "folder", "--documents", "x"), "needs the option 'questions'"),
        (("--methods", "full@72", "--suite", "longbench", "--data", "nowhere"), "There is no folder 'nowhere'"),
        (("--methods", "full@72", "--timed=-1"), "timed must be at least 0"),
        (("--methods", "full@72", "--served=-1"), "served must be at least 0"),
        (("--methods", "full@72", "--profile", "none"), "No render profile 'none'"),
        (("--methods", "full@72", "--model", "./none"), "There is no folder './none'"),
        (("--methods", "full@72", "--model", "demo", "--model", "demo"), "each once"),
        (("--methods", "full@72", "--dtype", "int8"), "int8"),
        (("--methods", "full@72", "--max-new-tokens", 0), "--max-new-tokens"),
        (("--methods", "full@72", "--seed=-1"), "--seed"),
        (("--preset", "q9"), "There is no preset 'q9'"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_wrong_options_are_one_sentence(run: Run, tmp_path: Path, options: tuple[object, ...], sentence: str) -> None:
    suite = () if "--suite" in options else ("--suite", "facts")
    result = run("eval", "run", *suite, *options, "--out", tmp_path / "out")
    assert result.code == 2
    assert sentence in result.error
    assert not (tmp_path / "out").exists()


def test_a_suite_and_a_place_are_needed(run: Run, tmp_path: Path) -> None:
    assert run("eval", "run", "--methods", "full@72", "--out", tmp_path).code == 2
    assert run("eval", "run", "--methods", "full@72", "--suite", "facts").code == 2


def test_a_log_gets_a_line_now_and_then(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_QUIET_S", 0.0)
    options = ("--timed", 0, "--served", 0, "--methods", "full@72", "--device", "cpu", "--out", tmp_path / "out")
    result = run("eval", "run", *SMALL, *options)
    assert result.code == 0
    assert result.err.splitlines() == ["out: 1 of 2 answers", "out: 2 of 2 answers"]
