"""Where the names of points go so that they cover neither points nor each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Obstacle", "placed"]

_DOT = 0.75  # of the reach: half the side of the square that a point takes
_RINGS = (1.0, 2.0, 3.2, 4.6, 6.2, 8.0)  # how far a name may stand from its point, in reaches
_SIDES = 16  # directions that are tried


class Obstacle(NamedTuple):
    """A rectangle, pixels."""

    left: float
    bottom: float
    right: float
    top: float

    def shared(self, other: Obstacle) -> float:
        """The area that both cover."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(width, 0.0) * max(height, 0.0)

    @property
    def area(self) -> float:
        """Width times height."""
        return (self.right - self.left) * (self.top - self.bottom)


def placed(
    centres: Sequence[tuple[float, ...]], sizes: Sequence[tuple[float, float]], frame: Obstacle, reach: float
) -> list[tuple[float, float, bool]]:
    """Left and bottom edge for each name, and whether it stands so far away that a line should lead to it.

    Parameters
    ----------
    centres : Sequence[tuple[float, float]]
        The points, pixels.
    sizes : Sequence[tuple[float, float]]
        Width and height of their names.
    frame : Obstacle
        Names stay inside.
    reach : float
        Distance of a name from its point where there is room, pixels.
    """
    dots = [Obstacle(x - _DOT * reach, y - _DOT * reach, x + _DOT * reach, y + _DOT * reach) for x, y in centres]
    taken: list[Obstacle] = []
    found = {}
    # Crowded points choose first: those that stand alone find room anyway.
    near = [sum(math.dist(one, other) < 12 * reach for other in centres) for one in centres]
    for index in sorted(range(len(centres)), key=lambda each: -near[each]):
        candidates = list(_candidates(centres[index], sizes[index], reach))
        costs = []
        for place, (box, ring) in enumerate(candidates):
            covered = sum(box.shared(each) for each in (*dots, *taken))
            outside = box.area - box.shared(frame)
            costs.append((4 * covered + 4 * outside + box.area * (0.02 * ring + 0.0005 * place), place))
        box, ring = candidates[min(costs)[1]]
        taken.append(box)
        found[index] = (box.left, box.bottom, ring > 1)
    return [found[index] for index in range(len(centres))]


def _candidates(centre: tuple[float, ...], size: tuple[float, float], reach: float) -> list[tuple[Obstacle, int]]:
    boxes = []
    for ring, distance in enumerate(_RINGS):
        for side in range(_SIDES):
            angle = 2 * math.pi * side / _SIDES
            x = centre[0] + math.cos(angle) * (distance * reach + size[0] / 2)
            y = centre[1] + math.sin(angle) * (distance * reach + size[1] / 2)
            box = Obstacle(x - size[0] / 2, y - size[1] / 2, x + size[0] / 2, y + size[1] / 2)
            boxes.append((box, ring))
    return boxes
