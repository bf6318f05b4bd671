"""The tables of a reader's card, as Markdown, from answers that are kept one by one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from qvpic_rag.errors import ConfigError, QVPICError
from qvpic_rag.intervals import bootstrap
from qvpic_rag.reader.evaluate import CONDITIONINGS, MODES, Examiner, Outcome, character_errors
from qvpic_rag.reader.facts import QUESTION_KINDS
from qvpic_rag.reader.prompts import STYLES

__all__ = ["TABLES", "measure"]

TABLES = ("letters", "pages", "kinds", "prompts")
_PER_WORLD = 5  # questions about the pages of one world
_SCARCEST = 20  # times as many worlds are looked at as would do if every page held something to ask
_MIDDLE = 4  # pages in the tables by kind and by prompt
_METHODS = ("full", *CONDITIONINGS)
_NAMES = {"full": "full prefill", "native": "page caches, native", "low": "72 DPI", "high": "120 DPI"}
_NAMES |= {"prefix-free": "prefix-free", "dummy-4": "dummy-4", "evidence": "evidence page 120, others 72"}


def measure(
    examiner: Examiner,
    tables: Sequence[str],
    pages: Sequence[int],
    questions: int,
    results: Path | None,
    progress: Callable[[str], Any],
) -> Iterator[str]:
    """Measure what is asked for, table by table.

    Parameters
    ----------
    tables : Sequence[str]
        Some of :data:`TABLES`.
    pages : Sequence[int]
        Rows of the table by number of pages.
    questions : int
        Per cell: five about the pages of each world, of as many worlds as it takes; a quarter as many per prompt. Half
        as many pages are transcribed. A kind that hardly any pages hold may have fewer.
    results : Path or None
        JSON Lines file that cells are kept in; cells that it holds already are not measured again.
    progress : Callable[[str], Any]
        Told what is being measured.
    """
    cells = _Cells(results, examiner.model.checkpoint.fingerprint, progress)
    if "letters" in tables:
        yield _letters(cells, examiner, range(-(-questions // 4)))
    if "pages" in tables:
        yield _pages(cells, examiner, pages, questions)
    if "kinds" in tables:
        yield _kinds(cells, examiner, questions)
    if "prompts" in tables:
        yield _prompts(cells, examiner, -(-questions // 4))


class _Cells:
    """Answers by cell, remembered in a file beside those of other models."""

    def __init__(self, path: Path | None, model: str, progress: Callable[[str], Any]) -> None:
        self.path, self.model, self.progress = path, model, progress
        self.known: dict[str, list[Any]] = {}
        if path is None:
            return
        try:
            with path.open("a+", encoding="utf-8") as file:  # shows now, not after hours, that it can be written
                file.seek(0)
                whole = 0
                for line in iter(file.readline, ""):
                    if not line.endswith("\n") and _is_cut(line):
                        file.truncate(whole)  # the rest of a cell whose writing was interrupted
                        break
                    whole = file.tell()
                    entry = json.loads(line)
                    if entry["model"] == model:
                        self.known[entry["cell"]] = entry["answers"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path} cannot keep the results of `qvpic reader eval` ({error}); name another file."
            ) from error

    def get(self, name: str, make: Callable[[], list[Any]]) -> list[Any]:
        if name not in self.known:
            self.progress(f"measuring {name} ...")
            self.known[name] = make()
            if self.path is not None:
                try:
                    with self.path.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({"model": self.model, "cell": name, "answers": self.known[name]}) + "\n")
                except OSError as error:
                    raise QVPICError(f"{self.path} cannot be written ({error}); free space and run again.") from error
        return self.known[name]

    def outcomes(self, name: str, make: Callable[[], Iterator[Outcome]]) -> list[Outcome]:
        answers = self.get(name, lambda: [asdict(outcome) for outcome in make()])
        try:
            return [Outcome(**each) for each in answers]
        except TypeError as error:
            raise ConfigError(
                f"{self.path}: the answers of {name!r} are damaged ({error}); remove that line."
            ) from error


def _is_cut(line: str) -> bool:
    """Whether a last line without an end is the beginning of a cell, and not something else's last line."""
    name = re.match(r'\{"model": "[^"]*', line)
    found, begin = (line, '{"model": "') if name is None else (line[name.end() :], '", "cell": "')
    return begin.startswith(found) or (name is not None and found.startswith(begin))


