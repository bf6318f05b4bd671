"""``tools/gpu_eval.sh``: which measurements it starts, and what it does about time."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from typer.testing import CliRunner

from qvpic_rag.cli import app

SCRIPT = Path(__file__).parents[1] / "tools" / "gpu_eval.sh"
# Stands for the command: notes what it was asked for, and leaves a table.
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


def test_it_measures_every_number_of_pages(tmp_path: Path) -> None:
    small = {"GEOMETRY": "tiny", "DEVICE": "cpu", "DTYPE": "float32", "ROUNDS": "1"}
    result, asked = run_script(tmp_path, PAGES="2 1", **small)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split("\n\n") == ["table of 2", "table of 1", ""]
    assert (tmp_path / "out" / "ttft.md").read_text(encoding="utf-8") == result.stdout
    assert (tmp_path / "out" / "environment.txt").read_text(encoding="utf-8")
    assert [row[row.index("--pages") + 1] for row in asked] == ["2", "1"]
    # The command really takes these arguments.
    found = CliRunner().invoke(app, asked[1])
    assert found.exit_code == 0, found.output
    settings = json.loads((tmp_path / "out" / "pages-1" / "ttft.json").read_text(encoding="utf-8"))["settings"]
    assert (settings["geometry"], settings["dtype"], settings["pages"]) == ("tiny", "float32", 1)


def test_it_measures_the_whole_model_on_an_accelerator_by_default(tmp_path: Path) -> None:
    result, asked = run_script(tmp_path)
    assert result.returncode == 0, result.stderr
    assert [row[row.index("--pages") + 1] for row in asked] == ["10", "4", "20"]
    defaults = "--geometry glm-4.1v-9b --scale 1 --pages 10 --device cuda --dtype bfloat16 --rounds 10"
    assert " ".join(asked[0][:-1]) == f"bench ttft {defaults} --out"


def test_it_leaves_out_what_would_take_too_long(tmp_path: Path) -> None:
    result, asked = run_script(tmp_path, PAGES="1 9", TAKES="2", LIMIT="9")
    assert result.returncode == 0, result.stderr
    assert len(asked) == 1
    assert "9 pages are left out" in result.stderr


def test_it_ends_a_command_that_hangs(tmp_path: Path) -> None:
    result, _ = run_script(tmp_path, PAGES="1", TAKES="60", LIMIT="1")
    assert result.returncode == 124
    assert "1 pages: stopped after" in result.stderr


def test_it_wants_one_folder() -> None:
    result = subprocess.run(["sh", str(SCRIPT)], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (2, "usage: tools/gpu_eval.sh OUT\n")
