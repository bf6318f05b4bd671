"""What the paper claims, held against a run: a sentence for each pair of methods, from paired intervals alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qvpic_rag.evaluation.naming import MethodName, defaults
from qvpic_rag.evaluation.tables import Estimate, Run

__all__ = ["Claim", "claims"]


@dataclass(frozen=True)
class Claim:
    """A claim, the two methods it is about, and by how much the first is better.

    ``n`` examples of ``groups`` groups were measured with both.
    ``gain`` is positive where the claim holds: F1 of the first minus the second's, or milliseconds that it takes less.
    """

    text: str
    first: str
    second: str
    unit: str
    n: int
    groups: int
    gain: Estimate

    @property
    def verdict(self) -> str:
        """``seen``, ``not seen``, ``reversed``; ``not told`` where one group gives no interval."""
        if self.gain.low is None or self.gain.high is None:
            return "not told"
        if self.gain.low > 0:
            return "seen"
        return "reversed" if self.gain.high < 0 else "not seen"


def claims(run: Run) -> list[Claim]:
    """The claims that the run's methods bear on, those about the same thing side by side."""
    native = sorted(_native(run), key=lambda claim: claim.text, reverse=True)  # no prefix, then dummies
    return [*native, *_naive(run), *_quicker(run)]


def _native(run: Run) -> Iterator[Claim]:
    for native in run.methods:
        if native.family in ("pic", "qvpic") and native.conditioning == "native":
            for other in run.methods:
                alike = (other.family, other.medium, other.options) == (native.family, native.medium, native.options)
                if alike and other.conditioning == "prefix-free":
                    yield from _better("The native prefix beats no prefix", run, native, other)
                elif alike and other.conditioning.startswith("dummy"):
                    yield from _better("The native prefix beats a dummy prefix", run, native, other)


def _naive(run: Run) -> Iterator[Claim]:
    for first in defaults(run.methods):
        for other in run.methods:
            if (other.family, other.conditioning) == ("pic", "prefix-free") and other.medium in first.pair:
                yield from _better("QV-PIC beats naive caching", run, first, other)


def _quicker(run: Run) -> Iterator[Claim]:
    for first in defaults(run.methods):
        for other in run.methods:
            if other.family == "full" and other.medium in first.pair:
                times, others = run.times.get(first.name, {}), run.times.get(other.name, {})
                gain, both = run.difference(others, times), times.keys() & others.keys()
                if gain is not None:
                    text = "QV-PIC's first token comes before full prefill's"
                    yield Claim(text, first.name, other.name, "ms", len(both), run.groups(both), gain)


def _better(text: str, run: Run, first: MethodName, second: MethodName) -> Iterator[Claim]:
    scores, others = run.scores(first.name), run.scores(second.name)
    gain, both = run.difference(scores, others), scores.keys() & others.keys()
    if gain is not None:
        yield Claim(text, first.name, second.name, "F1", len(both), run.groups(both), gain)
