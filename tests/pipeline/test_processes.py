"""Real ingests in processes of their own: killed at random moments, and at work beside each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def figures(*arguments: object) -> dict[str, int]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-m", "tests.pipeline.ingesting", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, int] = json.loads(done.stdout)
    return found


def check_kills(folder: Path, kills: int) -> None:
    found = figures("kill", folder, kills)
    assert found["kills"] >= kills
    assert found["partly"] >= kills // 5, "kills must come in the middle of the work"


def test_a_killed_ingest_loses_nothing_acknowledged(tmp_path: Path) -> None:
    check_kills(tmp_path, 8)


@pytest.mark.slow
def test_an_ingest_killed_two_hundred_times(tmp_path: Path) -> None:
    check_kills(tmp_path, 200)


def test_four_ingests_and_two_readers_share_a_bank(tmp_path: Path) -> None:
    found = figures("beside", tmp_path, 4, 2)
    assert found["pages"] == 12
    assert found["blocks"] == 24
    assert found["compiled"] == 24 - 4, "a page that one compiles is not compiled by the others"
