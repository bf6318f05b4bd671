"""How a model's token vectors become one vector: read from its sentence-transformers files, never guessed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qvpic_rag.errors import ConfigError, ModelNotFoundError, UnsupportedModelError

__all__ = ["POOLINGS", "Settings", "read_json", "read_settings"]

POOLINGS = ("cls", "mean", "max", "lasttoken")

_LEGACY_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_MODULES = ("Transformer", "Pooling", "Normalize")
_UNSTATED_LIMIT = 512


@dataclass(frozen=True)
class Settings:
    """What turns a text into one vector, besides weights and tokenizer.

    Attributes
    ----------
    pooling : str
        ``cls``, ``mean``, ``max`` or ``lasttoken``.
    max_tokens : int
        Longer texts are cut to this many tokens, special tokens included.
    query_prompt, text_prompt : str
        Put before a question, and before a page's text.
    lower_case : bool
        Lower-case texts first.
    """

    pooling: str
    max_tokens: int
    query_prompt: str = ""
    text_prompt: str = ""
    lower_case: bool = False


def read_settings(folder: Path, *, pooling: str | None = None) -> Settings:
    """Read a model folder's settings.

    Parameters
    ----------
    folder : Path
        With ``config.json`` and, unless ``pooling`` is given, ``modules.json`` or ``1_Pooling/config.json``.
    pooling : str, optional
        The pooling where the kind of model fixes it (BGE-M3: ``cls``).

    Raises
    ------
    ConfigError
        The folder does not state its pooling.
    UnsupportedModelError
        It states a pooling or a module that is not supported.
    ModelNotFoundError
        A file is not valid JSON.
    """
    transformer = read_json(folder / "sentence_bert_config.json") or {}
    prompts = _prompts(read_json(folder / "config_sentence_transformers.json") or {})
    settings = Settings(
        pooling=pooling or _pooling(folder, prompted=any(prompts)),
        max_tokens=_limit(folder, transformer),
        query_prompt=prompts[0],
        text_prompt=prompts[1],
        lower_case=bool(transformer.get("do_lower_case")),
    )
    if settings.pooling not in POOLINGS:
        raise UnsupportedModelError(
            f"The embedder {str(folder)!r} pools by {settings.pooling}; supported are {', '.join(POOLINGS)}."
        )
    return settings


def read_json(path: Path) -> Any:
    """The content of a JSON file, or None if there is no such file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelNotFoundError(f"{str(path)!r} cannot be read ({error}); get the model again.") from error


def _pooling(folder: Path, *, prompted: bool) -> str:
    place = "1_Pooling"
    for module in read_json(folder / "modules.json") or ():
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind not in _MODULES:
            raise UnsupportedModelError(
                f"The embedder {str(folder)!r} has a module {kind!r}; supported are {', '.join(_MODULES)}."
            )
        if kind == "Pooling":
            place = module.get("path", place)
    config = read_json(folder / place / "config.json")
    if config is None:
        raise ConfigError(
            f"The embedder {str(folder)!r} does not state how it pools token vectors; add {place}/config.json with "
            '{"pooling_mode": "cls"} or "mean", "max", "lasttoken", whichever its authors name.'
        )
    if prompted and config.get("include_prompt") is False:
        raise UnsupportedModelError(
            f"The embedder {str(folder)!r} leaves its prompt out of pooling, which is not supported; use another model."
        )
    stated = config.get("pooling_mode")
    modes = [stated] if isinstance(stated, str) else list(stated or ())
    modes = modes or [mode for key, mode in _LEGACY_POOLINGS.items() if config.get(key)]
    return " + ".join(modes) or "nothing"


def _prompts(config: dict[str, Any]) -> tuple[str, str]:
    """For questions and for pages, by the names that sentence-transformers looks for."""
    prompts = config.get("prompts") or {}
    default = prompts.get(config.get("default_prompt_name")) or ""
    text = next((prompts[name] for name in ("document", "passage", "corpus") if prompts.get(name)), default)
    return prompts.get("query") or default, text


def _limit(folder: Path, transformer: dict[str, Any]) -> int:
    """The smallest length limit that any of the files states."""
    config = read_json(folder / "config.json") or {}
    tokenizer = read_json(folder / "tokenizer_config.json") or {}
    positions = config.get("max_position_embeddings")
    kind = str(config.get("model_type", ""))
    if positions and ("roberta" in kind or kind in ("camembert", "mpnet")):
        positions -= int(config.get("pad_token_id", 1)) + 1  # these count positions from behind the padding index
    stated = (transformer.get("max_seq_length"), tokenizer.get("model_max_length"), positions)
    return min((int(limit) for limit in stated if limit), default=_UNSTATED_LIMIT)
