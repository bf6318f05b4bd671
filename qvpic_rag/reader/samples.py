"""Training samples as tensors: pages, then many questions that do not see each other.

A context is read once for all of its questions: each question attends to the pages and to itself, and starts at the
position after the last page, so the packed batch computes exactly what each question alone would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from qvpic_rag.reader.operations import PADDING, PAGE, PREFIX, QUESTION

__all__ = ["COPIED", "NO_ANSWER", "Asked", "Batch", "Context", "pack"]

NO_ANSWER, COPIED = -1, -2

Grid = tuple[int, int]  # rows and columns of visual tokens


@dataclass(frozen=True)
class Asked:
    """One question behind a context.

    Attributes
    ----------
    prompt, answer : list[int]
        Token ids; the answer ends with the end token.
    weight : float
        Of each answer token in the loss.
    copied : bool
        A page written down, not an answer.
    prompt_weight : float
        Of each prompt token in the loss: guessing a name from its first letters means finding it on the pages.
    """

    prompt: list[int]
    answer: list[int]
    weight: float = 1.0
    copied: bool = False
    prompt_weight: float = 0.0


@dataclass(frozen=True)
class Context:
    """Pages in their order, and questions.

    Attributes
    ----------
    prefix, open, close : Sequence[int]
        Token ids before the pages and around each picture.
    pages : list[int]
        Indices of the pages' pictures.
    grids : list[tuple[int, int]]
        Their rows and columns of visual tokens.
    isolated : bool
        Whether each page sees only the prefix and itself: as when it is compiled alone, but for its distance to the
        prefix.
    """

    prefix: Sequence[int]
    open: Sequence[int]
    close: Sequence[int]
    pages: list[int]
    grids: list[Grid]
    asked: list[Asked]
    isolated: bool = False

    @property
    def length(self) -> int:
        """Tokens of the context and all its questions."""
        page = len(self.open) + len(self.close)
        pictures = sum(rows * columns + page for rows, columns in self.grids)
        return len(self.prefix) + pictures + sum(len(each.prompt) + len(each.answer) - 1 for each in self.asked)


@dataclass(frozen=True, eq=False)
class Batch:
    """Packed contexts.

    Attributes
    ----------
    token_ids : Tensor
        int64 ``(batch, tokens)``; visual tokens hold 0.
    positions : Tensor
        int64 ``(batch, 3, tokens)``.
    groups : Tensor
        int32 ``(batch, tokens, 2)``, see :func:`qvpic_rag.reader.operations.visible`.
    visual : Tensor
        int64 ``(visual, 2)``: flat index into ``batch * tokens``, and index into all visual embeddings of
        the batch's pictures, in the order of :attr:`pictures`.
    labels, weights : Tensor
        int64 and float32 ``(batch, tokens)``: the next token, and its weight in the loss.
    questions : Tensor
        int64 ``(batch, tokens)``: number of the question whose answer the label belongs to; :data:`COPIED` where a
        page is written down, :data:`NO_ANSWER` elsewhere.
    pictures : list[int]
        Pictures in the order in which their embeddings are expected.
    """

    token_ids: Tensor
    positions: Tensor
    groups: Tensor
    visual: Tensor
    labels: Tensor
    weights: Tensor
    questions: Tensor
    pictures: list[int]

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **moved)


class _Row:
    """One context, token by token."""

    def __init__(self) -> None:
        self.ids: list[Tensor] = []
        self.positions: list[Tensor] = []
        self.groups: list[Tensor] = []
        self.length = 0
        self.next = 0

    def text(self, ids: Sequence[int], own: int, kind: int) -> None:
        count = len(ids)
        self._add(torch.tensor(ids, dtype=torch.int64), (self.next + torch.arange(count)).expand(3, -1), own, kind)
        self.next += count

    def picture(self, grid: Grid, own: int) -> tuple[int, int]:
        """Adds a picture's tokens; returns where they start and end."""
        rows, columns = grid
        place = torch.stack(
            (
                torch.zeros(rows * columns, dtype=torch.int64),
                torch.arange(rows).repeat_interleave(columns),
                torch.arange(columns).repeat(rows),
            )
        )
        start = self.length
        self._add(torch.zeros(rows * columns, dtype=torch.int64), place + self.next, own, PAGE)
        self.next += max(rows, columns)
        return start, self.length

    def _add(self, ids: Tensor, positions: Tensor, own: int, kind: int) -> None:
        self.ids.append(ids)
        self.positions.append(positions)
        self.groups.append(torch.tensor([own, kind], dtype=torch.int32).expand(len(ids), 2))
        self.length += len(ids)


def pack(contexts: Sequence[Context]) -> Batch:
    """One batch of contexts, padded to the longest."""
    rows = []
    visual: list[Tensor] = []
    pictures: list[int] = []
    seen = 0
    marks: list[tuple[int, int, Asked]] = []  # row, place, question
    for number, context in enumerate(contexts):
        row = _Row()
        row.text(context.prefix, 0, PREFIX)
        places = []
        for order, (picture, grid) in enumerate(zip(context.pages, context.grids, strict=True)):
            own = -1 - order if context.isolated else order
            row.text(context.open, own, PAGE)
            places.append(row.picture(grid, own))
            row.text(context.close, own, PAGE)
            pictures.append(picture)
        start = row.next
        for order, asked in enumerate(context.asked):
            marks.append((number, row.length, asked))
            row.next = start
            row.text([*asked.prompt, *asked.answer[:-1]], order, QUESTION)
        rows.append((row, places))
    length = max(row.length for row, _ in rows)
    batch = len(rows)
    token_ids = torch.zeros(batch, length, dtype=torch.int64)
    positions = torch.zeros(batch, 3, length, dtype=torch.int64)
    groups = torch.tensor([0, PADDING], dtype=torch.int32).repeat(batch, length, 1)
    labels = torch.zeros(batch, length, dtype=torch.int64)
    weights = torch.zeros(batch, length)
    questions = torch.full((batch, length), NO_ANSWER)
    for number, (row, places) in enumerate(rows):
        token_ids[number, : row.length] = torch.cat(row.ids)
        positions[number, :, : row.length] = torch.cat(row.positions, dim=1)
        groups[number, : row.length] = torch.cat(row.groups)
        for first, last in places:
            count = last - first
            flat = number * length + torch.arange(first, last)
            visual.append(torch.stack((flat, seen + torch.arange(count)), dim=1))
            seen += count
    for index, (number, place, asked) in enumerate(marks):
        whole = torch.tensor([*asked.prompt, *asked.answer])
        end, answer = place + len(whole) - 1, place + len(asked.prompt) - 1
        labels[number, place:end] = whole[1:]
        weights[number, place:answer] = asked.prompt_weight
        weights[number, answer:end] = asked.weight
        questions[number, answer:end] = COPIED if asked.copied else index
    return Batch(
        token_ids,
        positions,
        groups,
        torch.cat(visual or [torch.zeros(0, 2, dtype=torch.int64)]),
        labels,
        weights,
        questions,
        pictures,
    )
