"""Plots of a report as PNG files. Needs matplotlib, the extra ``eval``; draws without pyplot and without a display.

Colours are Okabe and Ito's, which people see apart whatever their colour vision; every series is labelled where it is
drawn. Error bars are the 95% intervals.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qvpic_rag.errors import MissingDependencyError
from qvpic_rag.evaluation.placing import Obstacle, placed
from qvpic_rag.evaluation.tables import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLORS", "Bar", "Point", "bars", "check_matplotlib", "heat_map", "scatter"]

COLORS = {
    "full": "#555555",
    "pic": "#0072B2",
    "qvpic": "#D55E00",
    "epic": "#009E73",
    "top": "#CC79A7",
    "prefix": "#56B4E9",
    "other": "#E69F00",
}
"""By family of methods."""

_SOFT = "#6b7280"
_GRID = "#e5e7eb"
_LONGEST = 34  # characters of a label
_DPI = 160


@dataclass(frozen=True)
class Bar:
    """One bar: what stands below it, how high it is, which family's colour it has."""

    label: str
    value: Estimate
    family: str
    strong: bool = True


@dataclass(frozen=True)
class Point:
    """One point of a plot of F1 against time; points of one ``line`` are joined in their order."""

    label: str
    x: Estimate
    y: Estimate
    family: str
    line: str = ""


def check_matplotlib() -> None:
    """Say so before anything is written where plots cannot be drawn.

    Raises
    ------
    MissingDependencyError
        matplotlib is not installed.
    """
    try:
        importlib.import_module("matplotlib.backends.backend_agg")
    except ImportError as error:
        raise MissingDependencyError("Plots need the package matplotlib: pip install 'qvpic-rag[eval]'.") from error


def bars(
    panels: Sequence[tuple[str, Sequence[Bar]]],
    ylabel: str = "F1",
    lines: Sequence[tuple[str, Estimate] | None] = (),
) -> bytes:
    """Bars with their values, a panel for each title; a dashed line across a panel where ``lines`` has one for it."""
    most = max(len(held) for _, held in panels)
    longest = max(len(line) for _, held in panels for bar in held for line in bar.label.split("\n"))
    wide = 1.9 + most * min(max(0.8, 0.095 * longest), 1.7)
    columns = min(len(panels), 3) if wide < 4.5 else 1 if len(panels) <= 3 else 2
    rows = -(-len(panels) // columns)
    figure = _figure(max(wide, 5.0 if columns == 1 else 3.6) * columns, 3.0 * rows + 0.3)
    tops = [bar.value.mean + bar.value.spread[1] for _, held in panels for bar in held]
    tops += [line[1].mean for line in lines if line is not None]
    top = max(*tops, 1e-9) * 1.2
    for number, (title, held) in enumerate(panels):
        axes = figure.add_subplot(rows, columns, number + 1)
        _bars(axes, held)
        line = lines[number] if number < len(lines) else None
        if line is not None:
            axes.axhline(line[1].mean, color=COLORS["full"], linestyle=(0, (5, 3)), linewidth=1.3, zorder=1)
            axes.annotate(
                f"{_plain(line[0])}\n{_score(line[1].mean)}", (1, line[1].mean), xycoords=("axes fraction", "data"),
                xytext=(4, 0), textcoords="offset points", va="center", fontsize=8.5, color=COLORS["full"],
            )  # fmt: skip
        axes.set_ylim(0, top)
        axes.set_ylabel(ylabel)
        axes.set_title(_plain(title), loc="left", fontsize=10.5, fontweight="bold")
    return _png(figure)


def _bars(axes: Axes, held: Sequence[Bar]) -> None:
    places = range(len(held))
    for place, bar in zip(places, held, strict=True):
        axes.bar(
            place, bar.value.mean, width=0.68, color=COLORS[bar.family], alpha=1.0 if bar.strong else 0.45, zorder=2
        )
        below, above = bar.value.spread
        if below or above:
            axes.errorbar(
                place, bar.value.mean, yerr=[[below], [above]], color="#111111", capsize=3, linewidth=1.1, zorder=3,
                path_effects=_halo(1.2),
            )  # fmt: skip
        axes.annotate(
            _score(bar.value.mean), (place, bar.value.mean + above), xytext=(0, 3), textcoords="offset points",
            ha="center", va="bottom", fontsize=8.5, zorder=6,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85},
        )  # fmt: skip
    labels = [_plain(bar.label) for bar in held]
    turned = max(len(line) for label in labels for line in label.split("\n")) > 18
    axes.set_xticks(list(places), labels, rotation=30 if turned else 0, ha="right" if turned else "center", fontsize=9)
    axes.set_xlim(-0.6, len(held) - 0.4)
    axes.tick_params(axis="x", length=0)
    _tidy(axes, "y")


