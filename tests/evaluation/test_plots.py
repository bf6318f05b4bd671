"""Plots: files that open and show something, and names that cover nothing."""

from __future__ import annotations

import io
import itertools
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from qvpic_rag.errors import MissingDependencyError
from qvpic_rag.evaluation import plots
from qvpic_rag.evaluation.placing import Obstacle, placed
from qvpic_rag.evaluation.plots import Bar, Point
from qvpic_rag.evaluation.tables import Estimate

ODD = ["$x_1^2$", "\\frac{", "名前", "a" * 200, "line\nbreak", "\x00\x07", "", "100%"]


def shown(data: bytes) -> Image.Image:
    """The picture, which is not blank."""
    with Image.open(io.BytesIO(data)) as picture:
        assert picture.format == "PNG"
        found = picture.convert("RGB")
    colors = found.getcolors(1 << 24)
    assert colors is not None
    assert len(colors) > 20
    return found


def test_bars() -> None:
    held = [Bar(name, Estimate(0.1 * place, 0.05 * place, 0.2 * place), "pic") for place, name in enumerate(ODD)]
    line = ("full@72", Estimate(0.9, None, None))
    assert shown(plots.bars([("one $", held)], lines=[line])).width > 500
    many = [(f"panel {number}", held[: 1 + number]) for number in range(5)]
    assert shown(plots.bars(many, lines=[None, line])).height > 1000


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_bars_without_variance(value: float) -> None:
    shown(
        plots.bars([("", [Bar("a", Estimate(value, value, value), "qvpic"), Bar("b", Estimate(0, None, None), "top")])])
    )


def test_scatter() -> None:
    points = [
        Point(
            name, Estimate(10.0 * (1 + place), 5.0, 120.0), Estimate(0.5, 0.4, 0.6), "qvpic" if place else "full", "x"
        )
        for place, name in enumerate(ODD)
    ]
    shown(plots.scatter(points))
    shown(plots.scatter(points[:1]))
    alike = [Point("m", Estimate(3.0, None, None), Estimate(0.5, None, None), "pic")] * 30
    shown(plots.scatter(alike))
    shown(plots.scatter([Point("m", Estimate(0.0, None, None), Estimate(0.0, None, None), "pic")]))


def test_heat_map() -> None:
    grid = [[0.1, None], [0.5, 0.9]]
    shown(plots.heat_map([("1 page", ["1", "2"], ["0.5", "1"], grid)] * 5, "budget", "alpha"))
    shown(plots.heat_map([("$", ["1"], ["0.5"], [[0.5]])], "budget", "alpha"))


def test_matplotlib_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    plots.check_matplotlib()
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'qvpic-rag\[eval\]'"):
        plots.check_matplotlib()


def test_plots_leave_no_global_state() -> None:
    plots.bars([("", [Bar("a", Estimate(0.5, None, None), "pic")])])
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


FRAME = Obstacle(0, 0, 1000, 800)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(0, 800)), min_size=1, max_size=12))
def test_names_stay_inside(centres: list[tuple[float, float]]) -> None:
    sizes = [(100.0, 12.0)] * len(centres)
    found = placed(centres, sizes, FRAME, reach=10)
    assert len(found) == len(centres)
    if len(centres) == 1:
        [(left, bottom, far)] = found
        assert not far
        assert 0 <= left <= 900
        assert 0 <= bottom <= 788


def test_names_cover_nothing_where_there_is_room() -> None:
    centres = [(300.0 + 9 * n, 400.0 + 12 * (n % 3)) for n in range(8)]
    found = placed(centres, [(120.0, 14.0)] * 8, FRAME, reach=10)
    boxes = [Obstacle(left, bottom, left + 120, bottom + 14) for left, bottom, _ in found]
    assert all(one.shared(other) == 0 for one, other in itertools.combinations(boxes, 2))
    dots = [Obstacle(x - 5, y - 5, x + 5, y + 5) for x, y in centres]
    assert all(box.shared(dot) == 0 for box in boxes for dot in dots)
    assert any(far for *_, far in found)
