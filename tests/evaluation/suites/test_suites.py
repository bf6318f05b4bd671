"""Opening suites by name, and what all of them promise."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from qvpic_rag.errors import ConfigError
from qvpic_rag.evaluation.records import Example
from qvpic_rag.evaluation.scoring import SCORINGS, score
from qvpic_rag.evaluation.suites import SUITES, Suite, open_suite
from tests.evaluation.readers import Words

Open = Callable[[], Suite]


@pytest.fixture(params=SUITES)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens a small suite, the same every time."""
    options: dict[str, Any] = {"pages": [2, 3], "questions": 7}
    if request.param == "longbench":
        row = {"input": "Who?", "context": "Somebody called Ada.", "answers": ["Ada"]}
        lines = [json.dumps({**row, "_id": str(number)}) for number in range(3)]
        (tmp_path / "musique.jsonl").write_text("\n".join(lines), encoding="utf-8")
        options = {"data": str(tmp_path), "tasks": ["musique"]}
    elif request.param == "folder":
        (tmp_path / "ada.txt").write_text("Ada lives in Rome.", encoding="utf-8")
        asked = {"question": "Where does Ada live?", "answer": "Rome", "evidence": "ada.txt"}
        (tmp_path / "asked.jsonl").write_text(json.dumps(asked), encoding="utf-8")
        options = {"questions": str(tmp_path / "asked.jsonl"), "documents": str(tmp_path / "ada.txt")}
    return lambda: open_suite(request.param, **options)


def test_the_same_settings_give_the_same_examples(opened: Open) -> None:
    suite, again = opened(), opened()
    assert suite.name in SUITES
    assert json.loads(json.dumps(suite.settings)) == suite.settings == again.settings
    assert "name" not in suite.settings
    found = list(suite.examples(Words()))
    assert found
    assert list(again.examples(Words())) == list(suite.examples(Words())) == found


def test_examples_are_complete(opened: Open) -> None:
    found = list(opened().examples(Words()))
    assert len({each.id for each in found}) == len(found)
    order = [each.group for each in found]
    assert sum(a != b for a, b in pairwise(order)) == len(set(order)) - 1, "groups are apart"
    for example in found:
        assert Example.from_dict(json.loads(json.dumps(example.to_dict()))) == example
        assert example.pages
        assert example.query in example.after
        assert example.scoring in SCORINGS
        assert score(example.answers[0], example.answers, example.scoring) == (1, 1)
        assert example.evidence is None or all(0 <= place < len(example.pages) for place in example.evidence)


def test_examples_come_one_by_one(opened: Open) -> None:
    """Nothing is made before it is asked for, and a run may end early."""
    reader = Words()
    examples = opened().examples(reader)
    assert not reader.asked
    next(examples)


def test_unknown_suites_and_options() -> None:
    with pytest.raises(ConfigError, match="There is no suite 'squad'; use facts, longbench, folder"):
        open_suite("squad")
    with pytest.raises(ConfigError, match="The suite facts has no option 'page'; its options are pages, questions"):
        open_suite("facts", page=3)
    with pytest.raises(ConfigError, match="The suite folder needs the option 'documents'"):
        open_suite("folder", questions="asked.jsonl")
