"""One's own questions: files read strictly, pages found as the engine finds them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from qvpic_rag.errors import ConfigError, DocumentError, InputError
from qvpic_rag.evaluation.records import Example
from qvpic_rag.evaluation.suites import open_suite
from tests.evaluation.readers import WordCounts, Words

TEXTS = {
    "cities/rome.txt": "Ada lives in Rome. " + "Filler of the page. " * 4 + "Rome has seven hills and Ada climbs them.",
    "cities/oslo.md": "Ben lives in Oslo.",
    "cities/same.txt": "Ben lives in Oslo.",
    "table.bin": "\0",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in TEXTS.items():
        path = tmp_path / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def examples(asked: str, name: str = "asked.jsonl", **options: Any) -> list[Example]:
    Path(name).write_text(asked, encoding="utf-8")
    suite = open_suite("folder", **{"questions": name, "documents": ["docs"], **options})
    return list(suite.examples(Words()))


def objects(*values: dict[str, Any]) -> str:
    return "\n\n".join(map(json.dumps, values))


def test_questions_get_their_nearest_pages(folder: Path) -> None:
    first, second = examples(
        objects(
            {"question": "Where does Ben live?", "answer": "Oslo", "evidence": "oslo.md"},
            {"question": "How many hills has Rome?", "answers": ["seven", "7"]},
        )
    )
    assert (first.id, first.group, first.kind) == ("q1", "q1", "")
    assert (first.before, first.after, first.query) == ("", "Where does Ben live?", "Where does Ben live?")
    assert (first.answers, second.answers) == (("Oslo",), ("seven", "7"))
    assert (first.scoring, first.tags, first.cut) == ("plain", (), False)
    # Three pages: two of Rome, and one that two documents hold and that is there once, as in a bank.
    assert len(first.pages) == len(second.pages) == 3
    assert first.pages[0].text == "Ben lives in Oslo."
    assert first.evidence == (0,)
    assert second.pages[0].text == "Rome has seven hills and Ada climbs them."
    assert second.evidence is None
    for example in (first, second):
        vectors = WordCounts().encode([page.text for page in example.pages])
        scores = (vectors @ WordCounts().encode([example.query])[0]).tolist()
        assert scores == sorted(scores, reverse=True)


def test_top_k(folder: Path) -> None:
    asked = objects({"question": "Where does Ada live in Rome?", "answer": "Rome", "evidence": "docs/cities/rome.txt"})
    every, one = examples(asked)[0], examples(asked, top_k=1)[0]
    assert one.pages == every.pages[:1]
    assert one.evidence == (0,)
    assert [every.pages[place].source for place in every.evidence or ()] == ["docs/cities/rome.txt"] * 2
    other = examples(objects({"question": "Ben lives in Oslo", "answer": "x", "evidence": "rome.txt"}), top_k=1)[0]
    assert (other.evidence, other.missed) == ((), True)


def test_evidence_that_retrieval_missed_is_known(folder: Path) -> None:
    asked = {"question": "Ben lives in Oslo", "answer": "x"}
    evidences: list[tuple[Any, bool, bool]] = [
        (None, False, False),
        ("oslo.md", False, False),
        ("rome.txt", True, False),
        (["rome.txt", "oslo.md"], True, False),
        (["same.txt", "oslo.md"], False, False),
    ]
    for evidence, missed, all_of_it in evidences:
        for top_k in (1, 8):
            [found] = examples(objects({**asked, "evidence": evidence}), top_k=top_k)
            assert (found.missed, found.evidence_all) == (missed and top_k == 1, all_of_it)
            assert (found.evidence is None) == (evidence is None)


def test_an_evidence_name_that_fits_several_documents_is_refused(folder: Path) -> None:
    for name, text in (("x/n.txt", "One."), ("y/n.txt", "Two."), ("n.txt", "Three.")):
        path = Path("docs/deep") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def asked(evidence: Any) -> str:
        return "\n" + objects({"question": "Who?", "answer": "Ada", "evidence": evidence})

    for evidence in ("n.txt", ["x/n.txt", "n.txt"]):
        with pytest.raises(InputError) as caught:
            examples(asked(evidence))
        assert str(caught.value).startswith("asked.jsonl, line 2: 'n.txt' may be 'docs/deep/n.txt' or 'docs/deep/x/")
        assert "docs/deep/y/n.txt" in str(caught.value)
    # More of the path tells them apart; a whole path is one document's, whatever others end in.
    for evidence in ("x/n.txt", "deep/n.txt", "docs/deep/n.txt", "./docs/deep/y/n.txt"):
        assert not examples(asked(evidence))[0].missed
        assert not examples(asked(evidence), documents=["docs", "docs/deep"])[0].missed


def test_evidence_is_any_document_that_holds_the_page(folder: Path) -> None:
    for evidence in ("same.txt", "cities/oslo.md", ["oslo.md", "same.txt"]):
        asked = {"question": "Where does Ben live?", "answer": "Oslo", "evidence": evidence}
        assert examples(objects(asked))[0].evidence == (0,)


def test_csv(folder: Path) -> None:
    rows = (
        'question,answer,evidence\n"Where, exactly, does Ben live?",Oslo | the capital,oslo.md|same.txt\n\nWho?,Ada,\n'
    )
    first, second = examples(rows, "asked.csv")
    assert first.query == "Where, exactly, does Ben live?"
    assert first.answers == ("Oslo", "the capital")
    assert (first.evidence, second.evidence) == ((0,), None)
    assert examples("\ufeffquestion;answers\n".replace(";", ",") + "Who?,Ada|Ben\n", "asked.csv")[0].answers == (
        "Ada",
        "Ben",
    )


def test_a_long_cell_is_read(folder: Path) -> None:
    limit = csv.field_size_limit()
    question = "Who? " * 100_000
    assert examples(f'question,answer\n"{question}",Ada\n', "asked.csv")[0].query == question.strip()
    assert csv.field_size_limit() == limit
    for wrong in (f'question,answer\n"{question},Ada\n', f'question\n"{question}",Ada\n'):
        with pytest.raises(InputError):
            examples(wrong, "asked.csv")
        assert csv.field_size_limit() == limit


def test_settings_know_questions_and_documents(folder: Path) -> None:
    def settings() -> Any:
        return open_suite("folder", questions="asked.jsonl", documents="docs").settings

    Path("asked.jsonl").write_text(objects({"question": "Who?", "answer": "Ada"}), encoding="utf-8")
    first = settings()
    assert first["documents"] == ["docs"]
    assert set(first["digests"]) == {"docs/cities/rome.txt", "docs/cities/oslo.md", "docs/cities/same.txt"}
    Path("docs/cities/oslo.md").write_text("Ben lives in Bergen.", encoding="utf-8")
    second = settings()
    assert first["digests"] != second["digests"]
    Path("asked.jsonl").write_text(objects({"question": "Who else?", "answer": "Ada"}), encoding="utf-8")
    assert settings()["sha256"] != second["sha256"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("", "asked.jsonl holds no question"),
        ("{", "asked.jsonl, line 1: this is no JSON object"),
        ('{"question": "Who?"}', "asked.jsonl, line 1: give either 'answer' or 'answers'"),
        ('{"question": "Who?", "answer": "a", "answers": ["b"]}', "line 1: give either 'answer' or 'answers'"),
        ('\n{"answer": "a"}', "asked.jsonl, line 2: the field 'question' is missing"),
        ('{"question": " ", "answer": "a"}', "line 1: 'question' must be a text that is not empty, not ' '"),
        ('{"question": "Who?", "answer": 7}', "line 1: 'answer' must be a text that is not empty, not 7"),
        ('{"question": "Who?", "answers": ["a", ""]}', "line 1: 'answers' must hold one text at least"),
        ('{"question": "Who?", "answer": "a", "evidnce": "x"}', "line 1: the field 'evidnce' is unknown; there are"),
        ('{"question": "Who?", "answer": "a", "evidence": "x.md"}', "line 1: no document is called 'x.md'"),
        ('{"question": "Who?", "answer": "a", "answer": "b"}', "line 1: .*the key 'answer' stands twice in an object"),
        ('\n{"question": ' + "[" * 100_000, "asked.jsonl, line 2: .*nested too deeply"),
        ('{"question": "Who?", "answer": 1e999}', "line 1: .*1e999 is too large"),
        ('{"question": "Who?", "answer": "a", "evidence": "slo.md"}', "line 1: no document is called 'slo.md'"),
    ],
)
def test_wrong_questions(folder: Path, asked: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        examples(asked)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("", "asked.csv holds no question"),
        ("Who?,Ada\n", "asked.csv, line 1: the header must name the columns"),
        ("question,question\n", "asked.csv, line 1: the header must name the columns"),
        ("question,answer\nWho?\n", "asked.csv, line 2: there are 1 cells for 2 columns"),
        ("question,answer\nWho?,\n", "asked.csv, line 2: give either 'answer' or 'answers'"),
        ("question,answer\nWho?,Ada||Ben\n", "asked.csv, line 2: 'answer' must hold one text at least"),
        ("question,answer,id\nWho?,Ada,7\n", "asked.csv, line 2: the field 'id' is unknown"),
        ('question,answer\n"Who?,Ada\n', "asked.csv, line 2: this is no CSV"),
    ],
)
def test_wrong_tables(folder: Path, asked: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        examples(asked, "asked.csv")


def test_what_cannot_be_asked(folder: Path) -> None:
    asked = objects({"question": "Who?", "answer": "Ada"})
    with pytest.raises(InputError, match=r"'none.jsonl' cannot be read \(No such file or directory\)"):
        list(open_suite("folder", questions="none.jsonl", documents=["docs"]).examples(Words()))
    with pytest.raises(InputError, match=r"Questions come in a .jsonl or .csv file, not 'asked.txt'"):
        examples(asked, "asked.txt")
    with pytest.raises(DocumentError, match="'nowhere' does not exist"):
        examples(asked, documents=["nowhere"])
    with pytest.raises(ConfigError, match="finds pages by embedding; give an embedder"):
        list(open_suite("folder", questions="asked.jsonl", documents="docs").examples(Words(embedder=None)))
    for documents in ([], ["-"]):
        with pytest.raises(ConfigError, match=r"folder.documents must be files"):
            examples(asked, documents=documents)
    with pytest.raises(ConfigError, match=r"folder.top_k must be a whole number from 1"):
        examples(asked, top_k=0)
