"""The embeddings that visual tokens should come near, against plain loops."""

from __future__ import annotations

import pytest
import torch

from qvpic_rag.reader.pictures import SLOTS
from qvpic_rag.reader.smolglyph.targets import Targets, letter_loss
from qvpic_rag.reader.tokens import CHARACTERS

SPACE = 5
TOKENS = torch.tensor([[7, -1, -1, -1], [-1, -1, -1, -1], [3, 9, 3, -1], [SPACE, -1, -1, -1]])


@pytest.fixture
def embedding() -> torch.Tensor:
    return torch.randn(300, 16, generator=torch.Generator().manual_seed(0)) + 0.5


def test_later_tokens_of_a_cell_count_less(embedding: torch.Tensor) -> None:
    mean = embedding.mean(0)
    expected = [
        embedding[7] - mean,
        embedding[SPACE] - mean,
        (embedding[3] - mean) + 0.7 * (embedding[9] - mean) + 0.49 * (embedding[3] - mean),
        embedding[SPACE] - mean,
    ]
    torch.testing.assert_close(Targets(embedding, SPACE).wanted(TOKENS), torch.stack(expected))


def test_the_wanted_embeddings_have_no_distance(embedding: torch.Tensor) -> None:
    targets = Targets(embedding, SPACE)
    wanted = targets.wanted(TOKENS) + targets.mean
    seen = targets.losses(wanted, TOKENS, torch.Generator().manual_seed(1))
    assert seen.near < 1e-8
    assert seen.wrong <= 1 / 3  # the crowded cell may be nearer to something else
    far = targets.losses(wanted + 1, TOKENS, torch.Generator().manual_seed(1))
    assert far.near > 0.5
    assert far.which > seen.which


def test_guessing_the_mean_has_distance_one(embedding: torch.Tensor) -> None:
    targets = Targets(embedding, SPACE)
    tokens = torch.full((300, 4), -1)
    tokens[:, 0] = torch.arange(300)
    seen = targets.losses(targets.mean.expand(300, -1), tokens, torch.Generator().manual_seed(1))
    torch.testing.assert_close(seen.near, torch.tensor(1.0))


def test_descending_finds_the_words(embedding: torch.Tensor) -> None:
    """The losses alone turn free vectors into embeddings whose nearest words are the right ones."""
    targets = Targets(embedding, SPACE)
    free = targets.mean.repeat(4, 1).requires_grad_()
    optimizer = torch.optim.Adam([free], lr=0.2)
    for step in range(60):
        seen = targets.losses(free, TOKENS[[0, 1, 0, 3]], torch.Generator().manual_seed(step))
        (seen.near + seen.which).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert seen.wrong == 0
    assert torch.cdist(free.detach(), embedding).argmin(1).tolist() == [7, SPACE, 7, SPACE]


def test_a_page_without_words(embedding: torch.Tensor) -> None:
    targets = Targets(embedding, SPACE)
    seen = targets.losses(torch.zeros(2, 16), torch.full((2, 4), -1), torch.Generator())
    assert seen.wrong == 0
    assert torch.isfinite(seen.which)


def test_letters_named_rightly() -> None:
    head = torch.nn.Linear(2, SLOTS * len(CHARACTERS))
    letters = torch.zeros(2, SLOTS, dtype=torch.int64)
    letters[0, :2] = torch.tensor([40, 50])
    with torch.no_grad():
        head.weight.zero_()
        head.bias.fill_(-10)
        bias = head.bias.view(SLOTS, -1)
        bias[0, 40] = bias[1, 51] = 10
        bias[2:, 0] = 10
    loss, wrong = letter_loss(head, torch.zeros(2, 2), letters)
    assert wrong == 0.5
    # The second character is wrong by 20; the empty second cell names two characters too many, at a tenth each.
    assert abs(float(loss.detach()) - (20 + 0.1 * 2 * 20) / (2 + 0.1 * (2 * SLOTS - 2))) < 0.1
