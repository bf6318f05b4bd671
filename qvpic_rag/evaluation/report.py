"""The report about a run, or about the runs of several models: ``REPORT.md``, ``report.html`` and their plots."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from qvpic_rag.errors import QVPICError
from qvpic_rag.evaluation import plots
from qvpic_rag.evaluation.document import Picture, Section, Table, as_html, as_markdown
from qvpic_rag.evaluation.naming import defaults, media
from qvpic_rag.evaluation.rundir import runs_below
from qvpic_rag.evaluation.sections import run_sections
from qvpic_rag.evaluation.tables import Run, method_figures
from qvpic_rag.evaluation.wording import ratio, said, with_interval

__all__ = ["write_report"]

_PLOTS = "plots"
_PLOT = re.compile(r"models\.png|[1-9]\d*-(conditioning|resolutions|times|ablation-\w+-\w+|alpha-\w+|pairs)\.png")
"""What plots are called."""
_WIDE = 60  # characters of a setting in a table of many


def write_report(path: Path, out: Path | None = None) -> Path:
    """Write a report.

    Parameters
    ----------
    path : Path
        A run's folder, or one with the folders of several models' runs in it. It may be read while a run goes on.
    out : Path, optional
        Folder for ``REPORT.md``, ``report.html`` (which needs no other file) and ``plots/``; by default ``path``. Plots
        of an earlier report that are not drawn again are removed.

    Returns
    -------
    Path
        Of ``REPORT.md``.

    Raises
    ------
    InputError
        There is no run, or a line of its files is damaged.
    MissingDependencyError
        matplotlib is not installed; nothing is written.
    """
    plots.check_matplotlib()
    runs = [Run.load(folder) for folder in runs_below(path)]
    sections = list(_sections(runs))
    title = f"Evaluation: {', '.join(dict.fromkeys(str(run.settings['suite'].get('name', 'suite')) for run in runs))}"
    out = path if out is None else out
    report = out / "REPORT.md"
    try:
        (out / _PLOTS).mkdir(parents=True, exist_ok=True)
        drawn = set()
        for section in sections:
            for part in section.parts:
                if isinstance(part, Picture):
                    (out / _PLOTS / part.name).write_bytes(part.data)
                    drawn.add(part.name)
        report.write_text(as_markdown(title, sections, _PLOTS), encoding="utf-8", errors="replace")
        (out / "report.html").write_text(as_html(title, sections), encoding="utf-8", errors="replace")
        for path in (out / _PLOTS).iterdir():
            ours = _PLOT.fullmatch(path.name) is not None and path.is_file() and not path.is_symlink()
            if ours and path.name not in drawn:
                path.unlink()  # of an earlier report
    except OSError as error:
        raise QVPICError(f"The report cannot be written ({error}); name another --out.") from error
    return report


def _sections(runs: Sequence[Run]) -> Iterator[Section]:
    if len(runs) == 1:
        yield from run_sections(runs[0], 1)
        return
    yield from _across(runs)
    for number, (label, run) in enumerate(zip(_labels(runs), runs, strict=True), 1):
        yield Section(label, [])
        yield from run_sections(run, number, level=3)


def _labels(runs: Sequence[Run]) -> list[str]:
    """What tells the runs apart: its model, its suite where there are several, and a number where that is one."""
    suites = [str(run.settings["suite"].get("name", "suite")) for run in runs]
    names = [str(run.settings["model"].get("name", "model")) for run in runs]
    if len(set(suites)) > 1:
        names = [f"{name} ({suite})" for name, suite in zip(names, suites, strict=True)]
    return [f"{name}, run {number}" if names.count(name) > 1 else name for number, name in enumerate(names, 1)]


def _across(runs: Sequence[Run]) -> Iterator[Section]:
    """QV-PIC beside page caches and full prefill, model by model."""
    panels, rows, compared = [], [], []
    for label, run in zip(_labels(runs), runs, strict=True):
        figures = {row.method: row for row in method_figures(run)}
        qvpic = next(iter(defaults(run.methods)), None)
        names = [f"full@{medium}" for medium in media(run.methods, "full")]
        names += [
            each.name
            for medium in media(run.methods, "pic")
            for each in run.methods
            if (each.family, each.medium, each.conditioning) == ("pic", medium, "native")
        ]
        names += [qvpic.name] if qvpic is not None else []
        held = [figures[name] for name in names if name in figures and figures[name].f1 is not None]
        bars = [plots.Bar(row.method, row.f1, row.method.partition("@")[0]) for row in held if row.f1 is not None]
        if qvpic is None or len(bars) < 2:
            continue
        panels.append((label, bars))
        compared.append((label, run))
        for row in held:
            cells = [with_interval(row.f1), with_interval(row.difference, "+"), ratio(row.ratio)]
            rows.append([label, row.method, *cells])
    if len(panels) > 1:
        drawn = Picture("models.png", "F1 of QV-PIC, page caches and full prefill for each model", plots.bars(panels))
        head = ["model", "method", "F1 [95%]", "F1 - full prefill [95%]", "TTFT / full prefill"]
        note = "Differences and ratios are against the model's full prefill at its highest resolution."
        yield Section("Across models", [note, *_differing(compared), drawn, Table(head, rows, texts=2)])


def _differing(runs: Sequence[tuple[str, Run]]) -> Iterator[str | Table]:
    """In what the runs differ besides the model."""
    settings = []
    for _, run in runs:
        held: dict[str, Any] = {"questions asked": len(run.examples)}
        for part in ("suite", "model", "environment"):
            values = run.settings.get(part, {})
            held |= {
                f"{part} {name}": value for name, value in values.items() if name not in ("fingerprint", "profile")
            }
        held |= {name: run.settings.get(name) for name in ("embedder", "seed", "max_new_tokens")}
        profile = run.settings["model"].get("profile")
        settings.append({**held, "model profile": profile, "model name": None})
    names = list(dict.fromkeys(name for held in settings for name in held))
    differing = [name for name in names if any(held.get(name) != settings[0].get(name) for held in settings)]
    if not differing:
        return
    asked = [name for name in differing if name.startswith("suite ") or name in ("questions asked", "seed")]
    yield "The runs differ in more than the model, as the table says." + (
        " They did not ask the same questions in the same way, so F1 of one run cannot be held against another's."
        if asked
        else ""
    )
    rows = [[name, *(_short(held.get(name)) for held in settings)] for name in differing]
    yield Table(["setting", *(label for label, _ in runs)], rows, texts=1 + len(runs))


def _short(value: Any) -> str:
    text = said(value)
    return text if len(text) <= _WIDE else f"{text[: _WIDE - 3]}..."
