"""A command run in this process through its entry point, and banks of the bundled documents to run it on."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from qvpic_rag.cli import main


@dataclass(frozen=True)
class Result:
    """What a command left: exit code, standard output, standard error."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as JSON, of a command that succeeded without a word on stderr."""
        assert (self.code, self.err) == (0, "")
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one sentence of a command that failed."""
        assert self.code in (1, 2)
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("Error: "), self.err
        return lines[0].removeprefix("Error: ")


Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """``run("ask", "...", "--bank", folder, stdin=b"")``"""
    for name in ("HF_HUB_VERBOSITY", "TRANSFORMERS_VERBOSITY"):
        monkeypatch.setenv(name, "error")  # what commands set is undone after the test

    def run(*arguments: object, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "argv", ["qvpic", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as exit_:
            main()
        captured = capsys.readouterr()
        return Result(int(exit_.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def bank(demo_bank: Path, tmp_path: Path) -> Path:
    """A copy of that bank for one test."""
    return Path(shutil.copytree(demo_bank, tmp_path / "bank"))


@pytest.fixture
def note(tmp_path: Path) -> Path:
    """A document."""
    path = tmp_path / "note.txt"
    path.write_text("The desk room of Omar Reyes is B214.", encoding="utf-8")
    return path
