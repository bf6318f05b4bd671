"""Questions: right answers from cached pages, what the record says, misses, overflow, odd requests."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from qvpic_rag import QVPIC, Message
from qvpic_rag.baselines import FullPrefill
from qvpic_rag.config import GenerateConfig
from qvpic_rag.errors import (
    BankMismatchError,
    BankNotFoundError,
    ConfigError,
    ContextOverflowError,
    InputError,
    MissingBlockError,
)

BADGE = "What is the badge code of Omar Reyes?"


def test_the_answer_and_its_record(rag: QVPIC) -> None:
    answer = rag.ask(BADGE, max_new_tokens=32)
    assert answer.text == "TB-209"
    assert answer.finish_reason == "stop"
    pages = answer.route.pages
    assert len(pages) == 8
    assert [page.rank for page in pages] == list(range(8))  # request order is retrieval order
    assert [page.score for page in pages] == sorted((page.score for page in pages), reverse=True)
    assert 1 <= sum(page.promoted for page in pages) <= 4
    assert all(page.dpi == (120 if page.promoted else 72) for page in pages)
    prefix = rag.engine.prefix.tokens
    assert answer.usage.context_tokens == prefix + sum(page.tokens for page in pages)
    model = rag.engine.model
    assert answer.usage.kv_bytes == 2 * 4 * model.layers * model.kv_heads * model.head_dim * answer.usage.context_tokens
    assert answer.route.note == ""
    assert answer.route.compiled == answer.route.dropped == ()


def test_timing_adds_up(open_rag: Callable[..., QVPIC]) -> None:
    timing = open_rag(ram_bytes=0).ask(BADGE, max_new_tokens=32).timing
    stages = timing.embed + timing.search + timing.route + timing.load + timing.assemble + timing.prefill
    assert stages == pytest.approx(timing.ttft)
    assert timing.ttft + timing.decode == pytest.approx(timing.total)
    assert timing.compile is None
    assert "compile" not in timing.to_dict()
    assert timing.tiers == {"disk": 8}
    assert min(timing.to_dict().values()) >= 0


def test_one_page_is_full_prefill_through_the_whole_pipeline(rag: QVPIC) -> None:
    answer = rag.ask(BADGE, top_k=1, max_new_tokens=32)
    [page] = answer.route.pages
    picture = rag.page_image(rag.page(page.page_id), page.dpi)
    baseline = FullPrefill(rag.engine.model, rag.engine.template)
    full = baseline.answer([Message("user", BADGE)], [picture], GenerateConfig(max_new_tokens=32))
    assert (answer.text, answer.usage.output_tokens) == (full.text, full.usage.output_tokens)
    assert answer.usage.context_tokens == full.usage.context_tokens
    assert answer.usage.kv_bytes == full.usage.kv_bytes


def test_system_and_history_follow_the_pages_and_recompile_nothing(rag: QVPIC) -> None:
    before = dataclasses.replace(rag.bank.stats(), counters={})
    turns = [Message("user", "What is the library room of Ines Falk?"), Message("assistant", "C17")]
    bare = rag.ask(BADGE, max_new_tokens=8).usage.query_tokens
    for options in ({"system": "Answer with the value only."}, {"history": turns}):
        answer = rag.ask(BADGE, max_new_tokens=8, **options)  # type: ignore[arg-type]
        assert answer.route.compiled == ()
        assert answer.usage.query_tokens > bare + 8
    assert dataclasses.replace(rag.bank.stats(), counters={}) == before


@pytest.mark.parametrize("question", ["", "  \n"])
def test_an_empty_question(rag: QVPIC, question: str) -> None:
    with pytest.raises(InputError, match="empty"):
        rag.ask(question)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"top_k": 0}, ConfigError),
        ({"max_new_tokens": -1}, ConfigError),
        ({"temperature": float("nan")}, ConfigError),
        ({"max_tokens": 5}, ConfigError),
        ({"stop": ("",)}, ConfigError),
        ({"history": [Message("system", "x")]}, InputError),
        ({"history": [Message("assistant", "x")]}, InputError),
        ({"max_new_tokens": 1_000_000}, ContextOverflowError),
    ],
    ids=str,
)
def test_wrong_options(rag: QVPIC, options: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        rag.ask(BADGE, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [{"alpha": 0}, {"alpha": 1.5}, {"budget": -1}, {"top_k": 0}, {"overflow": "ignore"}, {"on_miss": "x"},
     {"dpis": (120, 72)}, {"batch_size": 0}, {"max_context_tokens": 0}, {"profile": "no-such"}, {"dtype": "int4"},
     {"ram_bytes": -1}, {"ram_bytes": 1.5}],
    ids=str,
)  # fmt: skip
def test_wrong_settings(demo_bank: Path, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        QVPIC.open(demo_bank, **options)


def test_budget_and_alpha_decide_resolution_only(open_rag: Callable[..., QVPIC]) -> None:
    low = open_rag(budget=0).ask(BADGE, max_new_tokens=4)
    high = open_rag(budget=99, alpha=1.0).ask(BADGE, max_new_tokens=4)
    assert {page.dpi for page in low.route.pages} == {72}
    assert all(page.promoted == (page.score > 0) for page in high.route.pages)
    assert [page.page_id for page in low.route.pages] == [page.page_id for page in high.route.pages]


def test_what_does_not_fit_is_dropped_lowest_rank_first_and_said(open_rag: Callable[..., QVPIC]) -> None:
    whole = open_rag().ask(BADGE, max_new_tokens=8)
    limit = whole.usage.context_tokens + whole.usage.query_tokens + 8 - 1
    answer = open_rag(max_context_tokens=limit).ask(BADGE, max_new_tokens=8)
    assert answer.route.dropped == (whole.route.pages[-1].page_id,)
    assert answer.route.pages == whole.route.pages[:-1]
    with pytest.raises(ContextOverflowError, match=f"limit is {limit}"):
        open_rag(max_context_tokens=limit, overflow="error").ask(BADGE, max_new_tokens=8)
    enough = open_rag(max_context_tokens=limit + 1, overflow="error").ask(BADGE, max_new_tokens=8)
    assert enough.route.dropped == ()


def test_no_page_fits(open_rag: Callable[..., QVPIC]) -> None:
    answer = open_rag(max_context_tokens=80).ask(BADGE, max_new_tokens=8)
    assert answer.route.pages == ()
    assert len(answer.route.dropped) == 8
    assert "No retrieved page fits" in answer.route.note
    assert answer.usage.kv_bytes == 0


def test_a_bank_without_pages_answers_and_says_so(tmp_path: Path) -> None:
    with QVPIC.from_pretrained("demo", tmp_path / "bank") as rag:
        answer = rag.ask(BADGE, max_new_tokens=4)
    assert answer.route.pages == ()
    assert "without documents" in answer.route.note


def _damage(rag: QVPIC) -> int:
    """Delete one stored block and truncate another; number of files touched."""
    files = sorted((rag.bank.path / "blocks").rglob("*.safetensors"))
    for number, file in enumerate(files):
        if number % 2:
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:-7])
    return len(files)


def test_missing_and_damaged_blocks_are_compiled_on_the_spot(open_rag: Callable[..., QVPIC]) -> None:
    rag = open_rag(ram_bytes=0)
    before = rag.ask(BADGE, max_new_tokens=32)
    _damage(rag)
    during = rag.ask(BADGE, max_new_tokens=32)
    assert during.text == before.text
    assert sorted(during.route.compiled) == sorted(page.page_id for page in before.route.pages)
    assert during.timing.compile is not None
    after = rag.ask(BADGE, max_new_tokens=32)
    assert after.route.compiled == ()
    assert dataclasses.replace(after.route, compiled=during.route.compiled) == during.route


def test_missing_blocks_can_be_an_error(open_rag: Callable[..., QVPIC]) -> None:
    rag = open_rag(on_miss="error")
    _damage(rag)
    with pytest.raises(MissingBlockError, match="ingest the document again"):
        rag.ask(BADGE)


def test_many_threads_one_engine(rag: QVPIC) -> None:
    questions = [BADGE, "What is the library room of Ines Falk?", "What is the parcel price of Tove Brandt?"] * 4
    alone = [rag.ask(question, max_new_tokens=32).text for question in questions]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda q: rag.ask(q, max_new_tokens=32).text, questions)) == alone


def test_another_process_changes_the_bank(open_rag: Callable[..., QVPIC]) -> None:
    reader, writer = open_rag(), open_rag()
    assert "badges.txt" in {page.source for page in reader.ask(BADGE, max_new_tokens=4).route.pages}
    assert writer.remove("badges.txt")
    assert not writer.remove("badges.txt")
    assert "badges.txt" not in {page.source for page in reader.ask(BADGE, max_new_tokens=4).route.pages}


def test_a_bank_of_something_else_is_refused(demo_bank: Path) -> None:
    for options, field in (
        ({"system_prompt": "Be brief."}, "system_prompt"),
        ({"dtype": "bfloat16"}, "dtype"),
        ({"profile": "glyph"}, "profile"),
        ({"dpis": (72, 144)}, "dpis"),
    ):
        with pytest.raises(BankMismatchError) as caught:
            QVPIC.from_pretrained("demo", demo_bank, **options)  # type: ignore[arg-type]
        assert caught.value.field == field


def test_no_bank(tmp_path: Path) -> None:
    with pytest.raises(BankNotFoundError):
        QVPIC.open(tmp_path / "nothing")


def test_async(rag: QVPIC) -> None:
    async def both() -> tuple[str, str]:
        answer = await rag.aask(BADGE, max_new_tokens=32)
        pieces = [piece async for piece in rag.stream(BADGE, max_new_tokens=32)]
        return answer.text, "".join(pieces)

    assert asyncio.run(both()) == ("TB-209", "TB-209")
