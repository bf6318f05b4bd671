"""Loading a model: the registry of families and the one function that every other stage gets its model from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
)
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from qvpic_rag.errors import ModelNotFoundError, TemplateError, UnsupportedModelError
from qvpic_rag.models.base import Checkpoint, LanguageModel, VisionInputs, VisionLanguageModel
from qvpic_rag.models.device import default_dtype, resolve_device, torch_dtype
from qvpic_rag.models.fingerprint import model_fingerprint
from qvpic_rag.models.glm4v import Glm4vModel
from qvpic_rag.models.llava_onevision import LlavaOnevisionModel
from qvpic_rag.models.llava_onevision2 import LlavaOnevision2Model
from qvpic_rag.models.qwen_vl import QwenVLModel
from qvpic_rag.models.smolglyph import ADAPTER

__all__ = [
    "BUNDLED",
    "LanguageModel",
    "VisionInputs",
    "VisionLanguageModel",
    "context_length",
    "families",
    "load_model",
]

_ASSETS = Path(__file__).parent.parent / "assets"
BUNDLED = {"demo": _ASSETS / "reader"}
"""Name -> folder of the readers that come with the package."""

_FAMILIES: tuple[type[VisionLanguageModel], ...] = (Glm4vModel, QwenVLModel, LlavaOnevisionModel, LlavaOnevision2Model)
_REMOTE_CODE = LlavaOnevision2Model.model_types


def families() -> tuple[str, ...]:
    """The ``model_type`` values that can be served."""
    return tuple(name for family in _FAMILIES for name in family.model_types)


def load_model(
    name: str,
    *,
    device: str | None = None,
    dtype: str | None = None,
    trust_remote_code: bool = False,
    revision: str | None = None,
) -> VisionLanguageModel:
    """Load a vision-language model.

    Parameters
    ----------
    name : str
        ``demo``, a local folder (a Hugging Face one, or an adapter that ``qvpic reader smolglyph
        export`` wrote), or a hub id.
    device : str, optional
        Such as ``cpu`` or ``cuda:0``; by default the first CUDA device, else the CPU.
    dtype : str, optional
        ``bfloat16``, ``float16`` or ``float32``; by default bfloat16 on an accelerator and float32 on a CPU.
    trust_remote_code : bool
        Allow code that comes with the checkpoint to run; needed by LLaVA-OneVision-2 only.
    revision : str, optional
        Hub branch, tag or commit.

    Raises
    ------
    UnsupportedModelError
        The architecture has no adapter, or its layers do not keep every token's keys.
    ModelNotFoundError
        Nothing loadable under this name.
    MissingDependencyError
        The folder is an adapter's, and its language model is not installed.
    ConfigError
        Unknown dtype or device.
    """
    where = _place(name)
    target = resolve_device(device)
    kind = torch_dtype(dtype or default_dtype(target))
    source: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    config = _configuration(name, where, source)
    family = _family(config)
    kinds = family.unsupported_layers(config)
    if kinds:
        raise UnsupportedModelError(
            f"Model {name!r} has {', '.join(kinds)} layers, which do not keep every token's keys, so its page caches "
            f"cannot be linked; use a checkpoint with full attention in all layers of {', '.join(families())}."
        )
    with _loading(name), _bar(shown=name not in BUNDLED):
        auto = AutoModelForCausalLM if _only_causal(config) else AutoModelForImageTextToText
        model, report = auto.from_pretrained(
            where, dtype=kind, output_loading_info=True, use_safetensors=True, **source
        )
        _check_complete(name, report)
        model = model.to(target).eval()
        tokenizer = AutoTokenizer.from_pretrained(where, **source)
        image_processor = AutoImageProcessor.from_pretrained(where, **source)
    checkpoint = Checkpoint(
        model=model,
        tokenizer=tokenizer,
        image_processor=image_processor,
        template=_chat_template(where, revision, tokenizer),
        # A bank remembers the name and may be asked from another folder.
        name=str(Path(name).resolve()) if name not in BUNDLED and Path(name).is_dir() else name,
        revision=getattr(config, "_commit_hash", None) or "",
        fingerprint=model_fingerprint(where, config),
    )
    return family(checkpoint)


def context_length(name: str, *, trust_remote_code: bool = False, revision: str | None = None) -> int:
    """A model's context length, tokens, without loading its weights; parameters and errors of :func:`load_model`."""
    config = _configuration(name, _place(name), {"revision": revision, "trust_remote_code": trust_remote_code})
    return _family(config).context_length(config)


