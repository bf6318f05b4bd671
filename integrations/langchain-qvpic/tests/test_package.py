"""The shape of the distribution."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import qvpic_rag

import langchain_qvpic


def test_public_names() -> None:
    assert sorted(langchain_qvpic.__all__) == langchain_qvpic.__all__
    for name in langchain_qvpic.__all__:
        assert getattr(langchain_qvpic, name).__doc__


def test_version_is_the_engines() -> None:
    assert langchain_qvpic.__version__ == qvpic_rag.__version__


def test_typed() -> None:
    assert (Path(langchain_qvpic.__file__).parent / "py.typed").exists()


def test_importing_is_silent() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", "import langchain_qvpic"], capture_output=True, text=True, check=True
    )
    assert (run.stdout, run.stderr) == ("", "")
