"""Small recipes, pages and blocks with known content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from qvpic_rag.bank import Bank
from qvpic_rag.packing import Packed, pack
from qvpic_rag.records import KVBlock, Page, Recipe

DIMENSION = 8


def recipe(**changes: Any) -> Recipe:
    base = Recipe(
        model="zai-org/Glyph",
        revision="main",
        fingerprint="a" * 64,
        dtype="bfloat16",
        system_prompt=None,
        prefix="b" * 64,
        processor="c" * 64,
        profile={"name": "glyph", "font_size": 9.0},
        profile_digest="d" * 64,
        dpis=(72, 120),
        conditioning="native",
        embedder="BAAI/bge-m3",
        embedder_digest="e" * 64,
        dimension=DIMENSION,
    )
    return replace(base, **changes)


def page(text: str, source: str = "a.txt", number: int = 0) -> Page:
    return Page(lines=(text, "end"), text=f"{text}\nend", source=source, number=number)


def document(source: str, texts: Sequence[str]) -> tuple[list[Page], np.ndarray]:
    """Pages and their embeddings; an embedding depends on the text alone."""
    pages = [page(text, source, number) for number, text in enumerate(texts)]
    vectors = np.zeros((len(texts), DIMENSION), dtype=np.float32)
    for row, text in enumerate(texts):
        vectors[row] = np.random.default_rng(list(map(ord, text))).standard_normal(DIMENSION)
    return pages, vectors


def put(bank: Bank, source: str, texts: Sequence[str], *, blocks: bool = True) -> list[Page]:
    """Store a document and, at both resolutions, its blocks."""
    pages, vectors = document(source, texts)
    for entry in pages if blocks else []:
        for dpi in bank.recipe.dpis:
            bank.put_block(block(bank, entry, dpi))
    bank.put_document(source, f"digest of {'|'.join(texts)}", pages, vectors, {"n": len(texts)})
    return pages


def block(
    bank: Bank | Recipe,
    entry: Page | str,
    dpi: int = 72,
    *,
    seed: int | None = None,
    shape: tuple[int, int, int, int] = (2, 2, 6, 4),
    axes: int = 3,
    namespace: str = "default",
) -> KVBlock:
    """A block whose numbers depend on its page and DPI, or on ``seed``."""
    made_with = bank if isinstance(bank, Recipe) else bank.recipe
    namespace = namespace if isinstance(bank, Recipe) else bank.namespace
    digest = entry if isinstance(entry, str) else entry.digest
    key = made_with.block_key(digest, dpi, namespace)
    generator = torch.Generator().manual_seed(int(key.digest[:8], 16) if seed is None else seed)
    dtype = getattr(torch, made_with.dtype)
    keys, values = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    tokens = shape[2]
    token_ids = torch.arange(tokens) + 1000
    positions = torch.arange(axes * tokens).reshape(axes, tokens) % 7
    return pack(KVBlock(keys, values, token_ids, positions, span=5, key=key))


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(left: KVBlock, right: KVBlock) -> bool:
    """Bit by bit, NaN payloads included."""
    mine, other = tensors(left), tensors(right)
    return (
        (left.span, left.key) == (right.span, right.key)
        and list(mine) == list(other)
        and all(
            mine[name].dtype == other[name].dtype
            and mine[name].shape == other[name].shape
            and bits(mine[name]) == bits(other[name])
            for name in mine
        )
    )


def tensors(block: KVBlock) -> dict[str, torch.Tensor]:
    """Every tensor of a block by the name that it has in the file."""
    found = {"token_ids": block.token_ids, "positions": block.positions}
    for name, held in (("keys", block.keys), ("values", block.values)):
        if isinstance(held, Packed):
            assert (held.kind, held.dtype) == (name, getattr(torch, block.key.dtype))
            found |= {f"{name}.codes": held.codes, f"{name}.scales": held.scales}
            found |= {} if held.lows is None else {f"{name}.lows": held.lows}
        else:
            found[name] = held
    return found
