"""Reports: which sections are there, and that their figures are the run's."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from qvpic_rag.errors import InputError, MissingDependencyError, QVPICError
from qvpic_rag.evaluation.records import OfflineCost, Served
from qvpic_rag.evaluation.report import write_report
from tests.evaluation.runs import answered, example, scored, timed, write

CONDITIONING = ["full@72", "pic@72/prefix-free", "pic@72/dummy-4", "pic@72/native"]
SWEEP = ["full@72", "full@120", "pic@72/native", "pic@120/native", "qvpic"]
ABLATION = ["full@120", "pic@72/prefix-free", "pic@72/native", "qvpic/prefix-free", "qvpic"]
SENSITIVITY = ["full@120", "qvpic", "qvpic+alpha=0.5", "qvpic+alpha=0.5+budget=2", "qvpic@72-144"]
TEXT = ["full@text", "pic@text/prefix-free", "pic@text/native", "epic2@text", "top4@text", "prefix@text"]
ALWAYS = ["What was run", "All methods"]


def run(path: Path, methods: list[str], times: bool = True) -> Path:
    scores = {name: [(place + number) % 3 / 2 for number in range(6)] for place, name in enumerate(methods)}
    return scored(path, scores, {name: 10.0 * (1 + place) for place, name in enumerate(methods)} if times else None)


def headings(path: Path) -> list[str]:
    return re.findall(r"^#{2,3} (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)


def check_pictures(report: Path) -> set[str]:
    """The plots that a report links are there and show something, and its page holds them all."""
    names = set(re.findall(r"\]\(plots/(.*?)\)", report.read_text(encoding="utf-8")))
    assert names == {path.name for path in (report.parent / "plots").iterdir()}
    for name in names:
        with Image.open(report.parent / "plots" / name) as picture:
            colors = picture.convert("RGB").getcolors(1 << 24)
        assert colors is not None
        assert len(colors) > 20
    page = (report.parent / "report.html").read_text(encoding="utf-8")
    assert page.count("<img ") == page.count('src="data:image/png;base64,') == len(names)
    return names


@pytest.mark.parametrize(
    ("methods", "sections", "pictures"),
    [
        (CONDITIONING, ["What the paper claims", "Conditioning", "Quality and time"], {"conditioning", "times"}),
        (SWEEP, ["What the paper claims", "Resolutions", "Quality and time"], {"resolutions", "times"}),
        (
            ABLATION,
            [
                "What the paper claims", "Conditioning", "Quality and time",
                "Conditioning and routing apart (72 and 120 DPI)",
            ],
            {"conditioning", "times", "ablation-72-120"},
        ),
        (
            SENSITIVITY,
            [
                "What the paper claims", "Quality and time", "Alpha and budget (dense router)", "Pairs of resolutions",
            ],
            {"times", "alpha-dense", "pairs"},
        ),
        (TEXT, ["What the paper claims", "Conditioning", "Quality and time"], {"conditioning", "times"}),
        (["full@72"], [], set()),
    ],
    ids=["conditioning", "sweep", "ablation", "sensitivity", "text", "one"],
)  # fmt: skip
def test_sections(tmp_path: Path, methods: list[str], sections: list[str], pictures: set[str]) -> None:
    report = write_report(run(tmp_path, methods))
    assert report == tmp_path / "REPORT.md"
    assert headings(report) == [*ALWAYS, *sections, "By number of pages"]
    assert check_pictures(report) == {f"1-{name}.png" for name in pictures}


def test_without_times_nothing_is_drawn_against_time(tmp_path: Path) -> None:
    report = write_report(run(tmp_path, SWEEP, times=False))
    assert headings(report) == [*ALWAYS, "By number of pages"]
    assert check_pictures(report) == set()


def test_the_main_table_and_the_claims(tmp_path: Path) -> None:
    scores = {"full@72": [1.0] * 4, "pic@72/prefix-free": [0.25] * 4, "pic@72/native": [0.75] * 4}
    report = write_report(scored(tmp_path / "run", scores, {"full@72": 200.0, "pic@72/native": 50.0}), tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["REPORT.md", "plots", "report.html"]
    lines = report.read_text(encoding="utf-8").replace("\\", "").splitlines()
    assert (
        "| pic@72/native | 4 | 0 | 0.750 [0.750, 0.750] | 0.000 [0.000, 0.000] | -0.250 [-0.250, -0.250] | 50.0 | 50.0 "
        "| 0.25 | 100 | 2.0 kB |"
    ) in lines
    assert (
        "- The native prefix beats no prefix: seen (pic@72/native against pic@72/prefix-free, 4 examples: F1 "
        "difference +0.500, interval +0.500 to +0.500; only 4 groups, so the interval is rough)."
    ) in lines
    assert "| model fingerprint | f00d |" in lines
    assert "| suite prompts | bare |" in lines


def test_a_reversed_claim_is_called_so(tmp_path: Path) -> None:
    scores = {"pic@72/prefix-free": [0.5] * 12, "pic@72/native": [0.25] * 12, "pic@72/dummy-2": [0.25] * 12}
    text = write_report(scored(tmp_path, scores)).read_text(encoding="utf-8")
    assert (
        "beats no prefix: reversed (pic@72/native against pic@72/prefix-free, 12 examples: F1 difference -0.250" in text
    )
    assert (
        "beats a dummy prefix: not seen (pic@72/native against pic@72/dummy-2, 12 examples: F1 difference +0.000"
        in text
    )


def test_one_example(tmp_path: Path) -> None:
    rows: list[Any] = [example("a")]
    for name in ABLATION:
        rows += [answered("a", name, 0.5), *timed("a", name, [3.0])]
    text = write_report(write(tmp_path, ABLATION, rows)).read_text(encoding="utf-8")
    assert "1 example in 1 group; 0 contexts cut in the middle to fit; 0 answers failed" in text
    assert "one group of examples gives no interval" in text
    assert "| qvpic | 1 | 0 | 0.500 | 0.000 | +0.000 | 3.00 | 3.00 | 1.00 | 100 | 2.0 kB |" in text


def test_a_method_that_always_fails(tmp_path: Path) -> None:
    rows: list[Any] = [example(name, f"g{name}", cut=name == "a") for name in "abc"]
    rows += [answered(name, "full@72") for name in "abc"]
    rows += [answered(name, "pic@72/native", 0.0, error="too long", text="") for name in "abc"]
    text = write_report(write(tmp_path, ["full@72", "pic@72/native"], rows)).read_text(encoding="utf-8")
    assert "1 context cut in the middle to fit; 3 answers failed, which count as wrong." in text
    [line] = [line.replace("\\", "") for line in text.splitlines() if line.startswith("| pic@72/native")]
    zero = "0.000 [0.000, 0.000]"
    assert line == f"| pic@72/native | 3 | 3 | {zero} | {zero} | -1.000 [-1.000, -1.000] | - | - | - | - | - |"


def test_a_run_that_goes_on(tmp_path: Path) -> None:
    rows: list[Any] = [example("a"), example("b"), answered("a", "full@72")]
    text = write_report(write(tmp_path, ["full@72", "qvpic"], rows)).read_text(encoding="utf-8")
    assert "The run is not complete: full@72, qvpic did not answer every example." in text


def test_callers_and_offline_work(tmp_path: Path) -> None:
    rows: list[Any] = [example("a"), answered("a", "qvpic"), OfflineCost("g", "qvpic", 2, 3.0, 5_000_000)]
    rows += [Served("qvpic", 1, "a", 1.0, 25.0, 150.0)]
    report = write_report(write(tmp_path, ["qvpic"], rows))
    assert headings(report) == [*ALWAYS, "Several callers at once", "Ahead of questions"]
    text = report.read_text(encoding="utf-8")
    assert "| qvpic | 1 | 1 | 25.0 | - | - | 25.0 | 150 | - | - | 150 |" in text
    assert "| qvpic | 1.500 | 2.5 MB |" in text
    assert "Left out" not in text


@pytest.mark.parametrize("requests", [1, 3, 4, 16])
def test_callers_that_were_never_at_once_are_not_shown(tmp_path: Path, requests: int) -> None:
    rows: list[Any] = [example("a"), answered("a", "m")]
    rows += [Served("m", callers, f"e{n}", 0.0, 1.0, 2.0) for callers in (4, 16) for n in range(requests)]
    text = write_report(write(tmp_path, ["m"], rows)).read_text(encoding="utf-8")
    for callers in (4, 16):
        assert (f"| m | {callers} | {requests} |" in text) == (callers <= requests)
        assert (f"m with {callers} callers ({requests})" in text) == (callers > requests)
    assert ("| method | callers |" in text) == (requests >= 4)


def test_by_kind(tmp_path: Path) -> None:
    rows: list[Any] = [example("a", "g", kind="name"), example("b", "h", kind=""), example("c", "i", kind="name")]
    rows += [answered(name, "m", f1) for name, f1 in (("a", 1.0), ("b", 0.25), ("c", 1.0))]
    report = write_report(write(tmp_path, ["m"], rows))
    assert "By kind" in headings(report)
    lines = report.read_text(encoding="utf-8").replace("\\", "").splitlines()
    assert "| F1 [95%] | no kind | name |" in lines
    assert "| examples | 1 | 2 |" in lines
    assert "| m | 0.250 | 1.000 [1.000, 1.000] |" in lines


def test_several_models(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run(tmp_path / name, SWEEP)
    report = write_report(tmp_path)
    found = headings(report)
    assert found[:3] == ["Across models", "demo, run 1", "What was run"]
    assert found.count("Quality and time") == 2
    expected = {"models.png", "1-resolutions.png", "1-times.png", "2-resolutions.png", "2-times.png"}
    assert check_pictures(report) == expected


def test_runs_of_one_kind_are_compared_without_a_warning(tmp_path: Path) -> None:
    for name in ("one", "two"):
        rows = [row for n in range(3) for row in (example(f"e{n}", f"g{n}"), answered(f"e{n}", "full@72"))]
        rows += [answered(f"e{n}", "qvpic") for n in range(3)]
        write(tmp_path / name, ["full@72", "qvpic"], rows, model__name=name, model__fingerprint=name)
    text = write_report(tmp_path).read_text(encoding="utf-8")
    assert "## Across models" in text
    assert "differ in more" not in text


@pytest.mark.parametrize(
    ("differing", "setting", "asked"),
    [
        ({"suite__name": "folder"}, "suite name | facts | folder", True),
        ({"suite__prompts": "glyph"}, "suite prompts | bare | glyph", True),
        ({"suite__top_k": 8}, "suite top_k | none | 8", True),
        ({"seed": 1}, "seed | 0 | 1", True),
        ({"model__dtype": "bfloat16"}, "model dtype | float32 | bfloat16", False),
        ({"environment__cores": 8}, "environment cores | 2 | 8", False),
        ({"max_new_tokens": 3000}, "max_new_tokens | none | 3000", False),
        ({"embedder": "other"}, "embedder | demo | other", False),
        ({}, "questions asked | 3 | 2", True),
    ],
)
def test_in_what_runs_differ_is_said(tmp_path: Path, differing: dict[str, Any], setting: str, asked: bool) -> None:
    for name, values, count in (("a", {}, 3), ("b", differing, 3 if differing else 2)):
        rows: list[Any] = [example(f"e{n}", f"g{n}") for n in range(count)]
        rows += [answered(f"e{n}", method) for n in range(count) for method in ("full@72", "qvpic")]
        write(tmp_path / name, ["full@72", "qvpic"], rows, model__name=name, **values)
    text = write_report(tmp_path).read_text(encoding="utf-8").replace("\\", "")
    across = text[: text.index("What was run")]
    assert f"| {setting} |" in across
    assert "The runs differ in more than the model" in across
    assert ("did not ask the same questions" in across) == asked
    suites = differing.get("suite__name") is not None
    assert ("| a (facts) |" in across, "| b (folder) |" in across) == (suites, suites)


def test_plots_of_an_earlier_report_are_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run(tmp_path / "runs" / name, SWEEP)
    out = tmp_path / "out"
    write_report(tmp_path / "runs", out)
    assert (out / "plots" / "2-times.png").exists()
    others = ["mine.png", "1-mine.png", "2-times.png.bak", "0-times.png", "times.png", "1-ablation-.png", "notes.txt"]
    for name in others:
        (out / "plots" / name).write_text("mine")
    (out / "plots" / "3-times.png").mkdir()
    write_report(run(tmp_path / "one", CONDITIONING), out)
    kept = {path.name for path in (out / "plots").iterdir()}
    assert kept == {*others, "3-times.png", "1-conditioning.png", "1-times.png"}


def test_all_names_of_plots_are_known(tmp_path: Path) -> None:
    methods = list(dict.fromkeys([*CONDITIONING, *SWEEP, *ABLATION, *SENSITIVITY]))
    methods += ["qvpic+router=hybrid", "qvpic+alpha=0.5+router=hybrid"]
    for name in ("one", "two"):
        run(tmp_path / "runs" / name, methods)
    write_report(tmp_path / "runs", tmp_path / "out")
    assert len(list((tmp_path / "out" / "plots").iterdir())) > 12
    write_report(run(tmp_path / "plain", ["full@72"]), tmp_path / "out")
    assert list((tmp_path / "out" / "plots").iterdir()) == []


def test_names_from_outside_are_text(tmp_path: Path) -> None:
    bad = "<img src=x onerror=alert(1)>"
    rows: list[Any] = [
        example("a", kind=bad),
        example("b", "h", kind="x|y $z$"),
        answered("a", bad),
        answered("b", bad),
    ]
    rows += [*timed("a", bad, [1.0]), *timed("a", "$m", [2.0]), answered("a", "$m")]
    folder = write(tmp_path, [bad, "$m"], rows, model__name=bad, suite__name=bad)
    report = write_report(folder)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert bad not in page
    assert page.count("<img ") == 1
    assert bad not in report.read_text(encoding="utf-8")


def test_without_matplotlib_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "run", SWEEP)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(MissingDependencyError, match=r"qvpic-rag\[eval\]"):
        write_report(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_no_run_or_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run"):
        write_report(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(QVPICError, match="The report cannot be written"):
        write_report(run(tmp_path / "run", ["full@72"]), tmp_path / "file")


def test_a_sweep_does_not_crowd_the_plot_of_all_methods(tmp_path: Path) -> None:
    swept = [f"qvpic+alpha={alpha}+budget={budget}" for alpha in ("0.5", "0.65") for budget in (1, 2, 4, 8)]
    told = "The variants of alpha and budget have a section of their own."
    report = write_report(run(tmp_path / "many", ["full@72", "qvpic", *swept]))
    text = report.read_text(encoding="utf-8")
    assert told in text
    assert "Pairs of resolutions" not in headings(report), "qvpic under two names is one pair"
    assert text.count("first token comes before full prefill's") == 1
    few = write_report(run(tmp_path / "few", ["full@72", "qvpic", *swept[:3]]))
    assert told not in few.read_text(encoding="utf-8")


def test_the_times_of_exact_prefixes_are_said_to_be_their_best_case(tmp_path: Path) -> None:
    said = "its best case"
    assert said in write_report(run(tmp_path / "with", TEXT)).read_text(encoding="utf-8")
    assert said not in write_report(run(tmp_path / "without", SWEEP)).read_text(encoding="utf-8")
