"""LongBench: its files, its prompts, its rules; on small files of our own."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from qvpic_rag.config import RenderProfile
from qvpic_rag.errors import ConfigError, InputError
from qvpic_rag.evaluation.records import Example
from qvpic_rag.evaluation.suites import open_suite
from qvpic_rag.evaluation.suites.longbench import LONGBENCH_TASKS, longbench_prompts
from tests.evaluation.readers import Words

TRIVIA = "Passage:\nQuestion:\nnone\nAda {was} born in Rome.\nQuestion:\nWhere was Ada born?\nAnswer:\n"


def row(number: int, **values: Any) -> dict[str, Any]:
    """As LongBench writes them."""
    return {
        "input": f"Who is number {number}?",
        "context": f" {number} one two three four five six {{input}} {{context}}\n\nseven eight ",
        "answers": [f"Ada {number}", "Ada"],
        "length": 10,
        "dataset": "",
        "language": "en",
        "all_classes": None,
        "_id": f"id{number}",
        **values,
    }


def write(folder: Path, task: str, rows: list[dict[str, Any]]) -> None:
    lines = [json.dumps(each, ensure_ascii=False) for each in rows]
    (folder / f"{task}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three questions a task; triviaqa's hold a passage."""
    for task in LONGBENCH_TASKS:
        more = {"input": TRIVIA} if task == "triviaqa" else {}
        write(tmp_path, task, [row(number, **more) for number in range(3)])
    return tmp_path


def examples(reader: Words | None = None, **options: Any) -> list[Example]:
    return list(open_suite("longbench", **options).examples(reader or Words()))


def test_all_tasks_in_order(data: Path) -> None:
    reader = Words(size=3)
    found = examples(reader, data=str(data))
    assert [each.id for each in found] == [f"{task}-id{number}" for task in LONGBENCH_TASKS for number in range(3)]
    assert [each.kind for each in found[::3]] == list(LONGBENCH_TASKS)
    lengths = {each.kind: each.max_new_tokens for each in found}
    assert lengths == {**dict.fromkeys(LONGBENCH_TASKS, 32), "narrativeqa": 128, "multifieldqa_en": 64}
    literal = {source.split("-")[0] for source, drawn in reader.asked if drawn}
    assert literal == {"hotpotqa", "narrativeqa", "triviaqa"}
    for example in found:
        first_line = example.kind == "triviaqa"
        assert example.scoring == ("longbench-first-line" if first_line else "longbench")
        assert example.query == ("Where was Ada born?" if first_line else f"Who is number {example.id[-1]}?")
        assert example.answers == (f"Ada {example.id[-1]}", "Ada")
        assert (example.evidence, example.cut, example.tags) == (None, False, ())
        assert [page.number for page in example.pages] == list(range(len(example.pages)))
        assert " ".join(page.text for page in example.pages).startswith(f"{example.id[-1]} one two")


def test_glyph_asks_after_the_pages(data: Path) -> None:
    [first, *_] = examples(data=str(data), tasks=["narrativeqa"])
    assert first.before == ""
    assert first.after.startswith(
        "You are given a story, which can be either a novel or a movie script, and a question"
    )
    assert "Story is shown in the images." in first.after
    assert first.after.endswith("Question: Who is number 0?\n\nAnswer:")
    [trivia, *_] = examples(data=str(data), tasks=["triviaqa"])
    # Braces of the data stay, and the whole is stripped.
    assert trivia.after == longbench_prompts()["glyph"]["triviaqa"]["after"].partition("{")[0] + TRIVIA.strip()


def test_longbench_asks_around_the_pages(data: Path) -> None:
    [first, *_] = examples(data=str(data), tasks=["hotpotqa"], prompts="longbench")
    assert first.before.endswith("words.\n\nThe following are given passages.\n")
    assert first.after.startswith("\n\nAnswer the question based on the given passages.")
    assert first.after.endswith("\n\nQuestion: Who is number 0?\nAnswer:")
    [trivia, *_] = examples(data=str(data), tasks=["triviaqa"], prompts="longbench")
    assert trivia.after == f"\n\n{TRIVIA}"


def test_every_prompt_has_its_question_once() -> None:
    prompts = longbench_prompts()
    assert set(prompts) == {"glyph", "longbench"}
    for tasks in prompts.values():
        assert tuple(tasks) == LONGBENCH_TASKS
        for prompt in tasks.values():
            assert set(prompt) == {"before", "after"}
            assert "{input}" not in prompt["before"]
            assert prompt["after"].count("{input}") == 1
            assert "{context}" not in prompt["before"] + prompt["after"]
    assert all(prompt["before"] == "" for prompt in prompts["glyph"].values())
    assert all(prompt["before"] for prompt in prompts["longbench"].values())


def test_a_limit_takes_the_first(data: Path) -> None:
    found = examples(data=str(data), limit=2, tasks=["musique", "2wikimqa"])
    assert [each.id for each in found] == ["musique-id0", "musique-id1", "2wikimqa-id0", "2wikimqa-id1"]


def test_long_contexts_lose_their_middle(data: Path) -> None:
    [first, *_] = examples(data=str(data), tasks=["musique"], max_context=5)
    assert first.cut
    assert "".join(page.text for page in first.pages) == "0 one {input} {context} seven eight"
    assert not any(each.cut for each in examples(data=str(data), tasks=["musique"], max_context=50))


