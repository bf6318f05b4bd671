"""The README's Python prints what the README says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def test_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    text = README.read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for code, printed in re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL):
        exec(code, names)
        assert capsys.readouterr().out == printed
    for name in ("store", "llm"):
        names[name].close()  # type: ignore[attr-defined]
