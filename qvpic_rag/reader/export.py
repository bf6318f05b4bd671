"""From weights to an ordinary Hugging Face folder, and back to a model that can be trained on."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from qvpic_rag.errors import ConfigError
from qvpic_rag.models.reader_images import image_processor
from qvpic_rag.models.smolglyph import ADAPTER
from qvpic_rag.reader.lessons import Prompts
from qvpic_rag.reader.loop import CHECKPOINT, read_checkpoint
from qvpic_rag.reader.network import Dimensions, build_model
from qvpic_rag.reader.prompts import SYSTEM_PROMPTS
from qvpic_rag.reader.tokens import SPECIAL_TOKENS, build_tokenizer
from qvpic_rag.records import stable_digest
from qvpic_rag.template import ChatTemplate

__all__ = ["export_reader", "new_reader", "weights_of_run"]

_WEIGHTS = "model.safetensors"


def new_reader(seed: int, start: Path | None = None) -> tuple[Any, Prompts]:
    """A model to train and what cuts its prompts.

    Parameters
    ----------
    seed : int
        Of fresh weights.
    start : Path, optional
        An exported reader whose weights are taken instead.

    Raises
    ------
    ConfigError
        ``start`` holds no weights of this shape.
    """
    tokenizer = build_tokenizer()
    model = build_model(Dimensions(), len(tokenizer), seed=seed)
    if start is not None:
        try:
            model.load_state_dict({name: value.float() for name, value in load_file(start / _WEIGHTS).items()})
        except (OSError, SafetensorError, RuntimeError) as error:
            raise ConfigError(
                f"{start} holds no reader to start from ({type(error).__name__}); name the folder of an exported one."
            ) from error
    return model, _prompts(tokenizer)


def _prompts(tokenizer: Any) -> Prompts:
    # What a chat template needs of a model is its tokenizer, its template and its picture token.
    model: Any = SimpleNamespace(
        tokenizer=tokenizer,
        checkpoint=SimpleNamespace(template=tokenizer.chat_template, name="reader"),
        image_token_id=SPECIAL_TOKENS.index("<|image|>"),
    )
    with_system = [ChatTemplate(model, system_prompt=text) for text in SYSTEM_PROMPTS]
    return Prompts(ChatTemplate(model), with_system, tokenizer)


def weights_of_run(folder: Path) -> dict[str, torch.Tensor]:
    """The model's weights in a training run's checkpoint.

    Raises
    ------
    ConfigError
        There is no checkpoint, it cannot be read, or its tokens are not today's.
    """
    run = read_checkpoint(folder)["run"]
    if "vocabulary" not in run or not isinstance(run.get("model"), dict):
        raise ConfigError(f"The run in {folder} is not one of `qvpic reader train`; export it with its own command.")
    if run.get("vocabulary") != stable_digest(build_tokenizer().get_vocab()):
        raise ConfigError(
            f"The run in {folder / CHECKPOINT} was trained with other words than the tokenizer has now; name another "
            "run."
        )
    weights: dict[str, torch.Tensor] = run["model"]
    return weights


def export_reader(weights: dict[str, torch.Tensor], folder: Path) -> None:
    """Write a folder that transformers, and so the engine, loads: bfloat16 weights, tokenizer, image processor.

    Files of other names in the folder, such as a model card, stay.

    Raises
    ------
    ConfigError
        The folder cannot be written or holds another kind of model, or the weights are not a reader's.
    """
    if (folder / ADAPTER).exists():
        raise ConfigError(
            f"{folder} holds an adapter, which would be loaded in the reader's place; name another folder."
        )
    tokenizer = build_tokenizer()
    model = build_model(Dimensions(), len(tokenizer), seed=0)
    try:
        model.load_state_dict(weights)
        broken = [name for name, value in weights.items() if not torch.isfinite(value).all()]
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"The run's weights are not a reader's ({type(error).__name__}); name another run."
        ) from error
    if broken:
        raise ConfigError(f"The run's weights are no numbers any more ({broken[0]}): it diverged; train again.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        model.to(torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / "preprocessor_config.json").write_text(
            json.dumps(image_processor("Glm4vImageProcessor"), indent=1), encoding="utf-8"
        )
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"The reader cannot be written to {folder} ({error}); choose another folder.") from error
