"""Exported readers: an ordinary folder that computes what was trained, with page caches what was trained for them."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoImageProcessor, AutoTokenizer

from qvpic_rag.errors import ConfigError
from qvpic_rag.models import VisionLanguageModel
from qvpic_rag.reader.export import export_reader, new_reader, weights_of_run
from qvpic_rag.reader.facts import make_world
from qvpic_rag.reader.lessons import Prompts
from qvpic_rag.reader.network import TrainingForward
from qvpic_rag.reader.pictures import CELL, Look
from qvpic_rag.reader.samples import Asked, Context, pack
from qvpic_rag.records import Message
from qvpic_rag.template import ChatTemplate
from tests.reference import full_prefill
from tests.serve import serve

QUESTION = "What is the badge code of Omar?"
New = tuple[Any, Prompts]


@pytest.fixture(scope="module")
def rounded(new: New) -> Any:
    """The exported reader before its export, with the rounding of its export (which leaves rotary angles alone)."""
    model = copy.deepcopy(new[0])
    for parameter in model.parameters():
        parameter.copy_(parameter.to(torch.bfloat16))
    return model


@pytest.fixture(scope="module")
def pictures(look: Look) -> list[Any]:
    """Three pages of mixed resolution."""
    world = make_world(random.Random(2), "train", 3, look.fits)
    pages = [page for text in world.pages if (page := look.page(text))]
    return [look.picture(page, dpi) for page, dpi in zip(pages, (72, 120, 72), strict=True)]


def trained_for(model: Any, prompts: Prompts, pictures: list[Any], *, isolated: bool) -> Tensor:
    """The training forward's logits of every token of the question, ``[tokens, vocabulary]``."""
    template = prompts.template
    prompt = template.suffix([Message("user", QUESTION)])
    grids = [(picture.shape[0] // CELL, picture.shape[1] // CELL) for picture in pictures]
    order = list(range(len(pictures)))
    batch = pack(
        [Context(template.prefix, template.open, template.close, order, grids, [Asked(prompt, [0])], isolated)]
    )
    forward = TrainingForward(model, torch.float32)
    x = forward.embed(batch.token_ids)
    visual = torch.cat([forward.see(torch.from_numpy(picture.copy())[None])[0] for picture in pictures])
    flat = x.view(-1, x.shape[-1]).index_copy(0, batch.visual[:, 0], visual[batch.visual[:, 1]])
    hidden = forward.read(flat.view(x.shape), batch.positions, batch.groups)
    return forward.logits(hidden)[0, -len(prompt) :]


def images(pictures: list[Any]) -> list[Image.Image]:
    return [Image.fromarray(picture).convert("RGB") for picture in pictures]


def test_full_prefill_of_the_folder_is_the_training_forward(
    rounded: Any, new: New, engine: VisionLanguageModel, exported: Path, pictures: list[Any]
) -> None:
    theirs = full_prefill(engine.model, exported, images(pictures), QUESTION, max_new_tokens=1).question_logits
    ours = trained_for(rounded, new[1], pictures, isolated=False)
    assert theirs.std() > 0.3
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-4)
    unrounded = trained_for(new[0], new[1], pictures, isolated=False)
    assert 0 < (theirs - unrounded).norm() / unrounded.norm() < 0.02


def test_page_caches_of_the_folder_are_what_isolation_trains_for(
    rounded: Any, new: New, exported: Path, pictures: list[Any]
) -> None:
    """Exactly for one page; further ones see the prefix from further away in training than when they are compiled."""
    served = serve(exported)
    error = {}
    for count in (1, 3):
        theirs = served.logits(served.compile(images(pictures[:count])), QUESTION)
        for isolated in (True, False):
            ours = trained_for(rounded, new[1], pictures[:count], isolated=isolated)
            error[count, isolated] = float((theirs - ours).norm() / theirs.norm())
    assert error[1, True] < 1e-5
    assert error[1, False] < 1e-5
    assert error[3, True] < error[3, False] / 3


def test_the_engine_finds_the_prompt_it_was_trained_with(engine: VisionLanguageModel, prompts: Prompts) -> None:
    template = ChatTemplate(engine)
    assert template.digest == prompts.template.digest
    assert template.suffix([Message("user", QUESTION)]) == prompts.template.suffix([Message("user", QUESTION)])
    assert engine.max_context == 8192


def test_tokenizer_and_image_processor(exported: Path, tokenizer: Any) -> None:
    loaded = AutoTokenizer.from_pretrained(exported)
    text = "[gMASK]<sop><|user|>\nIs the badge code KX-1 island?\n---------------------<|assistant|>\nno<|endoftext|>"
    assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert loaded.decode(loaded(text)["input_ids"]) == text
    assert loaded.chat_template == tokenizer.chat_template
    processor = AutoImageProcessor.from_pretrained(exported)
    black = processor(images=[Image.new("RGB", (32, 16))], return_tensors="pt")
    assert black["image_grid_thw"].tolist() == [[1, 2, 4]]
    assert (black["pixel_values"] == 2).all()
    white = processor(images=[Image.new("RGB", (256, 48), "white")], return_tensors="pt")
    assert white["image_grid_thw"].tolist() == [[1, 6, 32]]
    assert (white["pixel_values"] == 0).all()


def test_files_of_the_folder(new: New, exported: Path, tmp_path: Path) -> None:
    card = tmp_path / "reader" / "README.md"
    card.parent.mkdir()
    card.write_text("A card.", encoding="utf-8")
    for _ in range(2):  # an older export is replaced
        export_reader(new[0].state_dict(), card.parent)
    assert card.read_text(encoding="utf-8") == "A card."
    names = {path.name for path in card.parent.iterdir()}
    assert names == {path.name for path in exported.iterdir()} | {"README.md"}
    assert {"config.json", "model.safetensors", "preprocessor_config.json", "tokenizer.json"} < names
    weights = load_file(card.parent / "model.safetensors")
    assert {value.dtype for value in weights.values()} == {torch.bfloat16}
    for name, value in new[0].state_dict().items():
        assert torch.equal(weights[name], value.to(torch.bfloat16))


def test_starting_from_an_exported_reader(exported: Path, rounded: Any) -> None:
    model, prompts = new_reader(1, exported)
    expected = rounded.state_dict()
    for name, value in model.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, expected[name])
    assert prompts.template.suffix([Message("user", "Who?")])


