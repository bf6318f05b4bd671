"""The training forward against transformers' own model, question by question, and pages that do not see each other."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil

from qvpic_rag.models.reader_images import MERGE, PATCH, WHITE
from qvpic_rag.reader import kernels, operations
from qvpic_rag.reader.facts import make_world
from qvpic_rag.reader.network import Dimensions, TrainingForward, build_model
from qvpic_rag.reader.operations import PREFIX
from qvpic_rag.reader.pictures import CELL, Look
from qvpic_rag.reader.samples import Asked, Batch, Context, pack
from qvpic_rag.reader.tokens import END, SPECIAL_TOKENS

PROCESSOR = Glm4vImageProcessorPil(
    do_resize=False, image_mean=[WHITE["mean"]] * 3, image_std=[WHITE["std"]] * 3, patch_size=PATCH, merge_size=MERGE,
    size={"shortest_edge": CELL**2, "longest_edge": 1 << 24},
)  # fmt: skip
IMAGE = SPECIAL_TOKENS.index("<|image|>")
DPIS = (72, 120, 72, 120)


class Case(NamedTuple):
    """Pictures, and contexts that ask about them."""

    pictures: list[npt.NDArray[np.uint8]]
    contexts: list[Context]


@pytest.fixture(scope="module")
def case(look: Look, tokenizer: Any) -> Case:
    """Four pages of two resolutions and several sizes; three contexts of different length, one with a system prompt."""

    def ids(text: str) -> list[int]:
        found: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    world = make_world(random.Random(3), "train", 4, look.fits)
    pages = [look.page(text) for text in world.pages]
    pictures = [look.picture(page, dpi) for page, dpi in zip(pages, DPIS, strict=True) if page is not None]
    assert len({picture.shape for picture in pictures}) >= 3
    asked = [
        Asked(ids(f"{question}<|assistant|>\n"), [*ids(answer), 0])
        for question, answer in [
            ("What is the badge code of Omar?", "KX-1"),
            ("Who owns desk 4?", "not stated"),
            ("Is the gate key of Tim abc?", "no"),
        ]
    ]

    def context(prefix: str, chosen: list[int], questions: list[Asked]) -> Context:
        grids = [(pictures[index].shape[0] // CELL, pictures[index].shape[1] // CELL) for index in chosen]
        before, after = ids("<|begin_of_image|>"), ids("<|end_of_image|>")
        return Context(ids(prefix), before, after, chosen, grids, questions)

    plain, told = "[gMASK]<sop><|user|>\n", "[gMASK]<sop><|system|>\nBe concise.<|user|>\n"
    contexts = [context(plain, [0, 1, 2], asked), context(told, [3, 0], asked[:2]), context(plain, [1], asked[2:])]
    return Case(pictures, contexts)


def inputs(forward: TrainingForward, case: Case, contexts: Sequence[Context]) -> tuple[Batch, Tensor]:
    """A packed batch and its embeddings, visual ones in their places."""
    batch = pack(contexts)
    x = forward.embed(batch.token_ids)
    visual = torch.cat([forward.see(torch.from_numpy(case.pictures[i].copy())[None])[0] for i in batch.pictures])
    flat = x.view(-1, x.shape[-1]).index_copy(0, batch.visual[:, 0], visual[batch.visual[:, 1]])
    return batch, flat.view(x.shape)


def reference(model: Any, case: Case, context: Context, asked: Asked) -> Tensor:
    """transformers' logits of one question's answer tokens, through its own processor, positions and mask."""
    row = list(context.prefix)
    for rows, columns in context.grids:
        row += [*context.open, *[IMAGE] * (rows * columns), *context.close]
    ids = torch.tensor([[*row, *asked.prompt, *asked.answer[:-1]]])
    images = [Image.fromarray(case.pictures[index]).convert("RGB") for index in context.pages]
    output = model(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        mm_token_type_ids=(ids == IMAGE).int(),
        **PROCESSOR(images=images, return_tensors="pt"),
    )
    logits: Tensor = output.logits[0, -len(asked.answer) :]
    return logits


def answers(forward: TrainingForward, case: Case) -> list[Tensor]:
    """Logits of every question's answer tokens, from one batch of all contexts."""
    batch, x = inputs(forward, case, case.contexts)
    logits = forward.logits(forward.read(x, batch.positions, batch.groups))
    return [logits[batch.questions == number] for number in range(int(batch.questions.max()) + 1)]


def references(model: Any, case: Case) -> list[Tensor]:
    return [reference(model, case, context, asked) for context in case.contexts for asked in context.asked]


def test_it_is_the_models_own_function(small: Any, case: Case) -> None:
    ours, theirs = answers(TrainingForward(small, torch.float32), case), references(small, case)
    assert len(ours) == len(theirs) == 6
    for got, expected in zip(ours, theirs, strict=True):
        assert got.dtype == torch.float32
        assert expected.std() > 0.3
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)


