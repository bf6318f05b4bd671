"""What a visual token should be: near the language model's embedding of the word that starts in its cell.

The language model is frozen, so whatever it can read looks like its own word embeddings. Of several tokens that start
in one cell the later ones count less; a cell in which none starts looks like a space. This alone lets the untouched
language model repeat most of a page.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from qvpic_rag.reader.tokens import CHARACTERS

__all__ = ["Seen", "Targets", "letter_loss"]

_DECAY = 0.7  # of each further token that starts in a cell
_EMPTY_CELL = 0.25  # weight of cells in which no token starts
_EMPTY_SLOT = 0.1  # weight of "no character here"
_CANDIDATES = 1024  # further tokens that each first token is told from
_SHARPNESS = 2.0


class Seen(NamedTuple):
    """Losses of a batch of cells, and how much of it was wrong.

    Attributes
    ----------
    near, which : Tensor
        Squared distance to the wanted embeddings, in units of the vocabulary's variance; cross entropy of the first
        token among candidates.
    wrong : float
        Share of cells whose embedding is nearer to another candidate than to its first token.
    """

    near: Tensor
    which: Tensor
    wrong: float


class Targets:
    """The wanted embeddings.

    Parameters
    ----------
    embedding : Tensor
        ``(vocabulary, hidden)``: the language model's.
    space : int
        Token id that stands for an empty cell.
    """

    def __init__(self, embedding: Tensor, space: int) -> None:
        self.mean = embedding.float().mean(0)
        self.centred = embedding.float() - self.mean
        self.variance = float(self.centred.square().sum(-1).mean())
        self.space = space

    def wanted(self, tokens: Tensor) -> Tensor:
        """Embeddings ``(cells, hidden)``, relative to the mean, for token ids ``(cells, STARTS)``, -1 for none."""
        there = tokens >= 0
        weights = _DECAY ** torch.arange(tokens.shape[1], device=tokens.device) * there
        found = (self.centred[tokens.clamp(min=0)] * weights[..., None]).sum(1)
        return torch.where(there[:, :1], found, self.centred[self.space])

    def losses(self, embeddings: Tensor, tokens: Tensor, generator: torch.Generator) -> Seen:
        """How far visual tokens are from what they should be.

        Parameters
        ----------
        embeddings : Tensor
            ``(cells, hidden)``, any dtype.
        tokens : Tensor
            int64 ``(cells, STARTS)``.
        generator : torch.Generator
            Draws candidates; on the CPU.
        """
        centred = embeddings.float() - self.mean
        there = tokens[:, 0] >= 0
        weights = torch.where(there, 1.0, _EMPTY_CELL)
        distance = (centred - self.wanted(tokens)).square().sum(-1) / self.variance
        near = (distance * weights).sum() / weights.sum()
        drawn = torch.randint(len(self.centred), (_CANDIDATES,), generator=generator).to(tokens.device)
        first = torch.where(there, tokens[:, 0], self.space)
        candidates, labels = torch.unique(torch.cat([first, drawn]), return_inverse=True)
        labels = labels[: len(first)]
        known = self.centred[candidates]
        # The nearest candidate has the largest score, since |x|^2 is the same for all.
        scores = centred.to(embeddings.dtype) @ known.T.to(embeddings.dtype)
        scores = _SHARPNESS * (scores.float() - 0.5 * known.square().sum(-1))
        which = (F.cross_entropy(scores, labels, reduction="none") * weights).sum() / weights.sum()
        missed = (scores.detach().argmax(-1) != labels)[there]
        return Seen(near, which, float(missed.float().mean()) if len(missed) else 0.0)


def letter_loss(head: torch.nn.Linear, features: Tensor, letters: Tensor) -> tuple[Tensor, float]:
    """Cross entropy, and share of wrong characters, where each visual token names those in its cell.

    Parameters
    ----------
    head : Linear
        From features to ``SLOTS * len(CHARACTERS)`` scores.
    features : Tensor
        ``(cells, features)``.
    letters : Tensor
        int64 ``(cells, SLOTS)``: indices into ``CHARACTERS``, 0 for none.
    """
    scores = F.linear(features, head.weight.to(features.dtype), head.bias.to(features.dtype)).float()
    labels = letters.flatten()
    losses = F.cross_entropy(scores.view(-1, len(CHARACTERS)), labels, reduction="none")
    there = labels > 0
    weights = torch.where(there, 1.0, _EMPTY_SLOT)
    missed = (scores.detach().view(-1, len(CHARACTERS)).argmax(-1) != labels)[there]
    return (losses * weights).sum() / weights.sum(), float(missed.float().mean()) if len(missed) else 0.0
