"""The README's snippets run, in order, in one folder; what it says they print is what they print.

Hub models are stood in for by tiny random ones of the same architecture, and BGE-M3 by the demo's embedder; everything
else is as written.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import qvpic_rag
from qvpic_rag.pipeline import facade
from tests.documents.reading import pdf

ROOT = Path(qvpic_rag.__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", README, re.S)
STAND_INS = {
    "zai-org/Glyph": "glm4v",
    "zai-org/GLM-4.1V-9B-Thinking": "glm4v",
    "Qwen/Qwen2.5-VL-7B-Instruct": "qwen2_5_vl",
}


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_folder: Callable[..., Path]) -> Path:
    """A folder with the documents that the snippets name, and no hub."""
    (tmp_path / "handbook").mkdir()
    (tmp_path / "handbook" / "travel.md").write_text("Travel above 2,000 euros is approved by the board.")
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "spring.pdf").write_bytes(pdf("Spring was mild."))
    monkeypatch.chdir(tmp_path)
    load, embed = facade.load_model, facade.load_embedder

    def load_model(name: str, **options: Any) -> Any:
        stand_in = STAND_INS.get(name)
        if stand_in is None:
            return load(name, **options)
        # Glyph's pages have thousands of visual tokens, more than the tiny model's usual context.
        return load(str(tiny_folder(stand_in, text={"max_position_embeddings": 131072})), **options)

    monkeypatch.setattr(facade, "load_model", load_model)
    monkeypatch.setattr(facade, "load_embedder", lambda name, **options: embed("demo", **options))
    return tmp_path


def test_snippets_run_and_print_what_the_readme_says(workplace: Path) -> None:
    assert len(SNIPPETS) >= 3
    names: dict[str, Any] = {}  # a reader goes on in one session
    for code, expected in SNIPPETS:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "README.md", "exec"), names)
        if expected:
            assert printed.getvalue() == expected


def test_every_command_of_the_readme_is_one() -> None:
    from typer.testing import CliRunner

    from qvpic_rag.cli import app

    for command in re.findall(r"^qvpic ([a-z]+(?: stats)?)", README, re.M):
        assert CliRunner().invoke(app, [*command.split(), "--help"]).exit_code == 0


def test_every_file_that_the_documents_link_to_exists() -> None:
    for document in ROOT.glob("*.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text(encoding="utf-8")):
            assert (ROOT / target).exists(), f"{document.name} links to {target}"


def test_the_tree_in_the_architecture_guide_is_the_tree() -> None:
    guide = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for path in (ROOT / "qvpic_rag").rglob("*.py"):
        if path.name != "__init__.py":
            name = path.name if path.parent.name in ("qvpic_rag", "models", "render", "pipeline") else path.parent.name
            assert name in guide, f"ARCHITECTURE.md does not name {path}"
