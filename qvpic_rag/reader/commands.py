"""``qvpic reader``: train, evaluate and export a small reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qvpic_rag.config import RenderProfile
from qvpic_rag.console import err, reported, say
from qvpic_rag.errors import ConfigError
from qvpic_rag.reader.options import Debug, Device, Minutes, Recipe, Run, until
from qvpic_rag.reader.smolglyph.commands import smolglyph_app

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["reader_app"]

reader_app = typer.Typer(help="Make a small reader.", no_args_is_help=True, rich_markup_mode=None)
reader_app.add_typer(smolglyph_app)


@reader_app.command()
def train(
    run: Run,
    recipe: Recipe = None,
    start: Annotated[
        Path | None, typer.Option(help="Exported reader to start from instead of fresh weights.", show_default=False)
    ] = None,
    minutes: Minutes = None,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """Train a reader, or go on training it.

    Stop it with Ctrl-C at any time; the same command continues from the last checkpoint, also on another machine.
    """
    with reported(debug):
        import torch

        from qvpic_rag.models.device import resolve_device
        from qvpic_rag.reader.export import new_reader
        from qvpic_rag.reader.recipe import DEMO_RECIPE, load_recipe
        from qvpic_rag.reader.train import Trainer

        torch.set_flush_denormal(True)  # masked softmax makes denormals, which cost a CPU half of its speed
        stages = load_recipe(recipe or DEMO_RECIPE)
        model, prompts = new_reader(stages.seed, start)
        trainer = Trainer(run, stages, model.to(resolve_device(device)), prompts, lambda line: say(json.dumps(line)))
        with until(minutes) as stop:
            trainer.run(stop)


@reader_app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Folder of the run.", metavar="RUN")],
    folder: Annotated[Path, typer.Argument(help="Where to write the model.", metavar="FOLDER")],
    debug: Debug = False,
) -> None:
    """Write a run's newest weights as a Hugging Face folder."""
    with reported(debug):
        from transformers.utils import logging as transformers_logging

        from qvpic_rag.reader.export import export_reader, weights_of_run

        transformers_logging.disable_progress_bar()
        export_reader(weights_of_run(run), folder)
        say(f"The reader is in {folder}; measure it with: qvpic reader eval {folder}")


@reader_app.command("eval")
def evaluate(
    model: Annotated[
        str, typer.Argument(help="Folder of an exported reader, or demo, the bundled one.", metavar="MODEL")
    ] = "demo",
    questions: Annotated[int, typer.Option(help="Questions per cell of a table.", min=1)] = 500,
    pages: Annotated[str, typer.Option(help="Numbers of pages, of 1 to 16.")] = "1,2,4,8,16",
    tables: Annotated[str, typer.Option(help="Of letters, pages, kinds, prompts.")] = "letters,pages,kinds,prompts",
    results: Annotated[
        Path | None, typer.Option(help="JSON Lines file for every answer; one that exists is continued.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Measure a reader on documents that it never saw.

    Prints the tables of its card.
    """
    with reported(debug):
        from qvpic_rag.models import load_model
        from qvpic_rag.reader.evaluate import Examiner
        from qvpic_rag.reader.pictures import PROFILE
        from qvpic_rag.reader.tables import TABLES, measure

        counts = _counts(pages)
        wanted = [name.strip() for name in tables.split(",")]
        if unknown := sorted(set(wanted) - set(TABLES)):
            raise ConfigError(f"There is no table {', '.join(unknown)}; choose of {', '.join(TABLES)}.")
        with err.status("Loading the model ..."):
            examiner = Examiner(load_model(model), RenderProfile.load(PROFILE), (72, 120))
        for table in measure(examiner, wanted, counts, questions, results, _progress()):
            say(table)


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or not all(1 <= count <= 16 for count in counts):
        raise ConfigError(f"--pages must be numbers from 1 to 16 with commas between, not {text!r}.")
    return counts


def _progress() -> Callable[[str], Any]:
    return lambda text: err.print(text)
