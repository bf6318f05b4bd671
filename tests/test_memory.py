"""Large buffers: like ``torch.empty`` in everything but where they lie."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch

from qvpic_rag import memory


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.uint8, torch.int64])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 5), (7,), (2, 3, 1000, 1000), (9 * 10**6,)])
def test_shape_dtype_and_content(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    found = memory.empty(shape, dtype=dtype)
    assert (found.shape, found.dtype, found.device.type) == (torch.Size(shape), dtype, "cpu")
    assert found.is_contiguous()
    assert found.data_ptr() % 64 == 0
    found.fill_(3)
    assert bool((found == 3).all())


def test_it_lives_as_long_as_any_view_and_copies_like_a_tensor() -> None:
    view = memory.empty((10**7,), dtype=torch.uint8).fill_(7)[5:20]
    others = [memory.empty((10**7,), dtype=torch.uint8).fill_(n) for n in range(3)]
    assert bool((view == 7).all())
    assert bool((copy.deepcopy(others[1]) == 1).all())
    assert bool((pickle.loads(pickle.dumps(others[2][:100])) == 2).all())


def test_another_device_is_torchs_business() -> None:
    assert memory.empty((10**7,), dtype=torch.uint8, device=torch.device("meta")).device.type == "meta"


def test_memory_is_given_back() -> None:
    status = Path("/proc/self/statm")
    if not status.exists():
        pytest.skip("needs /proc")

    def resident() -> int:
        return int(status.read_text().split()[1])

    memory.empty((10**8,), dtype=torch.uint8).fill_(1)
    before = resident()
    for _ in range(20):
        memory.empty((10**8,), dtype=torch.uint8).fill_(1)
    assert resident() - before < 10**8 // 4096
