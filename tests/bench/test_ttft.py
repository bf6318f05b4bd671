"""First tokens at the tiny geometry: what is timed is right, and the command says what it found."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from qvpic_rag.bench.ttft import TEXT_TOKENS, Workload, build_requests, measure
from qvpic_rag.bench.ttft_figures import Spread, TtftFigures, spread
from qvpic_rag.bench.ttft_requests import Clock
from qvpic_rag.cli import app
from qvpic_rag.errors import ConfigError, ContextOverflowError

SCRIPT = Path(__file__).parents[2] / "tools" / "gpu_eval.sh"
METHODS = ["full@120", "full@72", "full@text", "pic@text/native", "qvpic"]
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


def test_the_command_writes_table_and_figures(tmp_path: Path) -> None:
    options = ["--geometry", "tiny", "--pages", "1", "--rounds", "1", "--text-tokens", "50", "--device", "cpu"]
    result = CliRunner().invoke(app, ["bench", "ttft", *options, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out" / "ttft.md").read_text(encoding="utf-8") == result.stdout
    found = json.loads((tmp_path / "out" / "ttft.json").read_text(encoding="utf-8"))
    assert list(found["methods"]) == METHODS
    assert found["settings"]["promoted"] == 1
    assert all(f"| {method} |" in result.stdout for method in METHODS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--geometry", "huge"], "geometry must be one of glm-4.1v-9b"),
        (["--dpis", "72"], "--dpis must be two whole numbers"),
        (["--geometry", "tiny", "--device", "warp"], "'warp' cannot be used"),
        (["--geometry", "tiny", "--out", "/dev/null/here"], "cannot be made"),
    ],
)
def test_wrong_usage_is_one_sentence(options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["bench", "ttft", *options])
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without")
def test_a_missing_accelerator_is_named() -> None:
    result = CliRunner().invoke(app, ["bench", "ttft", "--geometry", "tiny", "--device", "cuda"])
    assert result.exit_code == 2
    assert "Device 'cuda' cannot be used here" in result.stderr


def test_the_default_of_the_command_is_the_measured_one() -> None:
    result = CliRunner().invoke(app, ["bench", "ttft", "--help"], env={"COLUMNS": "200"})
    assert f"{TEXT_TOKENS} on the median full page" in " ".join(result.output.split())


# Stands for the command in the script's tests: notes what it was asked for, and leaves a table.
RECORDER = """#!/bin/sh
echo "$*" >> "$0.asked"
while [ $# -gt 0 ]; do
    if [ "$1" = --pages ]; then pages=$2; fi
    if [ "$1" = --out ]; then out=$2; fi
    shift
done
sleep "${TAKES:-0}"
mkdir -p "$out"
echo "table of $pages" > "$out/ttft.md"
"""


def run_script(folder: Path, **variables: str) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
    """The script's result, and the arguments of each command that it started."""
    command = folder / "qvpic"
    command.write_text(RECORDER, encoding="utf-8")
    command.chmod(0o755)
    result = subprocess.run(
        ["sh", str(SCRIPT), str(folder / "out")],
        env=os.environ | variables | {"QVPIC": str(command)},
        capture_output=True,
        text=True,
        check=False,
    )
    asked = Path(f"{command}.asked").read_text(encoding="utf-8").splitlines()
    return result, [line.split() for line in asked]


def test_the_script_measures_every_number_of_pages(tmp_path: Path) -> None:
    small = {"GEOMETRY": "tiny", "DEVICE": "cpu", "DTYPE": "float32", "ROUNDS": "1"}
    result, asked = run_script(tmp_path, PAGES="2 1", **small)
    assert result.returncode == 0, result.stderr
    assert set(result.stdout.splitlines()) == {"table of 1", "table of 2"}
    assert (tmp_path / "out" / "environment.txt").read_text(encoding="utf-8")
    assert [row[row.index("--pages") + 1] for row in asked] == ["2", "1"]
    # The command really takes these arguments.
    result = CliRunner().invoke(app, asked[1])
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "out" / "pages-1" / "ttft.json").read_text(encoding="utf-8"))
    assert (found["settings"]["geometry"], found["settings"]["dtype"]) == ("tiny", "float32")


def test_the_script_measures_the_whole_model_on_an_accelerator_by_default(tmp_path: Path) -> None:
    result, asked = run_script(tmp_path, PAGES="10")
    assert result.returncode == 0, result.stderr
    defaults = "--geometry glm-4.1v-9b --scale 1 --pages 10 --device cuda --dtype bfloat16 --rounds 10"
    assert " ".join(asked[0][:-1]) == f"bench ttft {defaults} --out"


def test_the_script_leaves_out_what_would_take_too_long(tmp_path: Path) -> None:
    result, asked = run_script(tmp_path, PAGES="1 9", TAKES="2", LIMIT="9")
    assert result.returncode == 0, result.stderr
    assert len(asked) == 1
    assert "9 pages are left out" in result.stderr


def test_the_script_ends_a_command_that_hangs(tmp_path: Path) -> None:
    result, _ = run_script(tmp_path, PAGES="1", TAKES="60", LIMIT="1")
    assert result.returncode == 124
    assert "stopped after" in result.stderr


def test_the_script_wants_one_folder() -> None:
    result = subprocess.run(["sh", str(SCRIPT)], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (2, "usage: tools/gpu_eval.sh OUT\n")