def test_questions_about_one_context_are_a_group(tmp_path: Path) -> None:
    write(tmp_path, "narrativeqa", [row(0), row(1, context="Other."), row(2, context=row(0)["context"])])
    reader = Words()
    found = examples(reader, data=str(tmp_path), tasks=["narrativeqa"])
    assert [each.id for each in found] == ["narrativeqa-id0", "narrativeqa-id2", "narrativeqa-id1"]
    assert found[0].group == found[1].group != found[2].group
    assert found[0].pages == found[1].pages
    assert len(reader.asked) == 2


def test_settings_know_the_data(data: Path) -> None:
    first = open_suite("longbench", data=str(data), tasks=["musique"]).settings
    assert first["data"] == data.name  # where it lies is no part of what was measured
    write(data, "musique", [row(9)])
    assert open_suite("longbench", data=str(data), tasks=["musique"]).settings != first


def test_from_the_hub(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One member is read by its full name, and nothing is extracted."""
    archive = tmp_path / "cache" / "data.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("../../escaped.jsonl", "{}")
        file.writestr("data/musique.jsonl", (data / "musique.jsonl").read_bytes())
    asked = []

    def download(repository: str, name: str, **options: Any) -> str:
        asked.append((repository, name, options))
        return str(archive)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    suite = open_suite("longbench", tasks=["musique"])
    assert not asked
    assert list(suite.examples(Words())) == examples(data=str(data), tasks=["musique"])
    assert suite.settings["data"] == "THUDM/LongBench"
    assert suite.settings["sha256"] == open_suite("longbench", data=str(data), tasks=["musique"]).settings["sha256"]
    assert asked == [("THUDM/LongBench", "data.zip", {"repo_type": "dataset"})]
    assert sorted(path.name for path in archive.parent.iterdir()) == ["data.zip"]
    with pytest.raises(InputError, match=r"is no archive with data/triviaqa.jsonl; remove it"):
        list(open_suite("longbench", tasks=["triviaqa"]).examples(Words()))
    archive.write_bytes(b"<html>")
    with pytest.raises(InputError, match=r"is no archive with data/musique.jsonl; remove it"):
        list(open_suite("longbench", tasks=["musique"]).examples(Words()))


def test_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*args: Any, **options: Any) -> str:
        raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    with pytest.raises(
        InputError, match=r"cannot be downloaded \(ConnectionError\); check the network, or give a fold"
    ):
        list(open_suite("longbench").examples(Words()))


@pytest.mark.network
def test_the_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    found = examples(limit=2)
    assert [each.kind for each in found[::2]] == list(LONGBENCH_TASKS)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "musique.jsonl holds no question"),
        ("\n{]\n", "musique.jsonl, line 2: this is no JSON object in UTF-8"),
        ("[]", "musique.jsonl, line 1: a JSON object is needed, not list"),
        ('{"input": "a", "context": "b", "_id": "c"}', "musique.jsonl, line 1: the field 'answers' is missing"),
        (
            '{"input": "a", "context": "b", "_id": "c", "answers": []}',
            "line 1: 'answers' must hold one text at least and none that is empty, not \\[\\]",
        ),
        ('{"input": "a", "context": " ", "_id": "c", "answers": ["d"]}', "line 1: 'context' must be a text that is"),
        ('{"input": 3, "context": "b", "_id": "c", "answers": ["d"]}', "line 1: 'input' must be a text .* not 3"),
        ('{"input": "a", "context": "b", "_id": "c", "answers": ["d"]}\n' * 2, "line 2: the _id 'c' was there before"),
    ],
)
def test_wrong_rows(tmp_path: Path, lines: str, message: str) -> None:
    (tmp_path / "musique.jsonl").write_text(lines, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        examples(data=str(tmp_path), tasks=["musique"])


def test_wrong_bytes(tmp_path: Path) -> None:
    (tmp_path / "musique.jsonl").write_bytes(b'{"input": "\xff"}')
    with pytest.raises(InputError, match="line 1: this is no JSON object in UTF-8"):
        examples(data=str(tmp_path), tasks=["musique"])


def test_nothing_to_show(tmp_path: Path) -> None:
    class Blind(Words):
        def pages(self, text: str, source: str, *, literal: bool = False) -> list[Any]:
            return []

    write(tmp_path, "musique", [row(0)])
    [found] = examples(Blind(), data=str(tmp_path), tasks=["musique"])  # one odd context does not end a run
    assert found.pages == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": ["qasper"]}, "longbench.tasks must be some of 2wikimqa, hotpotqa"),
        ({"tasks": "musique"}, "longbench.tasks must be some of"),
        ({"prompts": "mine"}, "longbench.prompts must be one of glyph, longbench, not 'mine'"),
        ({"limit": 0}, "longbench.limit must be a whole number from 1"),
        ({"max_context": 1.5}, "longbench.max_context must be a whole number from 1"),
        ({"data": "nowhere"}, "There is no folder 'nowhere'; give one with 2wikimqa.jsonl"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_suite("longbench", **options)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"musique.jsonl' cannot be read \(No such file or directory\); check data"):
        examples(data=str(tmp_path), tasks=["musique"])


def test_profiles_for_either_kind_of_newline() -> None:
    """What ``literal`` asks a paginator for."""
    assert RenderProfile.load("glyph").newline == "break"
    assert RenderProfile.load("glyph-literal").newline == "literal"
