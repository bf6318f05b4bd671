"""The distribution: its README does what it says, its version is the engine's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import qvpic_rag

import llama_index.llms.qvpic as package

ROOT = Path(__file__).parents[1]


def test_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(
        r"```python\n(.*?)```\n\n```text\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL
    )
    assert snippets
    names: dict[str, object] = {}
    for code, printed in snippets:
        exec(code, names)
        assert capsys.readouterr().out == printed


def test_version_and_types() -> None:
    assert package.__version__ == qvpic_rag.__version__
    assert f"qvpic-rag=={package.__version__}" in (ROOT / "pyproject.toml").read_text("utf-8")
    assert (ROOT / "llama_index/llms/qvpic/py.typed").exists()
    assert all(getattr(package, name).__doc__ for name in package.__all__)
