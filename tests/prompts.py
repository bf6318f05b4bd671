"""Prompts for the references: the chat template rendered as text, placeholders and positions worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["ONE_AXIS", "Prompt", "batched", "build_prompt", "joined_inputs", "load_tokenizer", "positions_of"]

ONE_AXIS = ("llava_onevision", "llava_onevision2", "llama", "mistral", "qwen2", "qwen3")
"""Model types with one position axis; the others have three."""


@dataclass(frozen=True)
class Prompt:
    """A tokenised prompt and where its pages are.

    Attributes
    ----------
    ids : list[int]
        The whole prompt, placeholders expanded.
    prefix : int
        Number of tokens before the first page; 0 without pages.
    pages : list[tuple[int, int]]
        Start and end of each page, with the tokens that wrap its picture and a separator that follows it.
    grids : list[tuple[int, int] | None]
        Rows and columns of each picture's visual tokens; ``None`` for models with one position axis.
    inputs : list[dict[str, torch.Tensor]]
        What the model's forward takes for each picture alone.
    """

    ids: list[int]
    prefix: int
    pages: list[tuple[int, int]]
    grids: list[tuple[int, int] | None]
    inputs: list[dict[str, torch.Tensor]]

    @property
    def question(self) -> int:
        """Index of the first token after the last page."""
        return self.pages[-1][1] if self.pages else self.prefix


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The folder's tokenizer. Without an explicit answer transformers asks on the terminal about remote code."""
    remote = '"auto_map"' in (folder / "config.json").read_text(encoding="utf-8")
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=remote)


def build_prompt(
    model: PreTrainedModel,
    folder: Path,
    images: Sequence[Image.Image],
    question: str,
    *,
    system: str | None = None,
) -> Prompt:
    """Render the folder's chat template as text, expand placeholders by hand, tokenise, and find the pages."""
    tokenizer = load_tokenizer(folder)
    content = [{"type": "image"} for _ in images] + [{"type": "text", "text": question}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
    if system is not None:
        # LLaVA-OneVision's template drops a plain string, GLM-4.1V's garbles a list.
        parts = model.config.model_type == "llava_onevision"
        said: Any = [{"type": "text", "text": system}] if parts else system
        messages.insert(0, {"role": "system", "content": said})
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert isinstance(text, str)
    inputs = [_picture_inputs(model, folder, image) for image in images]
    counts = [_count_visual_tokens(model, one) for one in inputs]
    placeholder = tokenizer.convert_ids_to_tokens(model.config.image_token_id)
    pieces = text.split(placeholder)
    assert len(pieces) == len(images) + 1
    expanded = pieces[0]
    for count, piece in zip(counts, pieces[1:], strict=True):
        expanded += placeholder * count + piece
    ids = tokenizer(expanded, add_special_tokens=False)["input_ids"]
    pages = _find_pages(model, ids, counts)
    merge = getattr(model.config.vision_config, "spatial_merge_size", 1)
    grids: list[tuple[int, int] | None] = []
    for one in inputs:
        if model.config.model_type in ONE_AXIS:
            grids.append(None)
        else:
            _, height, width = one["image_grid_thw"][0].tolist()
            grids.append((height // merge, width // merge))
    return Prompt(ids, pages[0][0] if pages else 0, pages, grids, inputs)


def _picture_inputs(model: PreTrainedModel, folder: Path, image: Image.Image) -> dict[str, torch.Tensor]:
    processor = AutoImageProcessor.from_pretrained(folder)
    inputs = dict(processor(images=[image], return_tensors="pt"))
    inputs["pixel_values"] = inputs["pixel_values"].to(model.dtype)
    if model.config.model_type == "llava_onevision2":
        merge = model.config.vision_config.spatial_merge_size
        _, height, width = inputs["image_grid_thw"][0].tolist()
        positions = []
        for block_row in range(0, height, merge):
            for block_column in range(0, width, merge):
                for row in range(block_row, block_row + merge):
                    for column in range(block_column, block_column + merge):
                        positions.append([0, row, column])
        inputs["patch_positions"] = torch.tensor(positions)
    return inputs


@torch.no_grad()
def _count_visual_tokens(model: PreTrainedModel, inputs: dict[str, torch.Tensor]) -> int:
    if model.config.model_type == "llava_onevision":
        features = model.model.get_image_features(**inputs, return_dict=True).pooler_output
        return len(features[0])
    merge = model.config.vision_config.spatial_merge_size
    frames, height, width = inputs["image_grid_thw"][0].tolist()
    return frames * height * width // merge**2


def _find_pages(model: PreTrainedModel, ids: list[int], counts: list[int]) -> list[tuple[int, int]]:
    """Page bounds: the wrapping tokens belong to their page, and so does what stands between it and the next page."""
    config = model.config
    before = {getattr(config, name, None) for name in ("vision_start_token_id", "image_start_token_id")} - {None}
    after = {getattr(config, name, None) for name in ("vision_end_token_id", "image_end_token_id")} - {None}
    bounds, at = [], 0
    for count in counts:
        start = ids.index(config.image_token_id, at)
        end = start + count
        assert all(token == config.image_token_id for token in ids[start:end])
        at = end
        if start > 0 and ids[start - 1] in before:
            start -= 1
        if ids[end] in after:
            end += 1
        bounds.append((start, end))
    separator = ids[bounds[0][1] : bounds[1][0]] if len(bounds) > 1 else []
    pages = []
    for start, end in bounds:
        follows = ids[end : end + len(separator)] == separator
        pages.append((start, end + len(separator) if follows else end))
    return pages


def positions_of(model: PreTrainedModel, ids: list[int], grids: Sequence[tuple[int, int] | None]) -> torch.Tensor:
    """Position ids ``[axes, tokens]``, one token after another.

    A text token takes the next position on every axis. With three axes the tokens of a picture all have the next
    position on the first, and are counted by row and by column on the others; the next position is then larger by the
    greater of rows and columns, not by the number of tokens.
    """
    if model.config.model_type in ONE_AXIS:
        return torch.arange(len(ids))[None]
    columns: list[tuple[int, int, int]] = []
    upcoming, index, at = 0, 0, 0
    while at < len(ids):
        if ids[at] != model.config.image_token_id:
            columns.append((upcoming, upcoming, upcoming))
            upcoming += 1
            at += 1
            continue
        grid = grids[index]
        assert grid is not None
        height, width = grid
        for row in range(height):
            for column in range(width):
                columns.append((upcoming, upcoming + row, upcoming + column))
        at += height * width
        upcoming += max(height, width)
        index += 1
    return torch.tensor(columns).T.contiguous()


def batched(model: PreTrainedModel, positions: torch.Tensor) -> torch.Tensor:
    """``[axes, tokens]`` as the model takes it: ``[3, 1, tokens]`` or ``[1, tokens]``."""
    return positions if model.config.model_type in ONE_AXIS else positions[:, None]


def joined_inputs(inputs: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Inputs of several pictures in one call; stacks of anyres patches are padded as the processor pads them."""
    joined = {}
    for name in inputs[0]:
        parts = [one[name] for one in inputs]
        if name == "pixel_values" and parts[0].ndim == 5:
            longest = max(part.shape[1] for part in parts)
            parts = [torch.nn.functional.pad(p, (0, 0) * 3 + (0, longest - p.shape[1])) for p in parts]
        joined[name] = torch.cat(parts)
    return joined
