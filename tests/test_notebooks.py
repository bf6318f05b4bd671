"""The notebooks run from top to bottom and say what their saved outputs say, times apart."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
RUN = Path(__file__).parents[1] / "tools" / "run_notebook.py"


def outputs(notebook: Path) -> list[tuple[str, list[str]]]:
    """Of each code cell: its source, and what it shows: text with times replaced, or the kind of a picture."""
    cells: list[dict[str, Any]] = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [("".join(cell["source"]), _shown(cell)) for cell in cells if cell["cell_type"] == "code"]


def _shown(cell: dict[str, Any]) -> list[str]:
    found: list[str] = []
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            if output["name"] == "stdout":
                found.append("".join(output["text"]))
        else:
            assert output["output_type"] in ("display_data", "execute_result"), output
            found.append("image/png" if "image/png" in output["data"] else "".join(output["data"]["text/plain"]))
    return [re.sub(r"\s+", " ", re.sub(r"[\d.]+ (ms|s)\b", r"# \1", each)) for each in found]


def test_there_are_notebooks() -> None:
    assert [path.name.partition("_")[0] for path in NOTEBOOKS] == ["1", "2", "3", "4"]
    assert all(path.stat().st_size < 1_000_000 for path in NOTEBOOKS)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_says_what_it_says(notebook: Path, tmp_path: Path) -> None:
    made = tmp_path / notebook.name
    # In a process of its own: Jupyter's machinery is not what warnings as errors are for.
    command = [sys.executable, str(RUN), str(notebook), str(made)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    saved = outputs(notebook)
    assert any(shown for _, shown in saved)
    for (source, was), (_, now) in zip(saved, outputs(made), strict=True):
        assert was == now, source
    assert [path.name for path in tmp_path.iterdir()] == [notebook.name]  # nothing is left beside it
