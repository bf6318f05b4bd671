"""Generation over a linked context: finish reasons, sampling, streaming, cancellation, failure."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from qvpic_rag.assemble import assemble
from qvpic_rag.cache import BufferCache
from qvpic_rag.config import GenerateConfig
from qvpic_rag.errors import GenerationError
from qvpic_rag.generate import Generated, generate, prompt
from qvpic_rag.records import KVBlock, Message
from tests.serve import Served, serve

QUESTION = "Which door?"


@pytest.fixture(scope="module")
def served(tiny_folder: Callable[..., Path]) -> Served:
    return serve(tiny_folder("qwen2_5_vl"))


@pytest.fixture(scope="module")
def blocks(served: Served, make_page_images: Callable[..., list[Image.Image]]) -> list[KVBlock]:
    return served.compile(make_page_images(2))


def _ask(served: Served, blocks: list[KVBlock], config: GenerateConfig, **options: object) -> Generated:
    ids = served.template.suffix([Message("user", QUESTION)])
    linked = [served.prefix, *blocks] if blocks else []
    if not blocks:
        ids = served.template.without_pages([Message("user", QUESTION)])
    context = assemble(served.model, linked, query_tokens=len(ids), new_tokens=config.max_new_tokens)
    return generate(served.model, prompt(served.model, context, ids), config, **options)  # type: ignore[arg-type]


def test_length_ends_an_answer(served: Served, blocks: list[KVBlock]) -> None:
    result = _ask(served, blocks, GenerateConfig(max_new_tokens=3))
    assert (len(result.token_ids), result.finish_reason) == (3, "length")


def test_an_end_token_ends_an_answer_and_is_not_text(served: Served, blocks: list[KVBlock]) -> None:
    second = _ask(served, blocks, GenerateConfig(max_new_tokens=2)).token_ids[1]
    settings, kept = served.model.model.generation_config, served.model.model.generation_config.eos_token_id
    settings.eos_token_id = second
    try:
        result = _ask(served, blocks, GenerateConfig(max_new_tokens=9))
    finally:
        settings.eos_token_id = kept
    assert result.finish_reason == "stop"
    assert result.token_ids[-1] == second
    assert result.text == served.model.tokenizer.decode(result.token_ids[:-1], skip_special_tokens=True).strip()


def test_a_stop_string_ends_an_answer(served: Served, blocks: list[KVBlock]) -> None:
    whole = _ask(served, blocks, GenerateConfig(max_new_tokens=12))
    stop = whole.text[2:4]
    result = _ask(served, blocks, GenerateConfig(max_new_tokens=12, stop=(stop,)))
    assert result.finish_reason == "stop"
    assert result.text == whole.text[: whole.text.index(stop)].rstrip()
    assert len(result.token_ids) < len(whole.token_ids)


def test_pieces_add_up(served: Served, blocks: list[KVBlock]) -> None:
    pieces: list[str] = []
    result = _ask(served, blocks, GenerateConfig(max_new_tokens=12), on_piece=pieces.append)
    assert "".join(pieces) == result.text
    assert len(pieces) > 1


def test_cancelling_ends_at_the_next_token(served: Served, blocks: list[KVBlock]) -> None:
    cancelled = threading.Event()
    result = _ask(
        served, blocks, GenerateConfig(max_new_tokens=50), on_piece=lambda piece: cancelled.set(), cancelled=cancelled
    )
    assert result.finish_reason == "cancelled"
    assert len(result.token_ids) < 50


def test_sampling_with_a_seed_repeats_and_leaves_the_global_generator_alone(
    served: Served, blocks: list[KVBlock]
) -> None:
    config = GenerateConfig(max_new_tokens=8, temperature=1.5, seed=7)
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    first = _ask(served, blocks, config)
    assert torch.equal(torch.rand(1), expected)
    assert _ask(served, blocks, config).token_ids == first.token_ids
    others = {
        _ask(served, blocks, GenerateConfig(max_new_tokens=8, temperature=1.5, seed=s)).token_ids for s in range(8)
    }
    assert len(others) > 1


@pytest.mark.parametrize("config", [GenerateConfig(2), GenerateConfig(2, 0.7, 0.9, 1)], ids=["greedy", "sampled"])
def test_transformers_has_nothing_to_complain_about(
    served: Served, blocks: list[KVBlock], config: GenerateConfig, caplog: pytest.LogCaptureFixture
) -> None:
    _ask(served, blocks, config)
    assert caplog.records == []


def test_no_pages_is_the_models_own_text_answer(served: Served) -> None:
    result = _ask(served, [], GenerateConfig(max_new_tokens=8))
    ids = served.template.without_pages([Message("user", QUESTION)])
    tokens = torch.tensor([ids])
    plain = served.model.model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        do_sample=False,
        max_new_tokens=8,
    )
    assert list(result.token_ids) == plain[0, len(ids) :].tolist()


def test_a_failing_model_is_one_error_with_its_cause(
    served: Served, blocks: list[KVBlock], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("device lost")

    monkeypatch.setattr(served.model.model, "forward", fail)
    with pytest.raises(GenerationError, match="device lost") as caught:
        _ask(served, blocks, GenerateConfig(max_new_tokens=2))
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_decoding_copies_no_context(served: Served, blocks: list[KVBlock]) -> None:
    ids = served.template.suffix([Message("user", QUESTION)])
    context = assemble(served.model, [served.prefix, *blocks], query_tokens=len(ids), new_tokens=6)
    before = context.cache.key_buffer.data_ptr()
    generate(served.model, prompt(served.model, context, ids), GenerateConfig(max_new_tokens=6))
    assert context.cache.layers[0].keys.data_ptr() == before
    assert context.cache.get_seq_length() == context.tokens + len(ids) + 5


def test_a_full_buffer_is_an_error_not_a_reallocation() -> None:
    cache = BufferCache(1, 1, 2, 4, dtype=torch.float32, device=torch.device("cpu"))
    state = torch.ones(1, 1, 2, 4)
    keys, values = cache.update(state, state, 0)
    assert torch.equal(keys, state)
    assert torch.equal(values, state)
    with pytest.raises(GenerationError, match="reserved 2"):
        cache.update(state, state, 0)
