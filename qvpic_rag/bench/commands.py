"""``qvpic bench bank`` and ``qvpic bench ttft``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from qvpic_rag.bank_cli import AsJson, Debug
from qvpic_rag.console import print_json, reported, say
from qvpic_rag.errors import ConfigError, QVPICError

__all__ = ["bench_app"]

bench_app = typer.Typer(help="Measure what parts cost.", no_args_is_help=True, rich_markup_mode=None)


@bench_app.callback()
def bench() -> None:
    """Measure what parts cost, as ratios taken within one run."""


@bench_app.command("bank")
def bench_bank(
    storage: Annotated[str, typer.Option(help="Storage format of the blocks: native, int8 or int4.")] = "native",
    rounds: Annotated[int, typer.Option(help="How often each part is timed; the fastest counts.", min=1)] = 12,
    threads: Annotated[int, typer.Option(help="Threads for copying and linking.", min=1)] = 1,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Linking, loading and storing of ten pages of GLM-4.1V-9B's size, over copying, reading and writing those bytes.

    Takes half a minute, 1.5 GB of memory and as much space for temporary files.
    """
    with reported(debug):
        import torch

        from qvpic_rag.bench.bank import PAGES, TOKENS, measure
        from qvpic_rag.config import check_storage
        from qvpic_rag.progress import bar

        form, _ = check_storage(storage)
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            with bar("Measuring", "rounds", enabled=not as_json) as update:
                figures = measure(form, rounds, update)
        finally:
            torch.set_num_threads(before)
        if as_json:
            print_json(figures.to_dict())
            return
        say(f"{PAGES} pages, {PAGES * TOKENS} tokens, {figures.nbytes / 1e6:.0f} MB as {form}, {threads} thread(s)")
        for name in ("memcpy", "link", "assemble", "read", "checksum", "map", "copy", "ram", "write", "put"):
            say(f"  {name:9} {1000 * getattr(figures, name):8.1f} ms")
        for name, ratio in figures.ratios.items():
            say(f"{ratio:6.2f}  {name}")


@bench_app.command("ttft")
def bench_ttft(
    geometry: Annotated[
        str, typer.Option(help="Shape: glm-4.1v-9b, qwen2.5-vl-3b, qwen2.5-vl-7b, qwen3-vl-4b, or tiny for tests.")
    ] = "glm-4.1v-9b",
    pages: Annotated[int, typer.Option(help="Full pages of the context.", min=1)] = 10,
    scale: Annotated[
        float, typer.Option(help="Share of the layers, above 0 and at most 1; widths, embedding and head stay whole.")
    ] = 1.0,
    rounds: Annotated[int, typer.Option(help="How often each method is timed, after a round to warm up.", min=1)] = 5,
    promoted: Annotated[
        int | None,
        typer.Option(help="Pages that QV-PIC reads at high resolution; 4, or all if fewer, by default.", min=0),
    ] = None,
    dpis: Annotated[str, typer.Option(help="Low and high resolution.", metavar="LOW,HIGH")] = "72,120",
    text_tokens: Annotated[
        int,
        typer.Option(
            help="Text tokens of a page. Measured with SmolLM2's tokenizer: 1700 on the median full page of "
            "LongBench's multi-hop tasks, 2305 on one without short lines.",
            min=1,
        ),
    ] = 1700,
    device: Annotated[
        str | None, typer.Option(help="Such as cpu or cuda:0; the first CUDA device where one is.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="bfloat16, float16 or float32; bfloat16 on an accelerator, float32 on a CPU.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for ttft.json and ttft.md.", file_okay=False)] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Time to the first token of QV-PIC, text PIC and full prefill, on a published model's shape with random weights.

    Nothing is downloaded. Embedding the question is not included.
    """
    with reported(debug):
        from qvpic_rag.bench.ttft import Workload, measure
        from qvpic_rag.progress import bar

        chosen = min(4, pages) if promoted is None else promoted
        workload = Workload(geometry, scale, pages, chosen, _pair(dpis), text_tokens, rounds)
        if out is not None:
            _made(out)
        with bar("Measuring", "rounds", enabled=not as_json) as update:
            figures = measure(workload, device=device, dtype=dtype, progress=update)
        table = figures.markdown()
        if out is not None:
            _write(out / "ttft.json", json.dumps(figures.to_dict(), indent=2) + "\n")
            _write(out / "ttft.md", table + "\n")
        if as_json:
            print_json(figures.to_dict())
        else:
            say(table)


def _pair(dpis: str) -> tuple[int, int]:
    """``LOW,HIGH`` as two numbers; their order and range are the workload's business."""
    try:
        low, high = map(int, dpis.split(","))
    except ValueError as error:
        raise ConfigError(f"--dpis must be two whole numbers such as 72,120, not {dpis!r}.") from error
    return low, high


def _made(folder: Path) -> None:
    """Found out before minutes of measuring."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"The folder {str(folder)!r} cannot be made ({error.strerror}); give another --out."
        ) from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise QVPICError(f"{str(path)!r} cannot be written ({error.strerror}); give another --out.") from error