def _configuration(name: str, where: str, source: dict[str, Any]) -> Any:
    with _loading(name):
        # Fetched first and by itself: an unreachable hub is found out once, not by every part of the model.
        path = cached_file(where, "config.json", revision=source["revision"])
        if path is None:
            raise OSError("it has no config.json")
        settings = Path(path).read_text(encoding="utf-8")
    _check_kind(name, settings, source["trust_remote_code"])
    with _loading(name):
        return AutoConfig.from_pretrained(where, **source)


def _place(name: str) -> str:
    """Folder or hub id of a model; an adapter's folder becomes that of the assembled model."""
    folder = BUNDLED.get(name) or Path(name)
    if name not in BUNDLED and str(name).startswith((".", "/", "~")) and not folder.is_dir():
        raise ModelNotFoundError(f"There is no folder {name!r} to load a model from; check the path.")
    if (folder / ADAPTER).is_file():
        from qvpic_rag.models.smolglyph.adapter import smolglyph_folder  # a language model's whole machinery

        return str(smolglyph_folder(folder))
    return str(folder) if name in BUNDLED else str(name)


@contextmanager
def _loading(name: str) -> Iterator[None]:
    """Turn what transformers raises while loading into one sentence."""
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        known = ", ".join(families())
        if "does not recognize this architecture" in str(error) or "model type" in reason:
            raise UnsupportedModelError(f"Model {name!r} has an unknown architecture; supported: {known}.") from error
        raise ModelNotFoundError(
            f"Model {name!r} cannot be loaded ({reason.rstrip('.')}); give 'demo', a folder with config.json, "
            "tokenizer and safetensors weights, or a hub id that is reachable or already downloaded."
        ) from error


@contextmanager
def _bar(*, shown: bool) -> Iterator[None]:
    """Whether transformers draws a bar while weights load: gigabytes are worth one, the bundled reader is not."""
    before = transformers_logging.is_progress_bar_enabled()
    if before and not shown:
        transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if before and not shown:
            transformers_logging.enable_progress_bar()


def _check_kind(name: str, settings: str, trusted: bool) -> None:
    """Refuse what cannot be served, and remote code before transformers asks about it on the terminal."""
    try:
        config = json.loads(settings)
    except ValueError:
        return  # AutoConfig says what is wrong with it
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind in _REMOTE_CODE and not trusted:
        raise UnsupportedModelError(
            f"Model {name!r} ({kind}) brings its own Python code, which is run only if you say so: read that code, "
            "then pass trust_remote_code=True (command line: --trust-remote-code)."
        )
    if isinstance(kind, str) and kind not in families():
        raise UnsupportedModelError(f"Model {name!r} has architecture {kind!r}; supported: {', '.join(families())}.")


def _cached_text(where: str, file: str, revision: str | None) -> str | None:
    try:
        path = cached_file(
            where,
            file,
            revision=revision,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            _raise_exceptions_for_gated_repo=False,
        )
    except (OSError, ValueError):
        return None  # not a folder and not a hub id; AutoConfig raises the full story
    return Path(path).read_text(encoding="utf-8") if path else None


def _family(config: Any) -> type[VisionLanguageModel]:
    for family in _FAMILIES:
        if config.model_type in family.model_types:
            return family
    raise UnsupportedModelError(
        f"Architecture {config.model_type!r} is not supported; supported: {', '.join(families())}."
    )


def _only_causal(config: Any) -> bool:
    auto_map = getattr(config, "auto_map", None) or {}
    return "AutoModelForCausalLM" in auto_map and "AutoModelForImageTextToText" not in auto_map


def _check_complete(name: str, report: dict[str, Any]) -> None:
    """Missing weights would be random numbers; transformers only logs that."""
    missing = sorted(report.get("missing_keys") or ()) + sorted(str(m) for m in report.get("mismatched_keys") or ())
    if missing:
        raise ModelNotFoundError(
            f"Model {name!r} has no usable weights for {missing[0]} and {len(missing) - 1} more; the checkpoint does "
            "not match its config.json, download it again."
        )


def _chat_template(where: str, revision: str | None, tokenizer: Any) -> str:
    """The processor's template (it knows pictures) before the tokenizer's (it may be the text model's)."""
    jinja = _cached_text(where, "chat_template.jinja", revision)
    if jinja is not None:
        return jinja
    legacy = _cached_text(where, "chat_template.json", revision)
    if legacy is not None:
        return str(json.loads(legacy)["chat_template"])
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    if not isinstance(template, str):
        raise TemplateError(f"Model {where!r} has no chat template; add a chat_template.jinja to its folder.")
    return template
