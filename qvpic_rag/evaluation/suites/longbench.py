"""Six question-answering tasks of LongBench (Bai et al., 2024), rendered and asked as Glyph and QV-PIC do."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from qvpic_rag.errors import ConfigError, InputError
from qvpic_rag.evaluation.records import Example
from qvpic_rag.evaluation.suites.base import Paginator, one_of, some_of, whole
from qvpic_rag.evaluation.suites.rows import Row, json_rows
from qvpic_rag.records import Page

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["LONGBENCH_TASKS", "LongBench", "longbench_prompts"]

_REPOSITORY, _ARCHIVE = "THUDM/LongBench", "data.zip"


@dataclass(frozen=True)
class _Task:
    """``tokens``: longest answer (LongBench); ``literal``: newlines are drawn (Glyph)."""

    tokens: int = 32
    literal: bool = False
    scoring: str = "longbench"


_TASKS = {
    "2wikimqa": _Task(),
    "hotpotqa": _Task(literal=True),
    "musique": _Task(),
    "multifieldqa_en": _Task(tokens=64),
    "narrativeqa": _Task(tokens=128, literal=True),
    "triviaqa": _Task(literal=True, scoring="longbench-first-line"),
}
LONGBENCH_TASKS = tuple(_TASKS)
"""The tasks there are, in the order in which they are asked."""


def longbench_prompts() -> dict[str, dict[str, dict[str, str]]]:
    """Choice -> task -> ``before`` and ``after`` the pages."""
    text = Path(__file__).with_name("longbench_prompts.toml").read_text(encoding="utf-8")
    prompts: dict[str, dict[str, dict[str, str]]] = tomllib.loads(text)
    return prompts


@dataclass(frozen=True)
class LongBench:
    """The suite ``longbench``.

    Questions about the same context follow each other and are one group.

    Attributes
    ----------
    data : str | None
        A folder with ``<task>.jsonl`` files; None: the data set THUDM/LongBench of the Hugging Face hub, downloaded
        once.
    tasks : tuple[str, ...]
        Some of :data:`LONGBENCH_TASKS`.
    limit : int | None
        The first so many questions of each task.
    prompts : str
        ``glyph`` (question after the pages, for pictures) or ``longbench`` (LongBench's own, around the context).
    max_context : int | None
        Text tokens; of a longer context the first and the last half are kept, LongBench's rule.
    """

    name: ClassVar[str] = "longbench"

    data: str | None = None
    tasks: tuple[str, ...] = LONGBENCH_TASKS
    limit: int | None = None
    prompts: str = "glyph"
    max_context: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", some_of("longbench", "tasks", self.tasks, LONGBENCH_TASKS))
        one_of("longbench", "prompts", self.prompts, tuple(longbench_prompts()))
        for option in ("limit", "max_context"):
            if getattr(self, option) is not None:
                whole("longbench", option, getattr(self, option), 1)
        if self.data is not None and not Path(self.data).is_dir():
            raise ConfigError(f"There is no folder {str(self.data)!r}; give one with {self.tasks[0]}.jsonl and others.")

    @property
    def settings(self) -> Mapping[str, Any]:
        """The options, with the folder's name alone, and the SHA-256 of each task's file, wherever it lies."""
        return {
            "data": _REPOSITORY if self.data is None else Path(self.data).resolve().name,
            "tasks": list(self.tasks),
            "limit": self.limit,
            "prompts": self.prompts,
            "max_context": self.max_context,
            "sha256": {task: hashlib.sha256(self._file(task)[0]).hexdigest() for task in self.tasks},
        }

    def examples(self, reader: Paginator) -> Iterator[Example]:
        """Task after task, in the files' order but for questions about a context that came before.

        Raises
        ------
        InputError
            A file is missing, a row is incomplete, or the data set cannot be downloaded.
        """
        prompts = longbench_prompts()[self.prompts]
        for task in self.tasks:
            groups: dict[str, list[Row]] = {}
            for row in self._rows(task):
                digest = hashlib.sha256(row.text("context").encode("utf-8", "surrogatepass")).hexdigest()
                groups.setdefault(f"{task}-{digest[:16]}", []).append(row)
            for group, rows in groups.items():
                pages, cut = self._pages(reader, task, group, rows[0])
                for row in rows:
                    yield self._example(task, prompts[task], row, group, pages, cut)

    def _pages(self, reader: Paginator, task: str, group: str, row: Row) -> tuple[tuple[Page, ...], bool]:
        context, cut = row.text("context"), False
        if self.prompts == "glyph":
            context = context.strip()  # as Glyph's script does
        if self.max_context is not None:
            context, cut = reader.cut(context, self.max_context)
        pages = tuple(reader.pages(context, group, literal=_TASKS[task].literal))
        return pages, cut

    def _example(
        self, task: str, prompt: Mapping[str, str], row: Row, group: str, pages: tuple[Page, ...], cut: bool
    ) -> Example:
        question = row.text("input")
        if self.prompts == "glyph":
            question = question.strip()
        before, after = (prompt[part].replace("{input}", question) for part in ("before", "after"))
        if self.prompts == "glyph":
            after = after.strip()
        return Example(
            id=f"{task}-{row.text('_id')}",
            group=group,
            kind=task,
            pages=pages,
            before=before,
            after=after,
            query=_asked(task, question),
            answers=row.texts("answers"),
            evidence=None,
            scoring=_TASKS[task].scoring,
            max_new_tokens=_TASKS[task].tokens,
            cut=cut,
        )

    def _rows(self, task: str) -> list[Row]:
        """The rows that are asked, all checked before the first is."""
        data, source = self._file(task)
        rows: list[Row] = []
        seen: set[str] = set()
        for row in json_rows(data, source):
            if len(rows) == self.limit:
                break
            for name in ("input", "context", "_id"):
                row.text(name)
            row.texts("answers")
            if row.text("_id") in seen:
                raise row.wrong(f"the _id {row.text('_id')!r} was there before")
            seen.add(row.text("_id"))
            rows.append(row)
        if not rows:
            raise InputError(f"{source} holds no question.")
        return rows

    def _file(self, task: str) -> tuple[bytes, str]:
        """A task's file, and what messages call it."""
        path = self._archive if self.data is None else Path(self.data) / f"{task}.jsonl"
        try:
            if self.data is not None:
                return path.read_bytes(), str(path)
            # One member by its full name: no name in the archive becomes a path.
            with zipfile.ZipFile(path) as archive:
                return archive.read(f"data/{task}.jsonl"), f"{path}: data/{task}.jsonl"
        except OSError as error:
            raise InputError(f"{str(path)!r} cannot be read ({error.strerror or error}); check data.") from error
        except (KeyError, zipfile.BadZipFile) as error:
            raise InputError(
                f"{str(path)!r} is no archive with data/{task}.jsonl; remove it, so that it is downloaded again."
            ) from error

    @cached_property
    def _archive(self) -> Path:
        from huggingface_hub import hf_hub_download

        try:
            return Path(hf_hub_download(_REPOSITORY, _ARCHIVE, repo_type="dataset"))
        except Exception as error:  # besides OSError, whatever the hub's HTTP client raises
            raise InputError(
                f"LongBench is not on this machine and {_REPOSITORY} cannot be downloaded ({type(error).__name__}); "
                "check the network, or give a folder with its files as data."
            ) from error


def _asked(task: str, question: str) -> str:
    """The question alone: triviaqa's ``input`` holds a passage, then ``Question:``, then an open ``Answer:``."""
    if task != "triviaqa":
        return question.strip()
    return question.rpartition("Question:\n")[2].removesuffix("\n").removesuffix("Answer:").strip()
