"""Tables of a card: their numbers, and a file of results that is continued, never mixed up and never lost."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qvpic_rag.errors import ConfigError
from qvpic_rag.reader.evaluate import CONDITIONINGS, Outcome
from qvpic_rag.reader.facts import QUESTION_KINDS
from qvpic_rag.reader.prompts import STYLES
from qvpic_rag.reader.tables import TABLES, measure

METHODS = ("full", *CONDITIONINGS)


class Fake:
    """An examiner whose answers are known: full prefill is right, native in even worlds, the others never."""

    dpis = (72, 120)

    def __init__(self, fingerprint: str = "one") -> None:
        self.model = SimpleNamespace(checkpoint=SimpleNamespace(fingerprint=fingerprint))
        self.asked: list[tuple[Any, ...]] = []

    def exact_match(
        self,
        pages: int,
        worlds: Sequence[int],
        per_world: int,
        *,
        methods: Sequence[str],
        modes: Sequence[str],
        styles: Sequence[str] = ("bare",),
        kind: str | None = None,
    ) -> Iterator[Outcome]:
        self.asked.append((pages, len(worlds), tuple(modes), tuple(styles), kind))
        if kind == "two_hop":
            return
        for world, index, mode, method in product(worlds, range(per_world), modes, methods):
            right = method == "full" or (method == "native" and world % 2 == 0)
            found = "a" if right else "b"
            yield Outcome(world, pages, method, mode, styles[0], kind or "fact", f"{index}?", "a", found)

    def transcriptions(self, worlds: Sequence[int], dpi: int) -> Iterator[tuple[int, str, str]]:
        self.asked.append(("letters", len(worlds), dpi))
        for world in worlds:
            yield world, "abcdefghij", "abcdefghij" if dpi == 120 else "abXdefghi"
            yield world, "abcdefghij", "abcdefghij"


def tables(
    examiner: Fake,
    wanted: Sequence[str],
    pages: Sequence[int] = (1, 2),
    questions: int = 20,
    results: Path | None = None,
    progress: list[str] | None = None,
) -> list[str]:
    told = [] if progress is None else progress
    return list(measure(examiner, wanted, pages, questions, results, told.append))  # type: ignore[arg-type]


def test_letters() -> None:
    examiner = Fake()
    assert tables(examiner, ["letters"]) == [
        "| resolution | character error, page written down | pages |\n"
        "| --- | --- | --- |\n"
        "| 72 DPI | 10.00% (10.00%-10.00%) | 10 |\n"
        "| 120 DPI | 0.00% (0.00%-0.00%) | 10 |\n"
    ]
    assert examiner.asked == [("letters", 5, 72), ("letters", 5, 120)]


def test_pages() -> None:
    examiner = Fake()
    [table] = tables(examiner, ["pages"])
    right, half, wrong = "1.00 (1.00-1.00)", ".50 (.00-1.00)", ".00 (.00-.00)"
    line = f"{right} | {half} | {wrong} | {wrong} |"
    assert table.splitlines() == [
        "| pages | resolution | full prefill | page caches, native | prefix-free | dummy-4 |",
        "| --- | --- | --- | --- | --- | --- |",
        f"| 1 | 72 DPI | {line}",
        f"| 1 | 120 DPI | {line}",
        f"| 2 | 72 DPI | {line}",
        f"| 2 | 120 DPI | {line}",
        f"| 2 | evidence page 120, others 72 | {line}",
    ]
    assert examiner.asked == [
        (1, 80, ("low", "high"), ("bare",), None),
        (2, 80, ("low", "high", "evidence"), ("bare",), None),
    ]


def test_kinds() -> None:
    examiner = Fake()
    [table] = tables(examiner, ["kinds"], questions=10)
    lines = table.splitlines()
    assert lines[0] == "| kind, 4 pages at 120 DPI | full prefill | page caches, native | questions |"
    assert lines[2] == "| fact | 1.00 (1.00-1.00) | .50 (.00-1.00) | 10 |"
    assert "| two hop | - | - | 0 |" in lines
    assert len(lines) == 2 + len(QUESTION_KINDS)
    assert {kind for *_, kind in examiner.asked} == set(QUESTION_KINDS)


def test_a_scarce_kind_is_looked_for_in_more_worlds() -> None:
    class Scarce(Fake):
        def exact_match(self, pages: int, worlds: Sequence[int], *rest: Any, **options: Any) -> Iterator[Outcome]:
            yield from super().exact_match(pages, worlds[::10], *rest, **options)

    [table] = tables(Scarce(), ["kinds"], questions=10)
    assert table.splitlines()[3].endswith("| 10 |")


def test_prompts() -> None:
    examiner = Fake()
    [table] = tables(examiner, ["prompts"], questions=40)
    lines = table.splitlines()
    assert lines[0] == "| prompt, 4 pages at 120 DPI | page caches, native | questions |"
    assert lines[2] == "| `bare` | .50 (.00-1.00) | 10 |"
    assert [styles for *_, styles, _ in examiner.asked] == [(style,) for style in STYLES]


def test_tables_come_in_one_order() -> None:
    heads = [table.split(" | ")[0] for table in tables(Fake(), list(reversed(TABLES)), questions=5)]
    assert heads == ["| resolution", "| pages", "| kind, 4 pages at 120 DPI", "| prompt, 4 pages at 120 DPI"]


def test_results_are_continued(tmp_path: Path) -> None:
    path, told = tmp_path / "results.jsonl", []
    first = tables(Fake(), ["letters", "pages"], pages=(1,), results=path, progress=told)
    assert len(told) == 3
    assert all(line.startswith("measuring ") for line in told)
    assert len(path.read_text(encoding="utf-8").splitlines()) == 3
    examiner, again = Fake(), []
    assert tables(examiner, ["letters", "pages"], pages=(1, 2), results=path, progress=again)[:1] == first[:1]
    assert [pages for pages, *_ in examiner.asked] == [2]
    assert len(again) == 1
    assert len(path.read_text(encoding="utf-8").splitlines()) == 4


def test_every_answer_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    tables(Fake(), ["pages"], pages=(1,), questions=5, results=path)
    [line] = path.read_text(encoding="utf-8").splitlines()
    answers = json.loads(line)["answers"]
    assert len(answers) == 5 * 2 * len(METHODS)
    assert Outcome(**answers[0]) == Outcome(0, 1, "full", "low", "bare", "fact", "0?", "a", "a")


def test_an_interruption_loses_the_cell_that_was_being_measured_only(tmp_path: Path) -> None:
    path, examiner = tmp_path / "results.jsonl", Fake()
    measured = measure(examiner, ["letters", "pages"], [1], 5, path, lambda text: None)  # type: ignore[arg-type]
    next(measured)
    measured.close()
    again = Fake()
    tables(again, ["letters", "pages"], pages=(1,), questions=5, results=path)
    assert [first for first, *_ in again.asked] == [1]


def test_another_model_and_another_number_of_questions_are_measured_anew(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    tables(Fake(), ["pages"], pages=(1,), results=path)
    for examiner, questions in ((Fake("two"), 20), (Fake(), 40)):
        tables(examiner, ["pages"], pages=(1,), questions=questions, results=path)
        assert len(examiner.asked) == 1
    same = Fake()
    tables(same, ["pages"], pages=(1,), results=path)
    assert not same.asked


@pytest.mark.parametrize(
    "content",
    [
        b"no json\n",
        b"my notes",
        b"[1]\n",
        b'{"model": "one"}\n',
        b'{"model": "one"}',
        b'{"model": "one", "precious": 1',
        b'{"model": "one", "cell": "x"}\n',
        b'"\xe9"\n',
    ],
    ids=str,
)
def test_a_file_of_something_else_is_refused_and_left_alone(content: bytes, tmp_path: Path) -> None:
    path, examiner = tmp_path / "results.jsonl", Fake()
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"cannot keep the results of `qvpic reader eval` .*; name another file"):
        tables(examiner, ["letters"], results=path)
    assert not examiner.asked
    assert path.read_bytes() == content


@pytest.mark.parametrize("kept", [1, 8, 13, 20, 30, -20, -1])
def test_a_line_that_was_cut_short_is_measured_again(kept: int, tmp_path: Path) -> None:
    """Killed while it was written."""
    path = tmp_path / "results.jsonl"
    first = tables(Fake(), ["letters"], results=path)
    whole = path.read_bytes()
    *others, last = whole.splitlines(keepends=True)
    path.write_bytes(b"".join(others) + last[:kept])
    examiner = Fake()
    assert tables(examiner, ["letters"], results=path) == first
    assert len(examiner.asked) == 1
    assert path.read_bytes() == whole


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    examiner = Fake()
    for path in (tmp_path, tmp_path / "none" / "results.jsonl"):
        with pytest.raises(ConfigError, match="name another file"):
            tables(examiner, ["letters"], results=path)
    assert not examiner.asked


def test_damaged_answers_are_named(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    tables(Fake(), ["pages"], pages=(1,), results=path)
    entry = json.loads(path.read_text())
    entry["answers"][0]["foo"] = 1
    path.write_text(json.dumps(entry) + "\n")
    with pytest.raises(ConfigError, match="are damaged"):
        tables(Fake(), ["pages"], pages=(1,), results=path)
