"""From what a user asks for to runs: one folder a model, and nothing mixed up in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qvpic_rag.errors import ConfigError, InputError, UnsupportedModelError
from qvpic_rag.evaluation import start
from qvpic_rag.evaluation.rundir import RunFolder, runs_below
from qvpic_rag.evaluation.runner import Plan
from qvpic_rag.evaluation.setup import environment
from qvpic_rag.evaluation.start import Wanted, measure
from tests.evaluation.fakes import Calls, Fake
from tests.evaluation.readers import Words

NOTHING = Plan(timed=0, served=0)


@contextmanager
def silent(title: str) -> Iterator[Callable[[int, int, str], None]]:
    yield lambda done, total, what: None


def wanted(**differing: Any) -> Wanted:
    values: dict[str, Any] = {
        "suite": "facts", "options": {"questions": 2, "pages": (2,)}, "models": ("demo",), "methods": ("x",),
        "preset": None, "setup": {}, "plan": NOTHING, "seed": 0,
    }  # fmt: skip
    return Wanted(**{**values, **differing})


@dataclass
class SetUp:
    """In place of ``set_up``: models and methods that are none. ``asked`` are model, methods and options."""

    max_context: int = 4096
    dtype: str = "float32"
    calls: Calls = field(default_factory=Calls)
    asked: list[tuple[str, tuple[str, ...], dict[str, Any]]] = field(default_factory=list)

    def __call__(self, name: str, methods: Sequence[str], **options: Any) -> Any:
        self.asked.append((name, tuple(methods), options))
        return SimpleNamespace(
            model=SimpleNamespace(max_context=self.max_context),
            pages=Words(),
            methods=tuple(Fake(each, self.calls) for each in methods),
            settings={"model": {"name": name, "dtype": self.dtype}, "methods": list(methods), "embedder": None},
        )


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> SetUp:
    found = SetUp()
    monkeypatch.setattr(start, "set_up", found)
    monkeypatch.setattr(start, "check_methods", lambda model, methods, **options: [])
    return found


def settings(path: Path) -> Any:
    return RunFolder.open(path).settings


def rows(path: Path, kind: str) -> list[Any]:
    return list(RunFolder.open(path).rows(kind))


def test_one_model(stub: SetUp, tmp_path: Path) -> None:
    out = tmp_path / "new" / "run"
    assert measure(wanted(seed=7, setup={"dtype": "float32", "embedder": "mine"}), out, silent) == [out]
    assert stub.asked == [("demo", ("x",), {"retrieves": False, "dtype": "float32", "embedder": "mine"})]
    found = dict(settings(out))
    assert found.pop("format") == 1
    assert found.pop("started").startswith("20")
    assert found == {
        "suite": {"name": "facts", "pages": [2], "questions": 2, "seed": 7, "split": "test", "kinds": None},
        "model": {"name": "demo", "dtype": "float32"},
        "methods": ["x"],
        "embedder": None,
        "preset": None,
        "seed": 7,
        "max_new_tokens": None,
        "environment": environment(),
    }
    assert len(rows(out, "answers")) == 2


def test_the_same_again_does_nothing(stub: SetUp, tmp_path: Path) -> None:
    measure(wanted(), tmp_path, silent)
    made = len(stub.calls.made)
    before = (tmp_path / "run.json").read_bytes()
    measure(wanted(), tmp_path, silent)
    assert len(stub.calls.made) == made
    assert (tmp_path / "run.json").read_bytes() == before


def test_one_method_more(stub: SetUp, tmp_path: Path) -> None:
    measure(wanted(), tmp_path, silent)
    measure(wanted(methods=("y",)), tmp_path, silent)
    assert settings(tmp_path)["methods"] == ["x", "y"]
    assert {method for _, method, _ in stub.calls.made[len(stub.calls.made) // 2 :]} == {"y"}


@pytest.mark.parametrize(
    ("differing", "name"),
    [
        ({"seed": 1}, "suite.seed 0, not 1"),
        ({"options": {"questions": 3, "pages": (2,)}}, "suite.questions 2, not 3"),
        ({"options": {"questions": 2, "pages": (2, 3)}}, "suite.pages"),
        ({"max_new_tokens": 9}, "max_new_tokens None, not 9"),
    ],
    ids=str,
)
def test_other_settings_are_refused_by_name(stub: SetUp, tmp_path: Path, differing: dict[str, Any], name: str) -> None:
    measure(wanted(), tmp_path, silent)
    made = len(stub.calls.made)
    with pytest.raises(ConfigError, match=f"holds a run with {name}.*use another --out"):
        measure(wanted(**differing), tmp_path, silent)
    assert len(stub.calls.made) == made


def test_another_model_is_refused_by_name(stub: SetUp, tmp_path: Path) -> None:
    measure(wanted(), tmp_path, silent)
    stub.dtype = "bfloat16"
    with pytest.raises(ConfigError, match=r"holds a run with model\.dtype 'float32', not 'bfloat16'"):
        measure(wanted(), tmp_path, silent)


def test_longest_answers(stub: SetUp, tmp_path: Path) -> None:
    measure(wanted(max_new_tokens=3), tmp_path, silent)
    assert {row.max_new_tokens for row in rows(tmp_path, "examples")} == {3}


def test_several_models(stub: SetUp, tmp_path: Path) -> None:
    titles: list[str] = []

    @contextmanager
    def bar(title: str) -> Iterator[Callable[[int, int, str], None]]:
        titles.append(title)
        yield lambda done, total, what: None

    found = measure(wanted(models=("demo", "org/Big-Model.v2")), tmp_path, bar)
    assert found == [tmp_path / "demo", tmp_path / "Big-Model.v2"]
    assert titles == ["demo", "Big-Model.v2"]
    assert [run.settings["model"]["name"] for run in runs_below(tmp_path)] == ["org/Big-Model.v2", "demo"]


NAMES = ("../x", "a/b", "c/b", "d/b", "a b", "..", "/etc/passwd", "~", ".hidden", "b-2", "x\n\x00y", "é")


def test_names_from_outside_never_become_other_paths(stub: SetUp, tmp_path: Path) -> None:
    out = tmp_path / "out"
    found = measure(wanted(models=NAMES), out, silent)
    assert len(set(found)) == len(NAMES)
    assert [path.name for path in found[:9]] == [
        "x",
        "b",
        "b-2",
        "b-2-2",
        "a-b",
        "model",
        "passwd",
        "model-2",
        "hidden",
    ]
    assert {path.parent for path in found} == {out}
    assert sorted(out.iterdir()) == sorted(found)
    assert list(tmp_path.iterdir()) == [out]
    for path, model in zip(found, NAMES, strict=True):
        assert settings(path)["model"]["name"] == model
        assert path.name.isascii()
        assert path.name[0].isalnum()


def test_one_run_and_several_do_not_share_a_folder(stub: SetUp, tmp_path: Path) -> None:
    one, several = wanted(), wanted(models=("demo", "other"))
    measure(one, tmp_path / "one", silent)
    measure(several, tmp_path / "several", silent)
    asked = len(stub.asked)
    with pytest.raises(ConfigError, match="holds a run; use another --out for several models"):
        measure(several, tmp_path / "one", silent)
    with pytest.raises(ConfigError, match="holds the runs of several models; use another --out for one"):
        measure(one, tmp_path / "several", silent)
    assert len(stub.asked) == asked
    measure(several, tmp_path / "several", silent)


def test_what_is_wanted_must_make_sense() -> None:
    for wrong in ({"methods": ()}, {"preset": "q1"}):
        with pytest.raises(ConfigError, match=r"Give either methods .* or a preset"):
            wanted(**wrong)
    for models in ((), ("demo", "demo")):
        with pytest.raises(ConfigError, match="at least one model, and each once"):
            wanted(models=models)


def test_presets(stub: SetUp, tmp_path: Path, text_folder: Path) -> None:
    measure(wanted(methods=(), preset="q1,q3", models=("demo", str(text_folder))), tmp_path, silent)
    pictures, text = (methods for _, methods, _ in stub.asked)
    assert len(set(pictures)) == len(pictures)
    assert {"full@72", "pic@120/dummy-16", "qvpic", "epic2@text"} <= set(pictures)
    assert len(set(text)) == len(text)
    assert {"full@text", "pic@text/dummy-16", "prefix@text"} <= set(text)
    assert all("@text" in each for each in text)
    assert {run.settings["preset"] for run in runs_below(tmp_path)} == {"q1,q3"}


def test_what_is_wrong_is_refused_before_the_first_model_runs(stub: SetUp, tmp_path: Path, text_folder: Path) -> None:
    out = tmp_path / "out"
    models = ("demo", str(text_folder))
    for wrong, sentence in (
        ({"methods": (), "preset": "q2", "models": models}, "The preset q2 is about pictures"),
        ({"methods": (), "preset": "q1,q9"}, "There is no preset 'q9'"),
        ({"suite": "squad"}, "There is no suite 'squad'"),
        ({"options": {"top_k": 3}}, "The suite facts has no option 'top_k'"),
        ({"options": {"pages": (0,)}}, "must be a whole number from 1 to 16"),
        ({"suite": "folder", "options": {}}, "The suite folder needs the option 'questions'"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            measure(wanted(**wrong), out, silent)
    assert not stub.asked
    assert not out.exists()


@pytest.fixture
def longbench(tmp_path: Path) -> dict[str, Any]:
    """A file of one question."""
    data = tmp_path / "data"
    data.mkdir()
    row = {"input": "Who?", "context": "Ada was here. " * 300, "answers": ["Ada"], "_id": "1"}
    (data / "musique.jsonl").write_text(json.dumps(row), encoding="utf-8")
    return {"suite": "longbench", "options": {"data": str(data), "tasks": ("musique",)}}


@pytest.mark.parametrize(
    ("context", "differing", "expected"),
    [
        (2000, {}, 976),
        (2000, {"max_new_tokens": 500}, 476),
    ],
)
def test_longbench_s_contexts_fit_the_model(
    stub: SetUp, tmp_path: Path, longbench: dict[str, Any], context: int, differing: dict[str, Any], expected: int
) -> None:
    stub.max_context = context
    out = tmp_path / "out"
    measure(wanted(**longbench, **differing), out, silent)
    assert settings(out)["suite"]["max_context"] == expected
    assert [row.cut for row in rows(out, "examples")] == [expected < 900]


@pytest.mark.parametrize(("context", "differing"), [(1000, {}), (4096, {"max_new_tokens": 3000})])
def test_a_context_of_nothing_is_refused(
    stub: SetUp, tmp_path: Path, longbench: dict[str, Any], context: int, differing: dict[str, Any]
) -> None:
    stub.max_context = context
    with pytest.raises(ConfigError, match="too little is left of a context"):
        measure(wanted(**longbench, **differing), tmp_path / "out", silent)
    assert not (tmp_path / "out").exists()


def test_longbench_s_contexts_as_long_as_asked(stub: SetUp, tmp_path: Path, longbench: dict[str, Any]) -> None:
    longbench["options"]["max_context"] = 50
    out = tmp_path / "out"
    measure(wanted(**longbench), out, silent)
    assert settings(out)["suite"]["max_context"] == 50
    [example] = rows(out, "examples")
    assert len(example.pages[0].text.split()) + len(example.pages[1].text.split()) <= 50


def test_the_suite_folder_retrieves(stub: SetUp, tmp_path: Path) -> None:
    (tmp_path / "ada.txt").write_text("Ada lives in Rome.", encoding="utf-8")
    (tmp_path / "asked.jsonl").write_text(json.dumps({"question": "Where?", "answer": "Rome"}), encoding="utf-8")
    options = {"questions": str(tmp_path / "asked.jsonl"), "documents": (str(tmp_path / "ada.txt"),)}
    measure(wanted(suite="folder", options=options), tmp_path / "out", silent)
    assert stub.asked[0][2] == {"retrieves": True}


def test_a_text_model_from_end_to_end(tmp_path: Path, text_folder: Path) -> None:
    methods = ("full@text", "pic@text", "epic2@text", "prefix@text", "top1@text")
    measure(
        wanted(
            options={"questions": 1, "pages": (2,)},
            models=(str(text_folder),),
            methods=methods,
            setup={"embedder": "demo", "device": "cpu", "chunk_tokens": 64},
            plan=Plan(timed=1, repeats=1, served=1, callers=(2,)),
            max_new_tokens=2,
        ),
        tmp_path,
        silent,
    )
    names = ["full@text", "pic@text/native", "epic2@text", "prefix@text", "top1@text"]
    assert settings(tmp_path)["methods"] == names
    assert settings(tmp_path)["embedder"] == "demo"
    for kind in ("answers", "timing", "served"):
        assert [row.method for row in rows(tmp_path, kind)] == names
    assert not [row for row in rows(tmp_path, "answers") if row.error]
    assert [row.method for row in rows(tmp_path, "offline")] == ["pic@text/native", "epic2@text", "top1@text"]


def test_every_model_is_checked_before_the_first_runs(tmp_path: Path, text_folder: Path) -> None:
    both = wanted(models=("demo", str(text_folder)), methods=("full@72",))
    with pytest.raises(UnsupportedModelError, match="reads no pictures, which full@72 is over"):
        measure(both, tmp_path / "out", silent)
    assert not (tmp_path / "out").exists()


def test_examples_that_are_no_longer_the_same_are_refused(stub: SetUp, tmp_path: Path) -> None:
    """Whatever changed them: documents, fonts, the embedder of a suite that retrieves."""
    measure(wanted(), tmp_path, silent)
    path = tmp_path / "examples.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace('"query":"', '"query":"Really, '), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"Example 2p-\S+ is not what .* holds: .*use another --out"):
        measure(wanted(methods=("x", "y")), tmp_path, silent)


def test_a_wrong_row_leaves_no_run_behind(stub: SetUp, tmp_path: Path, longbench: dict[str, Any]) -> None:
    data = Path(longbench["options"]["data"]) / "musique.jsonl"
    right = data.read_text(encoding="utf-8")
    data.write_text(right.replace('"input"', '"other"'), encoding="utf-8")
    with pytest.raises(InputError, match="input"):
        measure(wanted(**longbench), tmp_path / "out", silent)
    data.write_text(right, encoding="utf-8")
    assert len(rows(measure(wanted(**longbench), tmp_path / "out", silent)[0], "answers")) == 1


def test_what_can_be_no_folder_is_said(stub: SetUp, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be a folder"):
        measure(wanted(), tmp_path / ("x" * 300), silent)
