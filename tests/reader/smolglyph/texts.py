"""English that no two paragraphs of are alike."""

from __future__ import annotations

__all__ = ["english"]


def english(start: int, count: int) -> list[str]:
    """``count`` different paragraphs of several sentences."""
    return [
        f"The report of day {number} says that it was cold in town {number * 7}. There were {number} people of the "
        f"village {number * 3} who came to hall {number * 5}. They wanted to see what the "
        f"{number * 11} others had to say about house {number * 13}, and whether the keys of room {number * 17} were "
        "found. Nobody knew of it in the end."
        for number in range(start, start + count)
    ]