def _cell(outcomes: Sequence[Outcome]) -> str:
    if not outcomes:
        return "-"
    mean, low, high = bootstrap([float(each.right) for each in outcomes], [each.world for each in outcomes])
    return f"{_short(mean)} ({_short(low)}-{_short(high)})"


def _short(share: float) -> str:
    return f"{share:.2f}".removeprefix("0")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _transcribed(examiner: Examiner, worlds: range, dpi: int) -> list[Any]:
    return [list(each) for each in examiner.transcriptions(worlds, dpi)]


def _letters(cells: _Cells, examiner: Examiner, worlds: range) -> str:
    rows = []
    for dpi in examiner.dpis:
        read = cells.get(
            f"letters {dpi} {len(worlds)}",
            partial(_transcribed, examiner, worlds, dpi),
        )
        wrong = [float(character_errors(said, found)) for _, said, found in read]
        mean, low, high = bootstrap(wrong, [each[0] for each in read], [float(len(each[1])) for each in read])
        rows.append([f"{dpi} DPI", f"{mean:.2%} ({low:.2%}-{high:.2%})", str(len(read))])
    return _table(["resolution", "character error, page written down", "pages"], rows)


def _answers(
    examiner: Examiner, questions: int, pages: int, *, methods: Sequence[str], modes: Sequence[str], **options: Any
) -> Iterator[Outcome]:
    """The answers to ``questions`` questions; worlds whose pages hold none are passed over."""
    worlds = range(-(-questions // _PER_WORLD) * _SCARCEST)
    found = examiner.exact_match(pages, worlds, _PER_WORLD, methods=methods, modes=modes, **options)
    return islice(found, questions * len(methods) * len(modes))


def _pages(cells: _Cells, examiner: Examiner, pages: Sequence[int], questions: int) -> str:
    rows = []
    for count in pages:
        modes = MODES[:2] if count == 1 else MODES
        found = cells.outcomes(
            f"pages {count} {questions}",
            partial(_answers, examiner, questions, count, methods=_METHODS, modes=modes),
        )
        for mode in modes:
            chosen = [each for each in found if each.mode == mode]
            rows.append(
                [str(count), _NAMES[mode]]
                + [_cell([each for each in chosen if each.method == method]) for method in _METHODS]
            )
    return _table(["pages", "resolution", *(_NAMES[method] for method in _METHODS)], rows)


def _kinds(cells: _Cells, examiner: Examiner, questions: int) -> str:
    methods, rows = ("full", "native"), []
    for kind in QUESTION_KINDS:
        found = cells.outcomes(
            f"kind {kind} {questions}",
            partial(_answers, examiner, questions, _MIDDLE, methods=methods, modes=("high",), kind=kind),
        )
        by_method = [[each for each in found if each.method == method] for method in methods]
        rows.append([kind.replace("_", " "), *map(_cell, by_method), str(len(by_method[0]))])
    return _table([f"kind, {_MIDDLE} pages at 120 DPI", *(_NAMES[method] for method in methods), "questions"], rows)


def _prompts(cells: _Cells, examiner: Examiner, questions: int) -> str:
    rows = []
    for style in STYLES:
        found = cells.outcomes(
            f"prompt {style} {questions}",
            partial(_answers, examiner, questions, _MIDDLE, methods=("native",), modes=("high",), styles=(style,)),
        )
        rows.append([f"`{style}`", _cell(found), str(len(found))])
    return _table([f"prompt, {_MIDDLE} pages at 120 DPI", _NAMES["native"], "questions"], rows)
