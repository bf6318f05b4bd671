"""The report about a run, or about the runs of several models: ``REPORT.md``, ``report.html`` and their plots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from qvpic_rag.errors import QVPICError
from qvpic_rag.evaluation import plots
from qvpic_rag.evaluation.document import Picture, Section, Table, as_html, as_markdown
from qvpic_rag.evaluation.naming import defaults, media
from qvpic_rag.evaluation.rundir import runs_below
from qvpic_rag.evaluation.sections import run_sections
from qvpic_rag.evaluation.tables import Run, method_figures
from qvpic_rag.evaluation.wording import ratio, with_interval

__all__ = ["write_report"]

_PLOTS = "plots"


def write_report(path: Path, out: Path | None = None) -> Path:
    """Write a report.

    Parameters
    ----------
    path : Path
        A run's folder, or one with the folders of several models' runs in it. It may be read while a run goes on.
    out : Path, optional
        Folder for ``REPORT.md``, ``report.html`` (which needs no other file) and ``plots/``; by default ``path``.

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
        for section in sections:
            for part in section.parts:
                if isinstance(part, Picture):
                    (out / _PLOTS / part.name).write_bytes(part.data)
        report.write_text(as_markdown(title, sections, _PLOTS), encoding="utf-8", errors="replace")
        (out / "report.html").write_text(as_html(title, sections), encoding="utf-8", errors="replace")
    except OSError as error:
        raise QVPICError(f"The report cannot be written ({error}); name another --out.") from error
    return report


def _sections(runs: Sequence[Run]) -> Iterator[Section]:
    if len(runs) == 1:
        yield from run_sections(runs[0], 1)
        return
    yield from _across(runs)
    for number, run in enumerate(runs, 1):
        yield Section(_model(run), [])
        yield from run_sections(run, number, level=3)


def _model(run: Run) -> str:
    return str(run.settings["model"].get("name", "model"))


def _across(runs: Sequence[Run]) -> Iterator[Section]:
    """QV-PIC beside page caches and full prefill, model by model."""
    panels, rows = [], []
    for run in runs:
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
        panels.append((_model(run), bars))
        for row in held:
            cells = [with_interval(row.f1), with_interval(row.difference, "+"), ratio(row.ratio)]
            rows.append([_model(run), row.method, *cells])
    if len(panels) > 1:
        drawn = Picture("models.png", "F1 of QV-PIC, page caches and full prefill for each model", plots.bars(panels))
        head = ["model", "method", "F1 [95%]", "F1 - full prefill [95%]", "TTFT / full prefill"]
        note = "Differences and ratios are against the model's full prefill at its highest resolution."
        yield Section("Across models", [note, drawn, Table(head, rows, texts=2)])