def one_line(error: pytest.ExceptionInfo[ConfigError], *words: str) -> None:
    message = str(error.value)
    assert "\n" not in message
    assert message.endswith(".")
    for word in words:
        assert word in message


def test_starting_from_what_is_no_reader(tmp_path: Path, tiny_folder: Any) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    for start in (tmp_path / "none", tmp_path, tiny_folder("glm4v")):
        with pytest.raises(ConfigError) as error:
            new_reader(0, start)
        one_line(error, str(start), "holds no reader to start from", "an exported one")


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"no checkpoint",
        {},
        {"run": None},
        {"run": []},
        {"run": {}},
        {"run": {"vocabulary": "other", "model": {}}},
    ],
    ids=str,
)
def test_a_run_without_a_checkpoint(content: Any, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(ConfigError) as error:
        weights_of_run(tmp_path)
    one_line(error, str(tmp_path), "; ")
    assert "weights_only" not in str(error.value)


def test_a_place_that_is_no_folder(new: New, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    for folder in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(ConfigError) as error:
            export_reader(new[0].state_dict(), folder)
        one_line(error, str(folder))


def test_an_adapter_in_the_folder_would_be_loaded_instead(new: New, tmp_path: Path) -> None:
    (tmp_path / "adapter.safetensors").write_bytes(b"x")
    with pytest.raises(ConfigError) as error:
        export_reader(new[0].state_dict(), tmp_path)
    one_line(error, str(tmp_path), "name another folder")
    assert [path.name for path in tmp_path.iterdir()] == ["adapter.safetensors"]


@pytest.mark.parametrize("how", ["missing", "shape", "diverged"])
def test_weights_that_are_no_readers(new: New, tmp_path: Path, how: str) -> None:
    weights = dict(new[0].state_dict())
    name = next(iter(weights))
    if how == "missing":
        del weights[name]
    else:
        weights[name] = torch.zeros(1) if how == "shape" else torch.full_like(weights[name], float("nan"))
    with pytest.raises(ConfigError) as error:
        export_reader(weights, tmp_path / "reader")
    one_line(error, "train again" if how == "diverged" else "name another run")
    assert not (tmp_path / "reader").exists()