@pytest.mark.skipif(not kernels.available(), reason="no C compiler with OpenMP")
def test_bfloat16_with_kernels_is_close(small: Any, case: Case) -> None:
    fused = TrainingForward(small)
    assert fused.ops is kernels
    plain = TrainingForward(small)
    plain.ops = operations
    exact = torch.cat(references(small, case))
    errors = [float((torch.cat(answers(each, case)) - exact).norm() / exact.norm()) for each in (fused, plain)]
    assert errors[0] < 0.03
    assert errors[0] < 1.3 * errors[1]


def test_float32_does_without_a_compiler(small: Any) -> None:
    assert TrainingForward(small, torch.float32).ops is operations


def test_without_a_compiler_plain_operations_serve(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "available", lambda: False)
    assert TrainingForward(small).ops is operations


def test_equal_pictures_can_be_seen_together(small: Any, case: Case) -> None:
    forward = TrainingForward(small, torch.float32)
    together = torch.from_numpy(np.stack([case.pictures[0], 255 - case.pictures[0]]))
    seen = forward.see(together)
    assert seen.shape == (2, together[0].numel() // CELL**2, 64)
    torch.testing.assert_close(seen[1:], forward.see(together[1:]), rtol=0, atol=1e-5)


def test_isolated_pages_are_what_each_page_alone_is(small: Any, case: Case) -> None:
    forward = TrainingForward(small, torch.float32)
    whole = case.contexts[0]
    apart = Context(whole.prefix, whole.open, whole.close, whole.pages, whole.grids, whole.asked, isolated=True)
    batch, x = inputs(forward, case, [apart])
    hidden = forward.read(x, batch.positions, batch.groups)[0]
    prefix, start = len(apart.prefix), len(apart.prefix)
    for rows, columns in apart.grids:
        end = start + len(apart.open) + rows * columns + len(apart.close)
        chosen = torch.cat([torch.arange(prefix), torch.arange(start, end)])
        causal = torch.tensor([0, PREFIX], dtype=torch.int32).expand(1, len(chosen), 2)
        alone = forward.read(x[:, chosen], batch.positions[..., chosen], causal)[0]
        torch.testing.assert_close(hidden[chosen], alone, rtol=0, atol=1e-5)
        start = end


def test_isolation_changes_later_pages_and_answers_only(small: Any, case: Case) -> None:
    forward = TrainingForward(small, torch.float32)
    whole = case.contexts[0]
    apart = Context(whole.prefix, whole.open, whole.close, whole.pages, whole.grids, whole.asked, isolated=True)
    hidden = []
    for context in (whole, apart):
        batch, x = inputs(forward, case, [context])
        hidden.append(forward.read(x, batch.positions, batch.groups)[0])
    rows, columns = whole.grids[0]
    first = len(whole.prefix) + len(whole.open) + rows * columns + len(whole.close)
    difference = (hidden[0] - hidden[1]).abs().amax(-1)
    assert difference[:first].max() < 1e-5
    # A visual token that looks at nothing but itself may not differ; a page's end token sees everything before it.
    assert difference[-1] > 1e-3
    assert difference[first:].max() > 1e-2


def test_gradients_reach_every_weight(fresh: Any, case: Case) -> None:
    forward = TrainingForward(fresh, torch.float32)
    batch, x = inputs(forward, case, case.contexts)
    forward.logits(forward.read(x, batch.positions, batch.groups)).square().mean().backward()
    missing = [name for name, parameter in fresh.named_parameters() if parameter.grad is None]
    assert not missing


def test_first_weights_follow_from_the_seed_alone(tokenizer: Any) -> None:
    sizes = Dimensions(text_hidden=32, text_layers=1, text_mlp=32, vision_hidden=24, vision_layers=1)
    torch.manual_seed(3)
    following = torch.rand(1)
    torch.manual_seed(3)
    one = build_model(sizes, len(tokenizer), seed=1).state_dict()
    assert torch.equal(torch.rand(1), following)
    other, again = (build_model(sizes, len(tokenizer), seed=seed).state_dict() for seed in (2, 1))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["lm_head.weight"], other["lm_head.weight"])


def test_the_configuration_knows_the_tokenizers_ids(small: Any) -> None:
    config = small.config
    assert (config.image_token_id, config.image_start_token_id, config.image_end_token_id) == (7, 6, 8)
    assert small.generation_config.eos_token_id == SPECIAL_TOKENS.index(END) == 0
    assert config.text_config.rope_parameters["mrope_section"] == [2, 1, 1]  # pairs: half of the 16 channels of a head


def test_the_default_size() -> None:
    model = build_model(Dimensions(), 723, seed=0)
    assert 5e6 < sum(parameter.numel() for parameter in model.parameters()) < 7e6
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
