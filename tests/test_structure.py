"""The shape of the package: imports point one way, public names are declared, importing is quick and silent."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import qvpic_rag

ROOT = Path(qvpic_rag.__file__).parent
MODULES = sorted(
    ".".join(("qvpic_rag", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for path in ROOT.rglob("*.py")
)
SHARED = {
    "clock",
    "html_page",
    "records",
    "config",
    "errors",
    "forking",
    "memory",
    "metrics",
    "packing",
    "rope",
    "models",
}
# What a part may import besides SHARED and itself. Stages import no other stage, with the few exceptions that are one
# thing in two files: a linked context is a cache, and generation continues it.
ALLOWED = {
    "errors": set(),
    "records": {"packing"},  # its type only
    "clock": set(),
    "html_page": set(),
    "config": set(),
    "forking": set(),
    "memory": set(),
    "metrics": set(),
    "packing": set(),
    "intervals": set(),
    "rope": set(),
    "models": set(),
    "compile": {"template"},
    "assemble": {"cache"},
    "generate": {"assemble", "cache", "detokenize"},
    "baselines": {"assemble", "cache", "compile", "embed", "generate", "relevance", "render", "route", "template"},
    "pipeline": {
        "assemble", "bank", "compile", "documents", "embed", "generate",
        "index", "progress", "relevance", "render", "route", "template",
    },
    "bench": {
        "assemble", "bank", "bank_cli", "baselines", "cache", "compile", "console",
        "generate", "progress", "render", "route", "template",
    },
    "demo": {"pipeline", "baselines"},
    "reader": {
        "assemble", "baselines", "compile", "console", "generate", "intervals", "render", "template",
    },
    "evaluation": {
        "bank_cli", "baselines", "console", "documents", "embed", "index", "intervals", "pipeline", "progress",
        "reader", "render",
    },
    "cli": {"bench", "evaluation", "pipeline", "demo", "trace", "bank_cli", "console", "reader"},
    "bank_cli": {"bank", "progress", "console"},
    "console": {"pipeline", "demo", "bank"},
    "": {"pipeline", "bank", "index"},
}  # fmt: skip


def _imports(path: Path) -> set[str]:
    """Second components of the package's own modules that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("qvpic_rag.")}
    return {name for name in found if (ROOT / f"{name}.py").exists() or (ROOT / name).is_dir()}


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    part = path.relative_to(ROOT).parts[0].removesuffix(".py").replace("__init__", "")
    allowed = ALLOWED.get(part, set()) | {part}
    if part not in ("errors", "records", "config"):
        allowed |= SHARED
    elif part == "config":
        allowed |= {"errors"}
    assert _imports(path) <= allowed


@pytest.mark.parametrize("name", MODULES)
def test_public_names_are_declared_and_documented(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    for public in module.__all__:
        value = getattr(module, public)
        if callable(value) and getattr(value, "__module__", "").startswith("qvpic_rag"):
            assert value.__doc__, f"{name}.{public} has no docstring"


@pytest.mark.parametrize("name", qvpic_rag.__all__)
def test_every_name_of_the_package_is_there(name: str) -> None:
    assert getattr(qvpic_rag, name) is not None
    assert name in dir(qvpic_rag)


def test_importing_is_quick_and_silent() -> None:
    """Heavy libraries are imported when they are first used, so ``import qvpic_rag`` costs milliseconds."""
    code = (
        "import sys, qvpic_rag, qvpic_rag.cli\n"
        "heavy = {'torch', 'transformers', 'faiss', 'FlagEmbedding', 'numpy', 'PIL'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_files_stay_small() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in ROOT.rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 420
    }
    assert not long
