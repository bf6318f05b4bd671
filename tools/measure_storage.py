"""What storage formats cost and save, as Markdown: `PYTHONPATH=. python tools/measure_storage.py [QUESTIONS]`.

Needs the development extras and the package zstandard, which nothing else uses.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import xxhash
import zstandard
from torch import Tensor

from qvpic_rag.bank.blockfile import Written, load_block, write_temporary
from qvpic_rag.config import RenderProfile
from qvpic_rag.models import load_model
from qvpic_rag.packing import in_float32, pack
from qvpic_rag.reader.evaluate import Examiner
from qvpic_rag.reader.facts import PAGES_PER_WORLD, FactQuestion
from qvpic_rag.records import BlockKey, KVBlock, Message
from qvpic_rag.rope import rotate
from tests.matrix import ROWS
from tests.serve import Served, serve
from tests.tiny import build_tiny_model, page_images

KEY = BlockKey("measured", "float32", "", "", "", "native", 72, "", "")
FORMS = {
    "bfloat16": ("bfloat16", "bfloat16"),
    "int8": ("int8", "int8"),
    "int4": ("int4", "int4"),
    "int8 high, int4 low": ("int4", "int8"),
}
PAGES = 4
PER_WORLD = 5
GLM = (40, 2, 645, 128)  # layers, KV heads, tokens of a full page at 72 DPI, head_dim of GLM-4.1V-9B
ROUNDS = 15


def stored(block: KVBlock, form: str) -> KVBlock:
    """A float32 block as it comes back from a bank of this form."""
    if form == "bfloat16":
        return replace(block, keys=_tensor(block.keys).bfloat16(), values=_tensor(block.values).bfloat16())
    return pack(replace(block, key=replace(KEY, storage=form)))


def _tensor(held: object) -> Tensor:
    if not isinstance(held, Tensor):
        raise TypeError("only native blocks are measured against")
    return held


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def divergence(exact: Tensor, found: Tensor) -> tuple[float, int]:
    """KL divergence in nats of the next token's distribution, and whether the likeliest token is the same."""
    p, q = (x.double().log_softmax(-1) for x in (exact, found))
    return float((p.exp() * (p - q)).sum()), int(exact.argmax() == found.argmax())


def families(questions: int = 25) -> str:
    """Tiny random models, one of each family, four pages of two resolutions."""
    rows = []
    for row in ROWS:
        with tempfile.TemporaryDirectory() as folder:
            served = serve(build_tiny_model(row.family, Path(folder)))
            native = served.compile(page_images(PAGES))
            asked = [f"Which door is number {n}?" for n in range(questions)]
            exact = [served.logits(native, question)[-1] for question in asked]
            cells: list[object] = [row.family]
            for low, high in FORMS.values():
                blocks = [stored(block, high if place % 2 else low) for place, block in enumerate(native)]
                found = [divergence(e, served.logits(blocks, q)[-1]) for e, q in zip(exact, asked, strict=True)]
                same = sum(agrees for _, agrees in found)
                cells.append(f"{sum(kl for kl, _ in found) / questions:.1e}, {same}/{questions}")
            rows.append(cells)
    return table(["family", *FORMS], rows)


def _question(rng: random.Random, world: object, chosen: Sequence[int]) -> FactQuestion:
    while True:
        question: FactQuestion | None = world.ask(rng, chosen, None)  # type: ignore[attr-defined]
        if question is not None:
            return question


