"""Large buffers in huge pages: a request writes its whole context into fresh memory, and with small pages the system
spends more time on handing that out than the copy takes (measured: 92 ms instead of 22 ms for 264 MB)."""

from __future__ import annotations

import contextlib
import mmap
import sys

import torch
from torch import Tensor

__all__ = ["empty"]

_LEAST = 4 << 20  # bytes; two huge pages of the usual size


def empty(shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """As ``torch.empty``; on a CPU under Linux a large one is in huge pages, where the system grants them."""
    nbytes = dtype.itemsize
    for size in shape:
        nbytes *= size
    if sys.platform != "linux" or nbytes < _LEAST or (device is not None and device.type != "cpu"):
        return torch.empty(shape, dtype=dtype, device=device)
    try:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"There is no memory for a buffer of {nbytes:,} bytes.") from error
    with contextlib.suppress(OSError):  # a kernel without them: small pages are as right, and slower
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
