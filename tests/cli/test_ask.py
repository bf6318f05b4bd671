"""``qvpic ask``: text for people, JSON for programs, a trace, and answers that survive damage."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Run

QUESTION, ANSWER = "What is the badge code of Omar Reyes?", "TB-209"
ANSWER_KEYS = [
    "answer",
    "reasoning",
    "finish_reason",
    "pages",
    "dropped",
    "compiled",
    "note",
    "timing",
    "tiers",
    "usage",
]
PAGE = ["page_id", "source", "number", "dpi", "score", "rank", "promoted", "tokens"]
TIMING = ["embed", "search", "route", "load", "assemble", "prefill", "ttft", "decode", "total"]
USAGE = ["context_tokens", "query_tokens", "output_tokens", "kv_bytes"]


def test_the_answer_alone_is_on_standard_output(run: Run, demo_bank: Path) -> None:
    result = run("ask", QUESTION, "--bank", demo_bank, "--top-k", 3)
    assert (result.code, result.out) == (0, f"{ANSWER}\n")
    *pages, times = result.err.splitlines()
    assert len(pages) == 3
    assert pages[0].split() == ["120", "DPI", "score", "0.762", "badges.txt,", "page", "1"]
    assert times.startswith("first token after ")


def test_json(run: Run, demo_bank: Path) -> None:
    found = run("ask", QUESTION, "--bank", demo_bank, "--top-k", 5, "--budget", 2, "--json").json
    assert list(found) == ANSWER_KEYS
    assert (found["answer"], found["finish_reason"], found["reasoning"]) == (ANSWER, "stop", "")
    assert (found["dropped"], found["compiled"], found["note"]) == ([], [], "")
    pages = found["pages"]
    assert [list(page) for page in pages] == [PAGE] * 5
    assert [page["rank"] for page in pages] == [0, 1, 2, 3, 4]
    assert [page["score"] for page in pages] == sorted((page["score"] for page in pages), reverse=True)
    assert [page["promoted"] for page in pages] == [page["dpi"] == 120 for page in pages]
    assert 1 <= sum(page["promoted"] for page in pages) <= 2
    timing, usage = found["timing"], found["usage"]
    assert list(timing) == TIMING
    assert 0 < timing["ttft"] <= timing["total"]
    assert sum(timing[name] for name in TIMING[:6]) == pytest.approx(timing["ttft"])
    assert list(usage) == USAGE
    assert usage["context_tokens"] > sum(page["tokens"] for page in pages)
    assert usage["kv_bytes"] > 0


def test_a_terminal_gets_the_answer_in_pieces(run: Run, demo_bank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda stream: stream is sys.stdout)
    result = run("ask", QUESTION, "--bank", demo_bank)
    assert (result.code, result.out) == (0, f"{ANSWER}\n")


def test_generation_options(run: Run, demo_bank: Path) -> None:
    found = run("ask", QUESTION, "--bank", demo_bank, "--json", "--max-new-tokens", 2).json
    assert (found["finish_reason"], found["usage"]["output_tokens"]) == ("length", 2)
    assert "cut off after 2 tokens" in run("ask", QUESTION, "--bank", demo_bank, "--max-new-tokens", 2).err
    found = run("ask", QUESTION, "--bank", demo_bank, "--json", "--stop", "2").json
    assert (found["answer"], found["finish_reason"]) == ("TB-", "stop")


def test_what_is_printed_is_unaltered(run: Run, bank: Path, tmp_path: Path) -> None:
    """No emoji for :key:, no markup, no control of the layout by what a document is called."""
    source = tmp_path / "[bold] :key:.txt"
    source.write_text("The desk room of Omar Reyes is B214.", encoding="utf-8")
    assert run("ingest", source, "--bank", bank).code == 0
    result = run("ask", "What is the desk room of Omar Reyes?", "--bank", bank, "--top-k", 1)
    assert f"{source.as_posix()}, page 1" in result.err


def test_a_token_budget(run: Run, demo_bank: Path) -> None:
    options = ("--bank", demo_bank, "--alpha", 1, "--json")
    none = run("ask", QUESTION, *options, "--token-budget", 0).json["usage"]["context_tokens"]
    some = run("ask", QUESTION, *options, "--token-budget", 100).json
    assert 0 < some["usage"]["context_tokens"] - none <= 100
    assert any(page["promoted"] for page in some["pages"])


@pytest.mark.parametrize("question", ["", " ", "\n\t"])
def test_an_empty_question(run: Run, demo_bank: Path, question: str) -> None:
    result = run("ask", question, "--bank", demo_bank)
    assert (result.code, result.out) == (2, "")
    assert result.error == "The question is empty; ask something."


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--top-k", 0), "top_k"),
        (("--alpha", 1.5), "alpha"),
        (("--budget", -1), "budget"),
        (("--token-budget", -1), "token_budget"),
        (("--router", "sparse"), "router must be one of dense, hybrid"),
        (("--router", "hybrid"), "The embedder 'demo' has no lexical and multi-vector heads"),
        (("--max-new-tokens", 0), "max_new_tokens"),
        (("--temperature", -1), "temperature"),
        (("--max-new-tokens", 10**5), "lower max_new_tokens"),
        (("--device", "abacus"), "abacus"),
        (("--model", "/nowhere/at/all"), "/nowhere/at/all"),
    ],
)
def test_a_wrong_setting(run: Run, demo_bank: Path, options: tuple[object, ...], words: str) -> None:
    result = run("ask", QUESTION, "--bank", demo_bank, *options)
    assert (result.code, result.out) == (2, "")
    assert words in result.error


def test_an_empty_bank_and_an_empty_namespace(run: Run, bank: Path) -> None:
    result = run("ask", QUESTION, "--bank", bank, "--namespace", "other")
    assert (result.code, result.out) == (2, "")
    assert "holds no pages in namespace 'other'; run: qvpic ingest PATH --bank" in result.error
    names = {page["source"] for page in run("ask", QUESTION, "--bank", bank, "--json", "--top-k", 50).json["pages"]}
    assert run("bank", "remove", *sorted(names), "--bank", bank).code == 0
    result = run("ask", QUESTION, "--bank", bank)
    assert (result.code, result.out) == (2, "")
    assert "holds no pages; run: qvpic ingest" in result.error


def test_another_model_than_the_banks(run: Run, demo_bank: Path, tiny_folder: Callable[..., Path]) -> None:
    result = run("ask", QUESTION, "--bank", demo_bank, "--model", tiny_folder("qwen2_vl"))
    assert (result.code, result.out) == (2, "")
    assert "model" in result.error


def test_another_family_from_ingest_to_json(
    run: Run, note: Path, tmp_path: Path, tiny_folder: Callable[..., Path]
) -> None:
    model = ("--model", tiny_folder("qwen2_5_vl"), "--embedder", "demo", "--profile", "demo", "--dtype", "float32")
    assert run("ingest", note, "--bank", tmp_path / "bank", *model).code == 0
    found = run("ask", QUESTION, "--bank", tmp_path / "bank", "--json", "--max-new-tokens", 4).json
    assert list(found) == ANSWER_KEYS
    assert len(found["pages"]) == 1


def test_a_damaged_block_is_found_and_answered_around(run: Run, bank: Path) -> None:
    for path in (bank / "blocks").rglob("*.safetensors"):
        data = bytearray(path.read_bytes())
        data[-100] ^= 0xFF
        path.write_bytes(data)
    result = run("bank", "verify", "--bank", bank)
    assert (result.code, result.err) == (1, "")
    assert all("is damaged" in line for line in result.out.splitlines()[:-1])
    assert result.out.endswith("26 problems found.\n")
    result = run("bank", "verify", "--bank", bank, "--json")
    assert result.code == 1
    assert {problem["kind"] for problem in json.loads(result.out)} == {"quarantined"}
    found = run("ask", QUESTION, "--bank", bank, "--json", "--top-k", 3).json
    assert found["answer"] == ANSWER
    assert len(found["compiled"]) == 3
    assert list(found["timing"]) == [*TIMING, "compile"]
    again = run("ask", QUESTION, "--bank", bank, "--json", "--top-k", 3).json  # and it was mended on the way
    assert (again["answer"], again["compiled"]) == (ANSWER, [])
    assert run("bank", "verify", "--bank", bank).out.endswith("23 problems found.\n")


def test_a_lost_index_is_made_again(run: Run, bank: Path) -> None:
    for path in (bank / "index").iterdir():
        path.write_bytes(b"junk")
    assert run("ask", QUESTION, "--bank", bank).out == f"{ANSWER}\n"


def test_a_trace(run: Run, demo_bank: Path, tmp_path: Path) -> None:
    result = run("ask", QUESTION, "--bank", demo_bank, "--top-k", 2, "--trace", tmp_path / "t.html")
    assert (result.code, result.out) == (0, f"{ANSWER}\n")
    assert result.err.endswith(f"The trace is in {tmp_path / 't.html'}\n")
    text = (tmp_path / "t.html").read_text(encoding="utf-8")
    assert text.count("<img ") == 2
    found = run("ask", QUESTION, "--bank", demo_bank, "--top-k", 2, "--trace", tmp_path / "u.html", "--json").json
    assert found["answer"] == ANSWER
    assert (tmp_path / "u.html").exists()


def test_a_trace_that_cannot_be_written(run: Run, demo_bank: Path, tmp_path: Path) -> None:
    result = run("ask", QUESTION, "--bank", demo_bank, "--trace", tmp_path / "none" / "t.html")
    assert (result.code, result.out) == (2, "")
    assert "There is no folder" in result.error
    result = run("ask", QUESTION, "--bank", demo_bank, "--trace", tmp_path, "--json")
    assert result.code == 2
    assert "Is a directory" in result.error
    assert json.loads(result.out)["answer"] == ANSWER  # the answer is not lost with its trace
