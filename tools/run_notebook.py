"""Run a notebook from top to bottom and save it with its outputs: `run_notebook.py NOTEBOOK [SAVE_AS]`."""

from __future__ import annotations

import sys

import nbformat
from nbclient import NotebookClient


def main(notebook: str, save_as: str | None = None) -> None:
    """Run `notebook` in the current folder; without `save_as` it is saved in place."""
    read = nbformat.read(notebook, as_version=4)
    # A stream in one piece and no times in the metadata: the saved file then changes only when what it says does.
    NotebookClient(read, timeout=300, kernel_name="python3", coalesce_streams=True, record_timing=False).execute()
    for cell in read.cells:
        cell.metadata.pop("execution", None)
    nbformat.write(read, save_as or notebook)


if __name__ == "__main__":
    main(*sys.argv[1:])
