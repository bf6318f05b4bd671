"""BGE-M3's layout, through FlagEmbedding."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import numpy as np
import pytest
import torch

from qvpic_rag.embed import load_embedder
from qvpic_rag.errors import ModelNotFoundError
from tests.embed.small import TEXTS, WORDS, as_pickle, save_bge, save_model, states, unit


@pytest.fixture(scope="module")
def bge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bge(tmp_path_factory.mktemp("bge"))


def test_bge_m3_goes_through_flagembedding_and_equals_plain_cls(bge: Path, capfd: pytest.CaptureFixture[str]) -> None:
    embedder = load_embedder(str(bge))
    texts = [*TEXTS, "w7 " * 20]
    found = embedder.encode(texts, query=True)
    assert capfd.readouterr() == ("", "")
    reference = np.stack([unit(states(bge, text)[0]) for text in texts])
    cosines = (found * reference).sum(1)
    assert [f"{cosine:.4f}" for cosine in cosines] == ["1.0000"] * len(texts)
    from FlagEmbedding import BGEM3FlagModel

    flag = BGEM3FlagModel(str(bge), use_fp16=False, devices="cpu")
    dense = flag.encode(texts, batch_size=64, max_length=32)["dense_vecs"]
    np.testing.assert_allclose(found, dense, atol=1e-6)
    assert embedder.dimension == 16


def test_bge_m3_takes_long_texts_up_to_the_model_limit(bge: Path) -> None:
    embedder = load_embedder(str(bge))
    long = " ".join(WORDS[:30])  # 32 tokens with the special ones: all that 34 positions of this family hold
    assert np.abs(embedder.encode([long]) - embedder.encode([long.replace("w29", "w1")])).max() > 1e-4
    np.testing.assert_array_equal(embedder.encode([long]), embedder.encode([long + " w1 w2"]))


def test_a_downloaded_hub_model_is_used_without_the_hub(
    bge: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    cached = tmp_path / "models--BAAI--bge-m3"
    shutil.copytree(bge, cached / "snapshots" / ("a" * 40))
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("a" * 40)
    as_pickle(cached / "snapshots" / ("a" * 40))
    embedder = load_embedder("BAAI/bge-m3")
    assert embedder.name == "BAAI/bge-m3"
    np.testing.assert_array_equal(embedder.encode(TEXTS), load_embedder(str(bge)).encode(TEXTS))


def test_bge_m3_without_a_head_or_with_a_poisoned_one_is_refused(bge: Path, tmp_path: Path) -> None:
    shutil.copytree(bge, tmp_path / "m")
    folder = tmp_path / "m"
    marker = tmp_path / "ran"
    torch.save({"weight": Exploit(str(marker))}, folder / "sparse_linear.pt")
    with pytest.raises(ModelNotFoundError, match=r"sparse_linear.pt that is damaged or holds more than tensors"):
        load_embedder(str(folder))
    assert not marker.exists()
    (folder / "sparse_linear.pt").write_bytes(b"cut off")
    with pytest.raises(ModelNotFoundError, match="damaged"):
        load_embedder(str(folder))
    (folder / "sparse_linear.pt").unlink()
    with pytest.raises(ModelNotFoundError, match=r"lacks sparse_linear.pt"):
        load_embedder(str(folder))


@pytest.mark.parametrize("save", [save_bge, save_model])
def test_pickled_weights_that_hold_code_are_refused(save: Callable[[Path], Path], tmp_path: Path) -> None:
    folder = save(tmp_path / "m")
    marker = tmp_path / "ran"
    as_pickle(folder, {"extra": Exploit(str(marker))})
    with pytest.raises(ModelNotFoundError, match="cannot be loaded"):
        load_embedder(str(folder))
    assert not marker.exists()


class Exploit:
    """Writes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        return (open, (self.path, "w"))
