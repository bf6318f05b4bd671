"""A run's folder: nothing written is lost or mixed up, whatever happens to its writers."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qvpic_rag.errors import ConfigError, InputError, QVPICError
from qvpic_rag.evaluation.checking import record
from qvpic_rag.evaluation.records import Answered, Example, OfflineCost, Served
from qvpic_rag.evaluation.rundir import RunFolder, runs_below
from tests.evaluation.runs import answered, example, page, routed, settings, timed, write


def test_records_come_back(tmp_path: Path) -> None:
    rows: dict[str, list[Any]] = {
        "examples": [example("a", pages=2, tags=("name",), cut=True), example("b", evidence=None)],
        "answers": [answered("a", "qvpic", 0.5, route=(routed(0, promoted=True, rank=0),)), answered("b", "qvpic")],
        "timing": timed("a", "qvpic", [1.0, 2.5]),
        "offline": [OfflineCost("g", "qvpic", 2, 0.5, 100)],
        "served": [Served("qvpic", 4, "a", 1.0, 2.0, 3.0)],
    }
    write(tmp_path, ["qvpic"], [row for held in rows.values() for row in held])
    folder = RunFolder.open(tmp_path)
    assert {kind: list(folder.rows(kind)) for kind in rows} == rows
    assert folder.done("examples") == {("a",), ("b",)}
    assert folder.done("answers") == {("a", "qvpic"), ("b", "qvpic")}
    assert folder.done("timing") == {("a", "qvpic", 0), ("a", "qvpic", 1)}
    assert folder.done("offline") == {("g", "qvpic")}
    assert folder.done("served") == {("qvpic", 4, "a")}
    assert folder.settings["suite"] == settings([])["suite"]
    assert (folder.settings["format"], folder.settings["started"][:2]) == (1, "20")


@given(
    text=st.text(st.characters(exclude_categories=["Cs"])),
    f1=st.floats(0, 1),
    nbytes=st.integers(0, 1 << 60),
)
def test_a_line_is_its_record(text: str, f1: float, nbytes: int) -> None:
    row = answered(text, "m", f1, text=text, kv_bytes=nbytes, error=text)
    line = json.dumps(row.to_dict(), ensure_ascii=False).encode()
    assert record(Answered, line, "here") == row


def test_no_records_of_a_kind_are_none(tmp_path: Path) -> None:
    assert list(RunFolder.open(write(tmp_path, ["m"], [])).rows("served")) == []


def test_the_first_record_of_a_key_counts(tmp_path: Path) -> None:
    write(tmp_path, ["m"], [answered("a", "m", 0.25), answered("a", "m", 1.0)])
    assert [row.f1 for row in RunFolder.open(tmp_path).rows("answers")] == [0.25]  # type: ignore[union-attr]


@pytest.mark.parametrize("left", [1, 20, 100])
def test_a_torn_last_line_is_passed_over_by_readers_and_cut_off_by_the_next_writer(tmp_path: Path, left: int) -> None:
    path = write(tmp_path, ["m"], [answered("a", "m"), answered("b", "m")]) / "answers.jsonl"
    whole = path.read_bytes()
    second = whole.index(b"\n") + 1
    path.write_bytes(whole[: second + left])
    assert RunFolder.open(tmp_path).done("answers") == {("a", "m")}
    assert path.read_bytes() == whole[: second + left], "a reader changes nothing: the line may be just being written"
    with RunFolder.create(tmp_path, settings(["m"])) as folder:
        assert path.read_bytes() == whole[:second]
        folder.append("answers", answered("c", "m"))
    assert RunFolder.open(tmp_path).done("answers") == {("a", "m"), ("c", "m")}


def test_one_process_writes(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from qvpic_rag.evaluation.rundir import RunFolder\n"
        "from tests.evaluation.runs import settings\n"
        "RunFolder.create(Path(sys.argv[1]), settings(['m']))\n"
    )

    def other() -> str:
        command = [sys.executable, "-c", code, str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path.cwd()).stderr

    with RunFolder.create(tmp_path, settings(["m"])):
        with pytest.raises(InputError, match=r"Another process writes to .*; wait until it ends, or use another --out"):
            RunFolder.create(tmp_path, settings(["m"]))
        assert "InputError: Another process writes to" in other()
        assert RunFolder.open(tmp_path).settings["methods"] == ["m"], "reading goes on"
    assert other() == ""


@pytest.mark.parametrize(
    ("differing", "message"),
    [
        ({"seed": 1}, "seed 0, not 1"),
        ({"suite__worlds": 4}, "suite.worlds 3, not 4"),
        ({"suite__prompts": "llama-index"}, "suite.prompts 'bare', not 'llama-index'"),
        ({"suite__more": True}, "suite.more None, not True"),
        ({"model__fingerprint": "beef"}, "model.fingerprint 'f00d', not 'beef'"),
        ({"model__dtype": "bfloat16"}, "model.dtype 'float32', not 'bfloat16'"),
        ({"embedder": "other"}, "embedder 'demo', not 'other'"),
        ({"environment__cores": 4}, "environment.cores 2, not 4"),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path: Path, differing: dict[str, Any], message: str) -> None:
    write(tmp_path, ["m"], [answered("a", "m")])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigError) as caught:
        RunFolder.create(tmp_path, settings(["m"], **differing))
    assert str(caught.value) == f"{tmp_path} holds a run with {message}; use another --out."
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    RunFolder.create(tmp_path, settings(["m"])).close()


def test_methods_grow_and_a_model_may_have_moved(tmp_path: Path) -> None:
    write(tmp_path, ["a", "b"], [])
    started = RunFolder.open(tmp_path).settings["started"]
    with RunFolder.create(tmp_path, settings(["c", "a"], preset="quick", model__name="/elsewhere")) as folder:
        assert folder.settings["methods"] == ["a", "b", "c"]
    found = RunFolder.open(tmp_path).settings
    assert (found["methods"], found["started"], found["preset"]) == (["a", "b", "c"], started, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json", "run.lock"]


def test_the_embedder_comes_with_the_first_method_that_needs_one(tmp_path: Path) -> None:
    for methods, embedder, expected in (("a", None, None), ("b", "demo", "demo"), ("c", None, "demo")):
        with RunFolder.create(tmp_path, settings(methods, embedder=embedder)) as folder:
            assert folder.settings["embedder"] == expected
    with pytest.raises(ConfigError, match="holds a run with embedder 'demo', not 'other'"):
        RunFolder.create(tmp_path, settings("a", embedder="other"))
    assert RunFolder.open(tmp_path).settings["methods"] == ["a", "b", "c"]


def test_records_without_settings_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "answers.jsonl").write_text("precious")
    with pytest.raises(ConfigError, match=r"holds answers.jsonl but no run.json; use another --out"):
        RunFolder.create(tmp_path, settings(["m"]))
    assert (tmp_path / "answers.jsonl").read_text() == "precious"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": 1}, "has the unknown field 'extra'"),
        ({"f1": None}, "f1 must be float, not None"),
        ({"f1": "1"}, "f1 must be float, not '1'"),
        ({"f1": True}, "f1 must be float, not True"),
        ({"context_tokens": 1.5}, "context_tokens must be int, not 1.5"),
        ({"route": {}}, "route must be tuple"),
        ({"route": [{"dpi": 72}]}, "a page of the route must have dpi, score"),
        ({"method": 3}, "method must be str, not 3"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write(tmp_path, ["m"], [answered("a", "m")])
    with (tmp_path / "answers.jsonl").open("a") as file:
        file.write(json.dumps({**answered("b", "m").to_dict(), **change}) + "\n")
    with pytest.raises(InputError) as caught:
        RunFolder.open(tmp_path).done("answers")
    assert str(caught.value).startswith(f"{tmp_path / 'answers.jsonl'}, line 2")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"\n", "is not valid JSON"),
        (b"[1]\n", "is not a JSON object"),
        (b"{}\n", "lacks the field 'id'"),
        (b'{"id": NaN}\n', "NaN is no number"),
        (b'{"id": "\xff"}\n', "is not valid JSON"),
    ],
    ids=str,
)
def test_what_is_no_record_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    write(tmp_path, ["m"], [])
    (tmp_path / "examples.jsonl").write_bytes(line)
    with pytest.raises(InputError, match=message):
        list(RunFolder.open(tmp_path).rows("examples"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"evidence": [1]}, "evidence must be places in its pages"),
        ({"evidence": ["0"]}, "evidence must be places in its pages"),
        ({"pages": [{"lines": []}]}, "a page must have lines, text, source, number"),
        ({"pages": [{**page().__dict__, "lines": [1]}]}, "a page must have lines, text"),
        ({"answers": "yes"}, "answers must be tuple"),
    ],
)
def test_a_damaged_example_is_named(change: dict[str, Any], message: str) -> None:
    line = json.dumps({**example().to_dict(), **change}).encode()
    with pytest.raises(InputError, match=message):
        record(Example, line, "here")


ROWS: list[Any] = [
    example(evidence=(0,)), answered("a", "m", route=(routed(0, promoted=True, rank=0),)), *timed("a", "m", [1.0]),
    OfflineCost("g", "m", 2, 0.5, 100), Served("m", 4, "a", 1.0, 2.0, 3.0),
]  # fmt: skip


def numbers(values: Any, name: str = "") -> Iterator[tuple[dict[str, Any], str]]:
    """Each number in a record: what holds it, and its name there."""
    for each in values if isinstance(values, list | tuple) else [values]:
        if isinstance(each, dict):
            for key, value in each.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    yield each, key
                yield from numbers(value)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: type(row).__name__)
@pytest.mark.parametrize("bad", ["-1", "-0.5", "1e999", "-1e999", "1" * 400, "true", "NaN", '"1"', "[]", "2.0e"])
def test_a_number_that_cannot_be_is_named(row: Any, bad: str) -> None:
    count = len(list(numbers(row.to_dict())))
    assert count
    for place in range(count):
        values = json.loads(json.dumps(row.to_dict()))
        holder, name = list(numbers(values))[place]
        holder[name] = "BAD"
        if name == "score" and bad in ("-1", "-0.5"):
            continue  # of vectors that point away from each other
        with pytest.raises(InputError) as caught:
            record(type(row), json.dumps(values).replace('"BAD"', bad).encode(), "file, line 3")
        assert str(caught.value).startswith("file, line 3")
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"f1": 1.01}, "f1 must be 0 to 1, not 1.01"),
        ({"em": 2}, "em must be 0 to 1, not 2"),
        ({"total": -1e-9}, "total must be 0 or more"),
        ({"route": [{**routed(0, promoted=True, rank=0), "dpi": 23}]}, "dpi must be 24 to 600, not 23"),
        ({"route": [{**routed(0, promoted=True, rank=0), "dpi": 601}]}, "dpi must be 24 to 600, not 601"),
    ],
)
def test_a_number_out_of_its_range_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        record(Answered, json.dumps({**answered("a", "m").to_dict(), **change}).encode(), "here")


def test_numbers_at_the_ends_of_their_ranges_pass() -> None:
    for value in (0, 1):
        row = answered("a", "m", float(value), ttft=0.0, kv_bytes=2**63 - 1)
        assert record(Answered, json.dumps(row.to_dict()).encode(), "here") == row
    for dpi in (24, 600, None):
        row = answered("a", "m", route=({**routed(0, promoted=True, rank=0), "dpi": dpi, "score": -0.5},))
        assert record(Answered, json.dumps(row.to_dict()).encode(), "here") == row


def test_what_was_missed_is_known(tmp_path: Path) -> None:
    rows = [example("a", evidence=(), missed=True, evidence_all=False), example("b", evidence=(0,), missed=True)]
    assert list(RunFolder.open(write(tmp_path, ["m"], rows)).rows("examples")) == rows
    for change, message in (({"evidence": None}, "not known cannot be missed"), ({"missed": 1}, "missed must be bool")):
        line = json.dumps({**rows[0].to_dict(), **change}).encode()
        with pytest.raises(InputError, match=message):
            record(Example, line, "here")


NESTED = [b"[" * 200_000, b'{"a":' * 200_000, b"[" * 200_000 + b"]" * 200_000]


@pytest.mark.parametrize("deep", NESTED, ids=["lists", "objects", "closed"])
def test_deep_nesting_is_one_sentence(tmp_path: Path, deep: bytes) -> None:
    write(tmp_path, ["m"], [])
    (tmp_path / "answers.jsonl").write_bytes(b'{"route": ' + deep + b"}\n")
    with pytest.raises(InputError, match=r"answers.jsonl, line 1 is not valid JSON"):
        list(RunFolder.open(tmp_path).rows("answers"))
    (tmp_path / "run.json").write_bytes(deep)
    for use in (RunFolder.open, lambda path: RunFolder.create(path, settings(["m"]))):
        with pytest.raises(InputError, match=r"run.json cannot be read \(its values are nested too deeply\)"):
            use(tmp_path)


@pytest.mark.parametrize("name", ["run.json", "examples.jsonl", "answers.jsonl"])
@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, name: str, kind: str) -> None:
    write(tmp_path, ["m"], [])
    (tmp_path / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).mkdir()

    def read(path: Path) -> None:
        folder = RunFolder.open(path)
        list(folder.rows("examples"))
        list(folder.rows("answers"))

    for use in (read, lambda path: RunFolder.create(path, settings(["m"]))):
        with pytest.raises(InputError, match=f"{name} is not a regular file"):
            use(tmp_path)


def test_settings_that_could_not_be_read_again_are_not_written(tmp_path: Path) -> None:
    for seed in (10**400, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="settings could not be read again"):
            RunFolder.create(tmp_path / "run", settings(["m"], seed=seed))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"environment": value} for value in (None, 3, "x", ["x"])
    ] + [
        {"model": {"name": "demo", "profile": value}} for value in (3, "glyph", ["x"], {}, {"dpi": 1}, True)
    ] + [
        {"format": value} for value in (True, "1", 1.0, 0, -1, None)
    ] + [
        {"suite": {"name": 3}}, {"suite": "facts"}, {"model": {"name": None}}, {"model": []}, {"methods": "qvpic"},
        {"methods": [None]}, {"embedder": 3}, {"preset": []}, {"seed": "0"}, {"seed": True}, {"started": 3},
    ],
)  # fmt: skip
def test_settings_of_wrong_types_are_one_sentence(tmp_path: Path, change: dict[str, Any]) -> None:
    write(tmp_path, ["m"], [])
    held = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**held, **change}))
    for use in (RunFolder.open, lambda path: RunFolder.create(path, settings(["m"]))):
        with pytest.raises(InputError) as caught:
            use(tmp_path)
        assert str(tmp_path / "run.json") in str(caught.value)
        assert "\n" not in str(caught.value)


def test_fields_with_defaults_may_be_missing() -> None:
    values = answered("a", "m").to_dict()
    del values["route"], values["error"]
    assert record(Answered, json.dumps(values).encode(), "here") == answered("a", "m")


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    with RunFolder.create(tmp_path, settings(["m"])) as folder:
        folder.append("answers", answered("a", "m"))

        def full(file: int, data: bytes) -> int:
            if len(data) < 40:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(file, data[: len(data) // 2])

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(QVPICError, match=r"answers.jsonl cannot be written \(No space left on device\)"):
                folder.append("answers", answered("b", "m"))
        folder.append("answers", answered("c", "m"))
    assert RunFolder.open(tmp_path).done("answers") == {("a", "m"), ("c", "m")}


def test_a_folder_opened_for_reading_is_not_written(tmp_path: Path) -> None:
    folder = RunFolder.open(write(tmp_path, ["m"], []))
    with pytest.raises(QVPICError, match="opened for reading"):
        folder.append("answers", answered("a", "m"))
    with pytest.raises(ConfigError, match=r"no records of kind '../x'"):
        list(folder.rows("../x"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "does not describe a run"),
        ('{"format": 2}', "newer qvpic-rag"),
        ('{"format": 1}', "has no suite"),
        ('{"format": 1, "suite": {}, "model": {}, "methods": [1]}', r"methods cannot be \[1\]"),
    ],
)
def test_damaged_settings_are_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "run.json").write_text(content)
    for use in (RunFolder.open, lambda path: RunFolder.create(path, settings(["m"]))):
        with pytest.raises(InputError, match=message):
            use(tmp_path)


def test_runs_below(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no run: there is no run.json"):
        runs_below(tmp_path)
    with pytest.raises(InputError, match=r"holds no run"):
        runs_below(tmp_path / "nowhere")
    for name in ("b", "a"):
        write(tmp_path / name, ["m"], [])
    with pytest.raises(InputError, match=r"run.json is a file; name the folder that holds the run, such as .*/a\.$"):
        runs_below(tmp_path / "a" / "run.json")
    (tmp_path / "plots").mkdir()
    assert [folder.path.name for folder in runs_below(tmp_path)] == ["a", "b"]
    assert [folder.path.name for folder in runs_below(tmp_path / "a")] == ["a"]
