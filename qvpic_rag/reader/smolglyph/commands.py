"""``qvpic reader smolglyph``: train, evaluate and export the reader with SmolLM2 inside."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from qvpic_rag.config import RenderProfile
from qvpic_rag.console import err, reported, say
from qvpic_rag.errors import ConfigError
from qvpic_rag.reader.options import Debug, Device, Minutes, Recipe, Run, until

__all__ = ["smolglyph_app"]

smolglyph_app = typer.Typer(
    help="Make the reader with SmolLM2 inside.", no_args_is_help=True, rich_markup_mode=None, name="smolglyph"
)
Corpus = Annotated[
    list[Path] | None,
    typer.Option(
        help="Folder of English text for a new run, may be given again; by default this machine's documentation.",
        show_default=False,
    ),
]


@smolglyph_app.command()
def train(
    run: Run,
    recipe: Recipe = None,
    corpus: Corpus = None,
    minutes: Minutes = None,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """Train smolglyph, or go on training it.

    Stop it with Ctrl-C at any time; the same command continues from the last checkpoint. Another machine needs no more
    than the run's folder.
    """
    with reported(debug):
        from qvpic_rag.reader.smolglyph.recipe import RECIPE, load_recipe
        from qvpic_rag.reader.smolglyph.train import open_run

        stages = load_recipe(recipe or RECIPE)
        trainer = open_run(run, stages, corpus=corpus or (), device=device, log=lambda line: say(json.dumps(line)))
        with until(minutes) as stop:
            trainer.run(stop)


@smolglyph_app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Folder of the run.", metavar="RUN")],
    folder: Annotated[Path, typer.Argument(help="Where to write the adapter.", metavar="FOLDER")],
    debug: Debug = False,
) -> None:
    """Write a run's newest vision tower and low-rank updates: a folder to name as a model."""
    with reported(debug):
        from qvpic_rag.reader.smolglyph.train import export_run

        export_run(run, folder)
        say(f"The adapter is in {folder}; measure it with: qvpic reader smolglyph eval {folder}")


@smolglyph_app.command("eval")
def evaluate(
    model: Annotated[str, typer.Argument(help="Folder of an exported adapter.", metavar="MODEL")],
    run: Annotated[
        Path | None,
        typer.Option(
            help="Folder of its run, for the text that was set aside; by default this machine's documentation.",
            show_default=False,
        ),
    ] = None,
    questions: Annotated[int, typer.Option(help="Questions per cell of a table.", min=1)] = 500,
    pages: Annotated[int, typer.Option(help="Pages of each kind to write down.", min=1)] = 60,
    debug: Debug = False,
) -> None:
    """Measure smolglyph on text that it never saw.

    Prints the tables of its card and whether it is good enough to be offered.
    """
    with reported(debug):
        from qvpic_rag.models import load_model
        from qvpic_rag.reader.smolglyph.corpus import load_corpus
        from qvpic_rag.reader.smolglyph.evaluate import GlyphExaminer, measure, trained_on

        if run is not None and not (run / "corpus.txt").is_file():
            raise ConfigError(f"There is no {run / 'corpus.txt'}; name the folder of a run, or leave out --run.")
        digest = trained_on(model)
        with err.status("Loading the model ..."):
            loaded = load_model(model)
        with tempfile.TemporaryDirectory(prefix="qvpic-corpus-") as folder:
            corpus = load_corpus((run or Path(folder)) / "corpus.txt", progress=err.print)
        if digest != corpus.digest and run is not None:
            raise ConfigError(
                f"{model} does not say that it was trained on {run / 'corpus.txt'}; name the run that it was exported "
                "from, or export it again."
            )
        if digest != corpus.digest:
            # A paragraph's hash decides its split, so one that was trained on is not asked about if it is the same to
            # the last byte. Where it was edited or cut elsewhere since then, it may be.
            err.print(
                "The collected text is not the one of the reader's run, so parts of it may have been trained on; name "
                "that run with --run."
            )
        examiner = GlyphExaminer(loaded, corpus, RenderProfile.load("smolglyph"))
        for table in measure(examiner, pages=pages, asked=questions, progress=err.print):
            say(table)
