"""What people get wrong, and what the world throws in: one sentence, and the other documents are stored."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qvpic_rag import QVPIC, Document, Message
from qvpic_rag.errors import ConfigError, InputError
from qvpic_rag.pipeline.stream import AnswerStream
from qvpic_rag.records import Answer, Route, Timing, Usage

BADGE = "What is the badge code of Omar Reyes?"


@pytest.mark.parametrize(
    "documents",
    [None, 5, [{"text": "a"}], [Document(None, "a")], [Document("a", None)], [Document("a", Path("b"))],
     [Document("a", "")], "The badge code\nof Marta", [b"bytes"]],
    ids=repr,
)  # fmt: skip
def test_things_that_are_no_documents(open_rag: Callable[..., QVPIC], documents: Any) -> None:
    with pytest.raises(InputError, match=r"\.$"):
        open_rag().ingest(documents, progress=False)


def test_one_bad_document_does_not_stop_the_others(open_rag: Callable[..., QVPIC], tmp_path: Path) -> None:
    deep: dict[str, Any] = {}
    for _ in range(20_000):
        deep = {"a": deep}
    (tmp_path / "bad.html").write_text("<p>&#" + "9" * 5000 + ";</p>")
    rag = open_rag()
    report = rag.ingest(
        [
            Document("good one", "first"),
            Document("nan", "nan", {"score": float("nan")}),
            Document("deep", "deep", deep),
            Document("set", "set", {"tags": {1, 2}}),
            tmp_path / "bad.html",
            Document("good two", "last"),
        ],
        progress=False,
    )
    assert report.added == ("first", "last")
    assert [Path(failure.source).name for failure in report.failed] == ["nan", "deep", "set", "bad.html"]
    assert rag.bank.verify() == []


@pytest.mark.parametrize(
    "options",
    [{"history": [("user", "x")]}, {"history": [{"role": "user"}]}, {"history": [Message("user", None)]},  # type: ignore[arg-type]
     {"system": 5}, {"stop": None}, {"stop": 5}, {"temperature": 1e-38}, {"temperature": -1}],
    ids=repr,
)  # fmt: skip
def test_wrong_kinds_of_options(rag: QVPIC, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"\.$"):
        rag.ask(BADGE, **options)


@pytest.mark.parametrize("options", [{"dpis": 5}, {"profile": 5}, {"device": "meta"}], ids=repr)
def test_wrong_kinds_of_settings(demo_bank: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"\.$"):
        QVPIC.open(demo_bank, **options)


def test_text_that_is_not_unicode(rag: QVPIC) -> None:
    answer = rag.ask("What is \udcff?", system="\udcfe", history=[Message("user", "\udcfd")], max_new_tokens=2)
    assert answer.usage.output_tokens >= 1


def test_two_engines_sample_as_one_does(open_rag: Callable[..., QVPIC]) -> None:
    engines = [open_rag(), open_rag()]
    options: dict[str, Any] = {"max_new_tokens": 12, "temperature": 3.0, "seed": 3}
    expected = engines[0].ask(BADGE, **options).text
    texts: list[str] = []
    threads = [
        threading.Thread(target=lambda e=engine: texts.extend(e.ask(BADGE, **options).text for _ in range(5)))
        for engine in engines
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [expected] * 10


def test_a_bank_that_may_only_be_read_answers(
    open_rag: Callable[..., QVPIC], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from qvpic_rag.bank.index_db import Database

    def refuse(*arguments: object) -> None:
        raise AssertionError("an existing bank must not be created")

    monkeypatch.setattr(Database, "create", refuse)
    assert open_rag().ask(BADGE, max_new_tokens=16).text == "TB-209"


def test_a_folder_called_demo_does_not_hide_the_bundled_reader(
    demo_bank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    with QVPIC.from_pretrained("demo", "bank") as rag:
        assert rag.bank.recipe.model == "demo"


def test_a_script_that_ends_while_an_answer_is_written_ends_well(demo_bank: Path) -> None:
    script = (
        "import sys; from qvpic_rag import QVPIC\n"
        f"rag = QVPIC.open({str(demo_bank)!r})\n"
        f"for piece in rag.stream({BADGE!r}, temperature=50.0, seed=23, max_new_tokens=2000):\n"
        "    break\n"
        "sys.exit(7)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, "terminate" in done.stderr) == (7, False)


def test_two_threads_may_read_one_stream() -> None:
    def work(on_piece: Callable[[str], None], cancelled: threading.Event) -> Answer:
        for piece in "abcdef":
            on_piece(piece)
        return Answer("abcdef", "stop", Route(), Timing(), Usage(0, 0, 6, 0))

    stream, pieces = AnswerStream(work), []
    threads = [threading.Thread(target=lambda: pieces.extend(stream)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(pieces) == list("abcdef")


def test_blocks_taken_by_another_process_are_compiled_again_before_the_document_is_stored(
    open_rag: Callable[..., QVPIC], monkeypatch: pytest.MonkeyPatch
) -> None:
    rag, other = open_rag(), open_rag()
    encode = rag.engine.embedder.encode

    def collect_meanwhile(texts: Any, **options: Any) -> Any:
        assert other.bank.gc(grace_s=0).blocks > 0
        return encode(texts, **options)

    monkeypatch.setattr(rag.engine.embedder, "encode", collect_meanwhile)
    report = rag.ingest(Document("The desk room of Omar Reyes is B214.", "desk"), progress=False)
    assert (report.added, report.compiled) == (("desk",), 4)
    [page] = rag.bank.document_pages("desk")
    assert all(rag.bank.keep_blocks([rag.engine.key(page, dpi) for dpi in (72, 120)]))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("model", None),
        ("model", " "),
        ("model", "a\0b"),
        ("bank", None),
        ("bank", ""),
        ("bank", "a\0b"),
        ("embedder", 5),
        ("system_prompt", 5),
        ("dtype", 16),
        ("revision", 1),
    ],
)
def test_arguments_that_are_no_names(option: str, value: Any, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"model": "demo", "bank": tmp_path / "bank", option: value}
    with pytest.raises(ConfigError, match=option):
        QVPIC.from_pretrained(**arguments)
    assert list(tmp_path.iterdir()) == []