def reader(examiner: Examiner, questions: int) -> str:
    """The card's questions about four pages, the evidence at 120 DPI and the others at 72."""
    served = Served(examiner.model, examiner.template, examiner.prefix)
    names = ["full prefill", "float32", *FORMS]
    right, same, size = (dict.fromkeys(names, 0) for _ in range(3))
    kl = dict.fromkeys(names, 0.0)
    for number in range(questions // PER_WORLD):
        world, drawn = examiner.world(number)
        rng = random.Random(f"card {PAGES} {number} None bare")  # the same questions as in the card
        chosen = rng.sample(range(PAGES_PER_WORLD), PAGES)
        shown = [drawn[page] for page in chosen]
        native = [examiner.compiled(shown, dpi, "native") for dpi in examiner.dpis]
        forms = {"float32": native}
        for name, pair in FORMS.items():
            forms[name] = [[stored(b, form) for b in blocks] for blocks, form in zip(native, pair, strict=True)]
        for _ in range(PER_WORLD):
            question = _question(rng, world, chosen)
            messages = [Message("user", question.text)]
            high = [page in question.evidence for page in chosen]
            images = [examiner.renderer.image(p, examiner.dpis[h]) for p, h in zip(shown, high, strict=True)]
            text = examiner.full.answer(messages, images, examiner.settings).text
            right["full prefill"] += text == question.answer
            exact = None
            for name, held in forms.items():
                blocks = [held[h][place] for place, h in enumerate(high)]
                logits = served.logits(blocks, question.text)[-1]
                exact = logits if exact is None else exact
                nats, agrees = divergence(exact, logits)
                right[name] += examiner.from_caches(messages, blocks) == question.answer
                kl[name], same[name] = kl[name] + nats, same[name] + agrees
                size[name] += sum(block.nbytes for block in blocks)
    whole = size["bfloat16"]
    rows = [["full prefill", right["full prefill"], "", "", ""]]
    for name in names[1:]:
        nats = f"{kl[name] / questions:.1e}"
        rows.append([name, right[name], nats, f"{same[name]}/{questions}", f"{size[name] / whole:.3f}"])
    head = ["blocks", f"right of {questions}", "KL (nats)", "same first token", "bytes beside bfloat16"]
    return table(head, rows)


def _best(calls: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """Seconds, the least of several rounds in which the calls take turns, so that all see the same machine."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def _bytes(blocks: Sequence[KVBlock]) -> bytes:
    parts = []
    for block in blocks:
        for held in (block.keys, block.values):
            tensors = [held] if isinstance(held, Tensor) else [held.codes, held.scales, held.lows]
            parts += [t.contiguous().view(torch.uint8).numpy().tobytes() for t in tensors if t is not None]
    return b"".join(parts)


def compression(examiner: Examiner) -> str:
    """Whether a general compressor finds anything in real blocks: 32 pages of the demo reader at 120 DPI."""
    native = [
        block
        for number in range(2)
        for block in examiner.compiled(examiner.world(number)[1], examiner.dpis[1], "native")
    ]
    rows = []
    for form in ("float32", "bfloat16", "int8", "int4"):
        raw = _bytes(native if form == "float32" else [stored(block, form) for block in native])
        room, unzip = bytearray(len(raw)), zstandard.ZstdDecompressor()
        calls: dict[str, Callable[[], object]] = {
            "memcpy": lambda room=room, raw=raw: room.__setitem__(slice(None), raw),
            "xxh3": lambda raw=raw: xxhash.xxh3_128_digest(raw),
        }
        ratios = []
        for level in (1, 3):
            zipped = zstandard.ZstdCompressor(level).compress(raw)
            ratios.append(f"{len(zipped) / len(raw):.3f}")
            calls[f"zip {level}"] = lambda raw=raw, level=level: zstandard.ZstdCompressor(level).compress(raw)
            calls[f"unzip {level}"] = lambda zipped=zipped, unzip=unzip: unzip.decompress(zipped)
        speed = {name: f"{len(raw) / 1e6 / seconds:,.0f}" for name, seconds in _best(calls, 5).items()}
        rows.append([form, f"{len(raw) / 1e6:.1f}", *ratios, *speed.values()])
    head = ["blocks", "MB", "zstd -1", "zstd -3", "memcpy MB/s", "xxh3 MB/s", "zstd -1 MB/s", "back MB/s"]
    return table([*head, "zstd -3 MB/s", "back MB/s"], rows)


def _at_once(keys: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, out: Tensor) -> None:
    """How keys were rotated before: every operation over all layers."""
    pairs = cos.shape[-1]
    if interleaved:
        parts = keys[..., : 2 * pairs].to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        torch.view_as_complex(parts.view(*parts.shape[:-1], pairs, 2)).mul_(torch.complex(cos, sin))
        out[..., : 2 * pairs] = parts
    else:
        x, y = keys[..., :pairs].float(), keys[..., pairs : 2 * pairs].float()
        out[..., :pairs] = (x * cos).addcmul_(y, sin, value=-1)
        out[..., pairs : 2 * pairs] = (y * cos).addcmul_(x, sin)
    out[..., 2 * pairs :] = keys[..., 2 * pairs :]


def _shifted(keys: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """If blocks were kept rotated at their own positions: one angle per frequency, the same for all tokens."""
    angles, pairs = torch.complex(cos[:1], sin[:1]), cos.shape[-1]
    for layers, part in in_float32(keys):
        torch.view_as_complex(part[..., : 2 * pairs].view(*part.shape[:-1], pairs, 2)).mul_(angles)
        out[layers] = part


def linking(pages: int = 4) -> str:
    """Linking pages of GLM-4.1V's size into a request's buffer, as multiples of copying the same bfloat16 bytes."""
    layers, heads, tokens, head_dim = GLM
    made = torch.Generator().manual_seed(0)
    native = [tuple(torch.randn(GLM, generator=made).bfloat16() for _ in range(2)) for _ in range(pages)]
    ids = torch.arange(tokens)
    blocks = [KVBlock(keys, values, ids, ids[None], tokens, KEY) for keys, values in native]
    copies = [tuple(torch.empty_like(x) for x in pair) for pair in native]
    buffers = [torch.zeros(layers, heads, pages * tokens + 300, head_dim, dtype=torch.bfloat16) for _ in range(2)]

    def link(held: Sequence[KVBlock], turn: Callable[..., object]) -> Callable[[], None]:
        def run() -> None:
            for number, block in enumerate(held):
                keys, values = (b[:, :, number * tokens : (number + 1) * tokens] for b in buffers)
                turn(block.keys, out=keys)
                if isinstance(block.values, Tensor):
                    values.copy_(block.values)
                else:
                    for some, part in in_float32(block.values):
                        values[some] = part

        return run

    def copy() -> None:
        for pair, targets in zip(native, copies, strict=True):
            for source, target in zip(pair, targets, strict=True):
                target.copy_(source)

    rows = []
    packed = {form: [stored(block, form) for block in blocks] for form in ("int8", "int4")}
    for pairs, interleaved in ((32, True), (64, True), (64, False)):
        angle = torch.rand(tokens, pairs, generator=made) * 6
        angles = {"cos": angle.cos(), "sin": angle.sin()}

        def turn(keys: object, *, out: Tensor, a: dict[str, Tensor] = angles, i: bool = interleaved) -> None:
            rotate(keys, **a, interleaved=i, out=out)  # type: ignore[arg-type]

        def at_once(keys: Tensor, *, out: Tensor, a: dict[str, Tensor] = angles, i: bool = interleaved) -> None:
            _at_once(keys, **a, interleaved=i, out=out)

        calls = {"copy": copy, "at once": link(blocks, at_once), "native": link(blocks, turn)}
        calls |= {form: link(held, turn) for form, held in packed.items()}
        calls["shift"] = link(blocks, lambda keys, *, out, a=angles: _shifted(keys, **a, out=out))
        best = _best(calls)
        ratios = [f"{best[name] / best['copy']:.2f}" for name in list(calls)[1:-1]]
        ratios.append(f"{best['shift'] / best['copy']:.2f}" if interleaved else "")
        layout = f"{'interleaved' if interleaved else 'halves'}, {2 * pairs} of {head_dim}"
        rows.append([layout, f"{best['copy'] * 1000 / pages:.2f}", *ratios])
    head = ["rotated channels", "copy, ms a page", "all layers at once", "native", "int8", "int4", "uniform shift"]
    return table(head, rows)


def loading() -> str:
    """Reading, checking and mapping one page of GLM-4.1V's size from the page cache of the system."""
    native = torch.randn(GLM, generator=torch.Generator().manual_seed(0)).bfloat16()
    ids = torch.arange(GLM[2])
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for form in ("native", "int8", "int4"):
            key = replace(KEY, dtype="bfloat16", storage=form)
            made = write_temporary(Path(folder), pack(KVBlock(native, native, ids, ids[None], GLM[2], key)))

            def load(made: Written = made, key: BlockKey = key) -> KVBlock:
                return load_block(made.path, key, made.nbytes, made.checksum)

            rows.append([form, f"{made.nbytes / 1e6:.2f}", f"{_best({'load': load})['load'] * 1000:.2f}"])
    return table(["blocks", "MB a page", "load, ms a page"], rows)


def shift_error() -> str:
    """Largest error of keys rotated in two roundings (kept rotated, then shifted) and in one, against float32."""
    layers, heads, tokens, head_dim = 4, 2, 645, 128
    keys = torch.randn(layers, heads, tokens, head_dim, generator=torch.Generator().manual_seed(0)).bfloat16()
    frequencies = 10000.0 ** -(torch.arange(64) / 64)
    local, shift = torch.arange(tokens)[:, None] * frequencies, torch.full((tokens, 1), 3000.0) * frequencies

    def turned(x: Tensor, angle: Tensor) -> Tensor:
        return rotate(x, angle.cos(), angle.sin(), interleaved=True)

    exact = turned(keys.float(), local + shift)
    once = turned(keys, local + shift).float() - exact
    twice = turned(turned(keys, local), shift).float() - exact
    rows = [[name, f"{error.square().mean().sqrt():.2e}"] for name, error in (("once", once), ("twice", twice))]
    return table(["bfloat16 keys rounded", "root mean square error"], rows)


def main(questions: int = 200) -> None:
    """Print all tables."""
    torch.set_num_threads(1)
    print(f"## Loading and linking\n\n{loading()}\n{linking()}\n{shift_error()}")
    print(f"## Model families\n\n{families()}")
    examiner = Examiner(load_model("demo", dtype="float32"), RenderProfile.load("demo"), (72, 120))
    print(f"## Bundled reader\n\n{reader(examiner, questions)}")
    print(f"## Compression\n\n{compression(examiner)}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
