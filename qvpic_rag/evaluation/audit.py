"""Did the router promote the page that the answer stands on, and what did the model see where it answered wrongly?

An answer is right where its exact match is 1. Evidence is promoted where all its pages are, and its rank is that of its
last page, because a two-hop question needs both. Where documents are known and not which of their pages state the
answer, one promoted page is enough, and the rank is that of the first. Evidence that retrieval missed was not promoted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

from qvpic_rag.config import RenderProfile
from qvpic_rag.errors import InputError, QVPICError
from qvpic_rag.evaluation.audit_page import failure_page, failure_title, index_page
from qvpic_rag.evaluation.document import Table
from qvpic_rag.evaluation.records import Answered, Example
from qvpic_rag.evaluation.rundir import runs_below
from qvpic_rag.evaluation.tables import Run
from qvpic_rag.render import Renderer

__all__ = ["Audited", "audited", "write_audit"]

_HEAD = 1000  # bytes of a page that hold its title


@dataclass(frozen=True)
class Audited:
    """One answer.

    ``promoted`` is None where no evidence is known or there is no route, ``rank`` (from 0) also where the evidence, or
    a part of it that is needed, was not in the request.
    """

    example: Example
    answer: Answered
    right: bool
    promoted: bool | None
    rank: int | None


@dataclass(frozen=True)
class _Failure:
    """What one page shows."""

    model: str
    profile: Mapping[str, Any] | None
    found: Audited


def audited(example: Example, answer: Answered) -> Audited:
    """Where the evidence of an answer went."""
    by_place = {routed["place"]: routed for routed in answer.route}
    evidence = example.evidence or ()
    right = answer.em >= 1 and not answer.error
    if not answer.route or not (evidence or example.missed):
        return Audited(example, answer, right, None, None)
    seen = [by_place[place] for place in evidence if place in by_place]
    enough, last = (all, max) if example.evidence_all else (any, min)
    if example.missed or not seen or (example.evidence_all and len(seen) < len(evidence)):
        return Audited(example, answer, right, False, None)
    promoted = enough(routed["promoted"] for routed in seen)
    return Audited(example, answer, right, promoted, last(routed["rank"] for routed in seen))


def write_audit(path: Path, out: Path | None = None, *, method: str | None = None, most: int = 50) -> Path:
    """Write ``index.html`` and a page for each wrong answer of a method that routes.

    Pages of an earlier audit that are not written again are removed.

    Parameters
    ----------
    path : Path
        A run's folder, or one with several runs in it.
    out : Path, optional
        Where pages go; by default ``path/audit``.
    method : str, optional
        Only this method.
    most : int
        Wrong answers that get a page, taken from the methods in turn.

    Returns
    -------
    Path
        Of ``index.html``.

    Raises
    ------
    InputError
        There is no run, a line of its files is damaged, or no run has answers of that method.
    """
    runs = [Run.load(folder) for folder in runs_below(path)]
    names = list(dict.fromkeys(name for run in runs for name in run.answers))
    if method is not None and method not in names:
        raise InputError(f"{path} has no answers of {method!r}; its methods are {', '.join(names) or 'none'}.")
    counts: list[list[str]] = []
    routed: list[tuple[str, Table]] = []
    failures: list[list[_Failure]] = []
    for run in runs:
        model, profile = str(run.settings["model"].get("name", "model")), run.settings["model"].get("profile")
        for name, answers in run.answers.items():
            if method in (None, name):
                held = [audited(run.examples[each], answer) for each, answer in answers.items()]
                counts.append([model, name, *_counted(held)])
                if any(each.answer.route for each in held):
                    routed.append((f"{model}, {name}", _by_tag(held)))
                    failures.append([_Failure(model, profile, each) for each in held if not each.right])
    total = sum(map(len, failures))
    shown = list(islice(_in_turn(failures), min(most, total)))
    head = ["model", "method", "answers", "right", "wrong", "of these, failed"]
    out = path / "audit" if out is None else out
    digits = len(str(len(shown)))
    links = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        drawn = _Drawn()
        for number, failure in enumerate(shown, 1):
            name = f"{number:0{digits}}.html"  # names are numbers: what ids hold must not become paths
            found = failure.found
            text = failure_page(
                number, failure.model, found.example, found.answer, found.promoted, found.rank,
                drawn.picture(failure.profile),
            )  # fmt: skip
            (out / name).write_text(text, encoding="utf-8", errors="replace")
            links.append((name, found.answer.method, found.example.query, found.promoted))
        index = out / "index.html"
        text = index_page(Table(head, counts, texts=2), routed, links, total)
        index.write_text(text, encoding="utf-8", errors="replace")
        _remove_earlier(out, {name for name, *_ in links})
    except OSError as error:
        raise QVPICError(f"The audit cannot be written ({error}); name another --out.") from error
    return index


def _remove_earlier(out: Path, written: Set[str]) -> None:
    """Take away pages about wrong answers that an earlier audit wrote and this one did not; nothing else."""
    for path in out.iterdir():
        number = re.fullmatch(r"0*([1-9][0-9]*)\.html", path.name)
        if number is not None and path.name not in written and path.is_file() and not path.is_symlink():
            title = f"<title>{failure_title(int(number[1]))}</title>".encode()
            with path.open("rb") as file:
                if title in file.read(_HEAD):
                    path.unlink()


class _Drawn:
    """Pages drawn as the model saw them, a renderer for each profile."""

    def __init__(self) -> None:
        self._renderers: dict[RenderProfile, Renderer] = {}

    def picture(self, profile: Mapping[str, Any] | None) -> Callable[[Any, int], Any] | None:
        """Draws ``(page, dpi)``; None for a model that read text."""
        if profile is None:
            return None
        known = RenderProfile.from_dict(profile)
        if known not in self._renderers:
            self._renderers[known] = Renderer(known)
        return self._renderers[known].image


def _in_turn(lists: Sequence[Sequence[_Failure]]) -> Iterator[_Failure]:
    rounds = zip_longest(*lists)
    return (each for each in chain.from_iterable(rounds) if each is not None)


def _counted(found: Sequence[Audited]) -> list[str]:
    right = sum(each.right for each in found)
    failed = sum(bool(each.answer.error) for each in found)
    return [str(len(found)), str(right), str(len(found) - right), str(failed)]


def _by_tag(found: Sequence[Audited]) -> Table:
    """What became of evidence, over all examples and split by their tags."""
    head = ["", "answers", "evidence known", "promoted", "mean rank", "right", "right if promoted", "right if not"]
    tags = sorted({tag for each in found for tag in each.example.tags})
    parts = [("all", list(found))]
    parts += [(tag, [each for each in found if tag in each.example.tags]) for tag in tags]
    rows = []
    for name, held in parts:
        known = [each for each in held if each.promoted is not None]
        ranks = [each.rank + 1 for each in known if each.rank is not None]
        rows.append(
            [
                name, str(len(held)), str(len(known)), _share(bool(each.promoted) for each in known),
                f"{fmean(ranks):.2f}" if ranks else "-", _share(each.right for each in held),
                _share(each.right for each in known if each.promoted),
                _share(each.right for each in known if not each.promoted),
            ]
        )  # fmt: skip
    note = "Ranks count from 1. Evidence that is not in the request was not promoted and has no rank."
    if any(each.example.evidence_all for each in found):
        note += " Evidence that is pages is promoted where all of them are; its rank is that of the last."
    if not all(each.example.evidence_all for each in found):
        note += " Evidence that is documents is promoted where any page of them is; its rank is that of the first."
    return Table(head, rows, note)


def _share(values: Iterable[bool]) -> str:
    held = list(values)
    return f"{sum(held)}/{len(held)} ({fmean(held):.0%})" if held else "-"
