"""Packed samples: every number of a small batch, and what a question may see."""

from __future__ import annotations

import pytest
import torch

from qvpic_rag.reader.operations import PADDING, PAGE, PREFIX, QUESTION, visible
from qvpic_rag.reader.samples import COPIED, NO_ANSWER, Asked, Context, pack

FIRST = Asked([21, 22], [31, 32, 0], prompt_weight=0.3)
SECOND = Asked([23], [33, 0], weight=0.5)
CONTEXT = Context([11, 12], [13], [14], [7, 4], [(1, 2), (3, 1)], [FIRST, SECOND])
SHORT = Context([11], [13], [14], [5], [(1, 1)], [Asked([24], [0])])


def test_every_number_of_a_small_batch() -> None:
    batch = pack([CONTEXT, SHORT])
    assert batch.pictures == [7, 4, 5]
    #     prefix  open  picture  close open  picture  close  question     question
    ids = [11, 12, 13, 0, 0, 14, 13, 0, 0, 0, 14, 21, 22, 31, 32, 23, 33]
    assert batch.token_ids.tolist() == [ids, [11, 13, 0, 14, 24] + [0] * 12]
    # A picture of r x c tokens takes as many positions as its longer side; questions all start behind the last page.
    temporal = [0, 1, 2, 3, 3, 5, 6, 7, 7, 7, 10, 11, 12, 13, 14, 11, 12]
    down = [0, 1, 2, 3, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 11, 12]
    right = [0, 1, 2, 3, 4, 5, 6, 7, 7, 7, 10, 11, 12, 13, 14, 11, 12]
    assert batch.positions[0].tolist() == [temporal, down, right]
    assert batch.positions[1, :, :5].tolist() == [[0, 1, 2, 3, 4]] * 3
    own = [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1]
    kind = [PREFIX] * 2 + [PAGE] * 9 + [QUESTION] * 6
    assert batch.groups[0].tolist() == [list(pair) for pair in zip(own, kind, strict=True)]
    assert batch.groups[1, :, 1].tolist() == [PREFIX, PAGE, PAGE, PAGE, QUESTION] + [PADDING] * 12
    assert batch.visual.tolist() == [[3, 0], [4, 1], [7, 2], [8, 3], [9, 4], [17 + 2, 5]]
    assert batch.labels[0, 11:].tolist() == [22, 31, 32, 0, 33, 0]
    assert batch.weights[0, 11:].tolist() == pytest.approx([0.3, 1, 1, 1, 0.5, 0.5])
    assert batch.questions[0, 11:].tolist() == [NO_ANSWER, 0, 0, 0, 1, 1]
    assert (batch.labels[1, 4], batch.weights[1, 4], batch.questions[1, 4]) == (0, 1, 2)
    assert batch.weights[0, :11].sum() == batch.weights[1, :4].sum() == batch.weights[1, 5:].sum() == 0
    assert (batch.questions[1, 5:] == NO_ANSWER).all()


def test_dtypes() -> None:
    batch = pack([SHORT])
    for tensor in (batch.token_ids, batch.positions, batch.visual, batch.labels, batch.questions):
        assert tensor.dtype == torch.int64
    assert (batch.groups.dtype, batch.weights.dtype) == (torch.int32, torch.float32)


@pytest.mark.parametrize("isolated", [False, True])
def test_what_a_token_may_see(isolated: bool) -> None:
    """Written out again from the rule: prefix, pages (all, or one's own), and one's own question."""
    context = Context([11, 12], [13], [14], [7, 4], [(1, 2), (3, 1)], [FIRST, SECOND], isolated)
    seen = visible(pack([context]).groups)[0]
    page = [None] * 2 + [0] * 4 + [1] * 5 + [None] * 6
    question = [None] * 11 + [0] * 4 + [1] * 2
    for query in range(17):
        for key in range(17):
            allowed = key <= query and (
                key < 2
                or (page[key] is not None and (question[query] is not None or not isolated or page[key] == page[query]))
                or (question[key] is not None and question[key] == question[query])
            )
            assert bool(seen[query, key]) == allowed, (query, key)


def test_padding_is_seen_by_nobody() -> None:
    seen = visible(pack([CONTEXT, SHORT]).groups)[1]
    assert not (seen[:5, 5:]).any()
    assert torch.equal(seen[5:, 5:] & ~torch.eye(12, dtype=torch.bool), torch.zeros(12, 12, dtype=torch.bool))


def test_a_copy_is_no_answer() -> None:
    """Its labels count, but not as those of a question; the questions around it keep their numbers."""
    copied = Asked([25], [34, 0], weight=0.2, copied=True)
    batch = pack([Context([11], [13], [14], [5], [(1, 1)], [FIRST, copied, SECOND])])
    assert batch.questions[0, 4:].tolist() == [NO_ANSWER, 0, 0, 0, COPIED, COPIED, 2, 2]
    assert batch.labels[0, 4:].tolist() == [22, 31, 32, 0, 34, 0, 33, 0]
    assert batch.weights[0, 4:].tolist() == pytest.approx([0.3, 1, 1, 1, 0.2, 0.2, 0.5, 0.5])


def test_lengths_and_devices() -> None:
    assert (CONTEXT.length, SHORT.length) == (17, 5)
    batch = pack([CONTEXT])
    moved = batch.to(torch.device("meta"))
    assert moved.pictures == batch.pictures
    assert {tensor.device.type for tensor in vars(moved).values() if isinstance(tensor, torch.Tensor)} == {"meta"}


def test_pages_and_grids_must_go_together() -> None:
    with pytest.raises(ValueError, match="zip"):
        pack([Context([1], [2], [3], [0, 1], [(1, 1)], [SECOND])])
