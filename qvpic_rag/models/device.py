"""Where a model runs and in which dtype: one check for language models and embedders."""

from __future__ import annotations

import torch

from qvpic_rag.errors import ConfigError

__all__ = ["default_dtype", "resolve_device", "torch_dtype"]

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def resolve_device(device: str | None) -> torch.device:
    """The device of that name, with its index; None is the first CUDA device, else the CPU.

    Raises
    ------
    ConfigError
        It is unknown, not there, or holds no data.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:  # torch asserts when it was built without CUDA
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(f"Device {device!r} cannot be used here ({reason}); use device='cpu'.") from error
    if found.type == "meta":
        raise ConfigError("Device 'meta' holds no data; use device='cpu'.")
    return found


def default_dtype(device: torch.device) -> str:
    """What a model is loaded in where nobody says: bfloat16 on an accelerator, float32 on a CPU."""
    return "float32" if device.type == "cpu" else "bfloat16"


def torch_dtype(name: str) -> torch.dtype:
    """The dtype ``bfloat16``, ``float16`` or ``float32``; ``ConfigError`` for others."""
    if name not in _DTYPES:
        raise ConfigError(f"dtype must be one of {', '.join(_DTYPES)}, not {name!r}.")
    return _DTYPES[name]
