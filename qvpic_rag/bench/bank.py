"""What the bank costs over plain copying, reading and writing of the same bytes.

The blocks have GLM-4.1V-9B's KV geometry and random numbers: 40 layers, 2 KV heads, head dim 128, bfloat16, and ten
pages of 645 tokens, 264 MB. Its rotary module is the real one, so linking is what a request does.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
import xxhash
from torch import Tensor

from qvpic_rag.assemble import assemble
from qvpic_rag.bank import Bank
from qvpic_rag.bench.stopwatch import best_times
from qvpic_rag.cache import BufferCache
from qvpic_rag.models import VisionLanguageModel
from qvpic_rag.packing import pack
from qvpic_rag.records import KVBlock, Recipe
from qvpic_rag.rope import Rotary, rotate

__all__ = ["BankFigures", "measure"]

LAYERS, KV_HEADS, HEAD_DIM = 40, 2, 128
PAGES, TOKENS = 10, 645
_GRID = 23  # visual tokens stand in rows: the page's span is the longer side of its grid
_CHUNK = 1 << 20


@dataclass(frozen=True)
class BankFigures:
    """Seconds for all pages, the fastest of several rounds each; ``nbytes`` of their keys and values as stored.

    ``memcpy`` and ``memcpy_bytes`` are of the context in bfloat16, which linking writes whatever the storage format.
    """

    storage: str
    threads: int
    nbytes: int
    memcpy_bytes: int
    memcpy: float
    link: float
    assemble: float
    read: float
    map: float
    copy: float
    ram: float
    checksum: float
    write: float
    put: float

    @property
    def ratios(self) -> dict[str, float]:
        """The figures that hold on other machines."""
        return {
            "assemble / memcpy": self.assemble / self.memcpy,
            "of that, linking into an existing buffer / memcpy": self.link / self.memcpy,
            "load, mapped, without checksum / read()": (self.map - self.checksum) / self.read,
            "load, into memory, without checksum / read()": (self.copy - self.checksum) / self.read,
            "checksum / read()": self.checksum / self.read,
            "put / write and fsync": self.put / self.write,
        }

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, and the ratios."""
        return {**asdict(self), "ratios": self.ratios}


@dataclass
class _Geometry:
    """As much of a model as linking looks at."""

    rotary: Rotary
    layers: int
    kv_heads: int = KV_HEADS
    head_dim: int = HEAD_DIM
    axes: int = 3
    dtype: torch.dtype = torch.bfloat16
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    lock: threading.RLock = field(default_factory=threading.RLock)


def _geometry() -> _Geometry:
    from transformers.models.glm4v.configuration_glm4v import Glm4vTextConfig
    from transformers.models.glm4v.modeling_glm4v import Glm4vTextRotaryEmbedding

    config = Glm4vTextConfig(
        hidden_size=4096,
        num_attention_heads=32,
        num_key_value_heads=KV_HEADS,
        num_hidden_layers=LAYERS,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [8, 12, 12],
        },
    )
    return _Geometry(Rotary(Glm4vTextRotaryEmbedding(config), axes=3, interleaved=True), LAYERS)


def _recipe(storage: str) -> Recipe:
    return Recipe(
        model="GLM-4.1V-9B's KV geometry, random numbers",
        revision="",
        fingerprint="0" * 64,
        dtype="bfloat16",
        system_prompt=None,
        prefix="",
        processor="",
        profile={"name": "bench"},
        profile_digest="",
        dpis=(72, 120),
        conditioning="native",
        embedder="",
        embedder_digest="",
        dimension=1,
        storage=(storage, storage),
    )


def _blocks(recipe: Recipe) -> list[KVBlock]:
    generator = torch.Generator().manual_seed(0)
    shape = (LAYERS, KV_HEADS, TOKENS, HEAD_DIM)
    rows = torch.arange(TOKENS) // _GRID
    positions = torch.stack([torch.zeros_like(rows), rows, torch.arange(TOKENS) % _GRID])
    return [
        pack(
            KVBlock(
                keys=torch.randn(shape, generator=generator).bfloat16(),
                values=torch.randn(shape, generator=generator).bfloat16(),
                token_ids=torch.arange(TOKENS),
                positions=positions,
                span=TOKENS // _GRID + 1,
                key=recipe.block_key(f"{number:064x}", recipe.dpis[0], "default"),
            )
        )
        for number in range(PAGES)
    ]