def scatter(points: Sequence[Point], xlabel: str = "time to first token (ms)", ylabel: str = "F1") -> bytes:
    """Points with their names beside them and their intervals as thin bars; lines join those that belong together."""
    figure = _figure(8.6, 5.4 + 0.07 * max(len(points) - 12, 0))
    axes = figure.add_subplot()
    for line in dict.fromkeys(point.line for point in points if point.line):
        held = [point for point in points if point.line == line]
        xs, ys = [point.x.mean for point in held], [point.y.mean for point in held]
        axes.plot(xs, ys, color=COLORS[held[0].family], linewidth=1.6, alpha=0.6, zorder=2)
    for point in points:
        color = COLORS[point.family]
        axes.errorbar(
            point.x.mean, point.y.mean, xerr=[[side] for side in point.x.spread],
            yerr=[[side] for side in point.y.spread], color=color, alpha=0.35, linewidth=1, zorder=7,
        )  # fmt: skip
        star = point.family == "qvpic"
        axes.scatter(
            point.x.mean, point.y.mean, s=130 if star else 44, marker="*" if star else "o", color=color,
            edgecolors="white", linewidths=0.7, zorder=8,
        )  # fmt: skip
    xs = [point.x.mean for point in points]
    if min(xs) > 0 and max(xs) / min(xs) > 6:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:.0e}"[0] in "25" else "")
        axes.tick_params(axis="x", which="minor", labelsize=8, colors=_SOFT)
        xlabel += ", logarithmic"
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.margins(0.12, 0.12)
    _tidy(axes, "both")
    _name(figure, axes, points)
    return _png(figure)


def _name(figure: Figure, axes: Axes, points: Sequence[Point]) -> None:
    """Write each point's name where it covers neither points nor other names."""
    from matplotlib.lines import Line2D

    figure.canvas.draw()
    figure.set_layout_engine("none")  # from here on what was measured in pixels must stay
    frame = axes.get_window_extent()
    scale = figure.dpi / 72
    centres = [tuple(axes.transData.transform((point.x.mean, point.y.mean))) for point in points]
    halo = _halo(2.2)
    texts = [
        axes.text(0, 0, _plain(point.label), fontsize=8.5, color=COLORS[point.family], path_effects=halo)
        for point in points
    ]
    renderer: Any = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    sizes = [(box.width, box.height) for box in (text.get_window_extent(renderer) for text in texts)]
    found = placed(centres, sizes, Obstacle(frame.x0, frame.y0, frame.x1, frame.y1), reach=7 * scale)
    for text, centre, point, size, (left, bottom, far) in zip(texts, centres, points, sizes, found, strict=True):
        text.set_transform(None)  # pixels
        text.set_position((left, bottom))
        text.set_verticalalignment("bottom")
        text.set_zorder(6)
        if far:
            end = (min(max(centre[0], left), left + size[0]), min(max(centre[1], bottom), bottom + size[1]))
            line = Line2D((centre[0], end[0]), (centre[1], end[1]), color=COLORS[point.family], linewidth=0.7, zorder=3)
            line.set_transform(None)
            axes.add_artist(line)


def heat_map(
    panels: Sequence[tuple[str, Sequence[str], Sequence[str], Sequence[Sequence[float | None]]]],
    xlabel: str,
    ylabel: str,
) -> bytes:
    """Grids of values, one for each ``(title, columns, rows, values)``, on one colour scale; None is left blank."""
    known = [value for *_, grid in panels for row in grid for value in row if value is not None]
    low, high = min(known), max(known)
    columns = 2 if len(panels) == 4 else min(len(panels), 3)
    rows = -(-len(panels) // columns)
    wide = max(len(names) for _, names, _, _ in panels)
    tall = max(len(names) for _, _, names, _ in panels)
    figure = _figure(max(3.4, 1.3 + 0.72 * wide) * columns, max(2.6, 1.3 + 0.5 * tall) * rows)
    for number, (title, across, down, grid) in enumerate(panels):
        axes = figure.add_subplot(rows, columns, number + 1)
        numbers = [[float("nan") if value is None else value for value in row] for row in grid]
        axes.imshow(numbers, cmap="cividis", vmin=low, vmax=high if high > low else low + 1, aspect="auto")
        for y, row in enumerate(grid):
            for x, value in enumerate(row):
                if value is not None:
                    bright = high > low and (value - low) / (high - low) > 0.45
                    axes.text(
                        x, y, _score(value), ha="center", va="center", fontsize=8.5,
                        color="#111111" if bright else "white",
                    )  # fmt: skip
        axes.set_xticks(range(len(across)), [_plain(each) for each in across])
        axes.set_yticks(range(len(down)), [_plain(each) for each in down])
        axes.tick_params(length=0, labelsize=9)
        axes.set_xticks([x - 0.5 for x in range(1, len(across))], minor=True)
        axes.set_yticks([y - 0.5 for y in range(1, len(down))], minor=True)
        axes.tick_params(which="minor", length=0)
        axes.grid(which="minor", color="white", linewidth=2)
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        axes.set_title(_plain(title), loc="left", fontsize=10.5, fontweight="bold")
    return _png(figure)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=_DPI, facecolor="white")
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.1)
    FigureCanvasAgg(figure)
    return figure


def _halo(width: float) -> list[Any]:
    """Keeps what is drawn apart from what lies below it."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=width + 1.1, foreground="white", alpha=0.85)]


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None})
    return buffer.getvalue()


def _tidy(axes: Axes, grid: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_SOFT)
    axes.grid(axis=grid, color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def _score(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def _plain(text: str) -> str:
    """What matplotlib's own font draws, never taken for mathematics, on lines that are not too long."""
    known = "".join(each if each == "\n" or (each.isprintable() and ord(each) < 0x250) else "?" for each in text)
    cut = (line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…" for line in known.split("\n"))
    return "\n".join(cut).replace("$", r"\$")
