"""Full pages of text that looks like English, for measurements in which only their size matters."""

from __future__ import annotations

import random
from dataclasses import replace

from qvpic_rag.config import RenderProfile
from qvpic_rag.records import Page
from qvpic_rag.render import Renderer

__all__ = ["full_pages", "glyph_renderer"]

_WORDS = """
the of and to in a is that for it was on are as with they at be this from have or by one had not but what all were
when we there can an your which their said if do will each about how up out them then she many some so these would
other into has more her two like him see time could no make than first been its who now people my made over did down
only way find use may water long little very after words called just where most know river mountain village harbour
letter winter question government population university northern century company building family record
"""
_CHARACTERS = 13_000  # of a page, more than any holds: a page of 81 lines has about 9,800


def full_pages(count: int, renderer: Renderer) -> list[Page]:
    """``count`` pages whose lines are all full, the same in every run."""
    chance, vocabulary = random.Random(0), _WORDS.split()
    sentences, length = [], 0
    while length < count * _CHARACTERS:
        words = chance.choices(vocabulary, k=chance.randint(6, 22))
        sentences.append(" ".join(words).capitalize() + ".")
        length += len(sentences[-1]) + 1
    return renderer.pages(" ".join(sentences), "bench")[:count]


def glyph_renderer() -> Renderer:
    """The renderer of the ``glyph`` profile, with the font that every machine has."""
    return Renderer(replace(RenderProfile.load("glyph"), font="bundled"))