class _Bench:
    """The actions that are timed, on one set of blocks."""

    def __init__(self, folder: Path, storage: str) -> None:
        self.folder = folder
        self.recipe = _recipe(storage)
        self.blocks = _blocks(self.recipe)
        self.geometry = _geometry()
        self.model = cast("VisionLanguageModel", self.geometry)
        self.sources = torch.randn(2, LAYERS, KV_HEADS, PAGES * TOKENS, HEAD_DIM).bfloat16()
        self.targets = torch.empty_like(self.sources)
        self.cache = BufferCache(
            LAYERS, KV_HEADS, PAGES * TOKENS, HEAD_DIM, dtype=torch.bfloat16, device=self.geometry.device
        )
        self.bank = Bank.create(folder / "bank", self.recipe)
        self.cached = Bank.open(self.bank.path, ram_bytes=2**40)
        self.turn = 0
        for block in self.blocks:
            self.bank.put_block(block)
        self.files = sorted((self.bank.path / "blocks").rglob("*.safetensors"))
        self.contents = [file.read_bytes() for file in self.files]
        self.buffer = memoryview(bytearray(max(map(len, self.contents))))

    def memcpy(self) -> None:
        self.targets.copy_(self.sources)

    def link(self) -> None:
        positions = torch.cat([block.positions for block in self.blocks], dim=1)
        cos, sin = self.geometry.rotary.angles(positions)
        for number, block in enumerate(self.blocks):
            part = slice(number * TOKENS, (number + 1) * TOKENS)
            rotate(block.keys, cos[part], sin[part], interleaved=True, out=self.cache.key_buffer[:, :, part])
            values = self.cache.value_buffer[:, :, part]
            if isinstance(block.values, Tensor):
                values.copy_(block.values)
            else:
                rotate(block.values, cos[part, :0], sin[part, :0], interleaved=True, out=values)

    def assemble(self) -> None:
        assemble(self.model, self.blocks, query_tokens=40, new_tokens=256)

    def read(self) -> None:
        for file in self.files:
            with file.open("rb", buffering=0) as handle:
                while handle.readinto(self.buffer):
                    pass

    def checksum(self) -> None:
        """As a load takes it: piece by piece, each while it is in the processor's cache."""
        for content in self.contents:
            view, hasher = memoryview(content), xxhash.xxh3_128()
            for start in range(0, len(view), _CHUNK):
                hasher.update(view[start : start + _CHUNK])
            hasher.hexdigest()

    def map(self) -> None:
        for block in self.blocks:
            self.bank.get_block(block.key)

    def copy(self) -> None:
        """Into a RAM tier that has forgotten them."""
        self.cached.blocks.forget([block.key.digest for block in self.blocks])
        for block in self.blocks:
            self.cached.get_block(block.key)

    def ram(self) -> None:
        for block in self.blocks:
            self.cached.get_block(block.key)

    def write(self) -> None:
        self.turn += 1
        for number, content in enumerate(self.contents):
            with (self.folder / f"{self.turn}-{number}").open("xb") as handle:
                handle.write(content)
                handle.flush()
                os.fsync(handle.fileno())

    def put(self) -> None:
        self.turn += 1
        for number, block in enumerate(self.blocks):
            page = f"{self.turn * PAGES + number:064x}"
            self.bank.put_block(replace(block, key=replace(block.key, page=page)))

    def tidy(self) -> None:
        """Remove what the last round wrote, outside anybody's time."""
        for file in self.folder.iterdir():
            if file.is_file():
                file.unlink()
        self.bank.gc(grace_s=0)
        for block in self.blocks:
            self.bank.put_block(block)


def measure(
    storage: str, rounds: int, progress: Callable[[int, int, str], None] = lambda done, total, what: None
) -> BankFigures:
    """Time the bank with blocks of a storage format, ``rounds`` times each.

    Needs 1.5 GB of memory and of disk below the system's folder for temporary files.
    """
    with tempfile.TemporaryDirectory(prefix="qvpic-bench-") as folder:
        bench = _Bench(Path(folder), storage)
        actions: Sequence[Callable[[], None]] = (
            bench.memcpy,
            bench.link,
            bench.assemble,
            bench.read,
            bench.checksum,
            bench.map,
            bench.copy,
            bench.ram,
        )
        times = best_times({action.__name__: action for action in actions}, rounds, progress)
        for turn in range(max(1, rounds // 4)):
            again = best_times({"write": bench.write, "put": bench.put}, 1, lambda done, total, what: None)
            progress(turn, max(1, rounds // 4), "writing")
            times = {**times, **{name: min(times.get(name, float("inf")), value) for name, value in again.items()}}
            bench.tidy()
        bench.cached.close()
        bench.bank.close()
        return BankFigures(
            storage=storage,
            threads=torch.get_num_threads(),
            nbytes=sum(block.nbytes for block in bench.blocks),
            memcpy_bytes=bench.sources.nbytes,
            **times,
        )
