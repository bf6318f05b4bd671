"""``qvpic bench bank``."""

from __future__ import annotations

from typing import Annotated

import typer

from qvpic_rag.bank_cli import AsJson, Debug
from qvpic_rag.console import print_json, reported, say

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
