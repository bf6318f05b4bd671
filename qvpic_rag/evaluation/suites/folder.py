"""One's own questions about one's own documents, each with the pages that retrieval finds for it."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from qvpic_rag.documents import Failure, document_digest, read_documents
from qvpic_rag.documents.decode import decode
from qvpic_rag.errors import ConfigError, InputError
from qvpic_rag.evaluation.records import Example
from qvpic_rag.evaluation.suites.base import Paginator, whole
from qvpic_rag.evaluation.suites.rows import Row, json_rows
from qvpic_rag.index import PageIndex
from qvpic_rag.records import Document, Page

__all__ = ["Folder"]

_FIELDS = ("question", "answer", "answers", "evidence")
_LONGEST = 64  # tokens of an answer


@dataclass(frozen=True)
class _Asked:
    number: int
    question: str
    answers: tuple[str, ...]
    evidence: frozenset[str] | None  # sources of documents, of which all are needed


@dataclass(frozen=True)
class Folder:
    """The suite ``folder``.

    Attributes
    ----------
    questions : str
        A JSONL file of objects with ``question``, ``answer`` or ``answers`` (a text, or a list of texts), and, where
        it is known, ``evidence``: the document, or list of documents, that the answer follows from, each by its path or
        as much of its end as no other document has. Or a CSV file with a header of the same names, several answers or
        documents separated by ``|``.
    documents : str | tuple[str, ...]
        Files, folders and patterns as ``qvpic ingest`` takes them; files in folders that cannot be read are left out.
    top_k : int
        Pages for each question, nearest first.
    """

    name: ClassVar[str] = "folder"

    questions: str
    documents: str | tuple[str, ...]
    top_k: int = 8

    def __post_init__(self) -> None:
        given = (self.documents,) if isinstance(self.documents, str) else tuple(self.documents)
        if not given or "-" in given:
            raise ConfigError(f"folder.documents must be files, folders or patterns, not {self.documents!r}.")
        object.__setattr__(self, "documents", tuple(map(str, given)))
        object.__setattr__(self, "questions", str(self.questions))
        whole("folder", "top_k", self.top_k, 1, 100_000)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The options, and digests of the questions and of each document."""
        return {
            "questions": self.questions,
            "documents": list(self.documents),
            "top_k": self.top_k,
            "sha256": hashlib.sha256(self._data).hexdigest(),
            "digests": {document.source: document_digest(document) for document in self._documents},
        }

    def examples(self, reader: Paginator) -> Iterator[Example]:
        """The questions in the file's order, each with its ``top_k`` pages, nearest first.

        Raises
        ------
        ConfigError
            The reader has no embedder.
        InputError
            The file or a document cannot be read, or says something else than what is described above.
        """
        if reader.embedder is None:
            raise ConfigError("The suite folder finds pages by embedding; give an embedder.")
        asked = self._asked()
        pages, sources = self._pages(reader)
        index = PageIndex(reader.embedder.dimension)
        index.add(np.arange(len(pages)), reader.embedder.encode([page.text for page in pages]))
        vectors = reader.embedder.encode([each.question for each in asked], query=True)
        for each, vector in zip(asked, vectors, strict=True):
            places = index.search(vector, self.top_k)[0].tolist()
            evidence, missed = None, False
            if each.evidence is not None:
                evidence = tuple(at for at, place in enumerate(places) if sources[place] & each.evidence)
                missed = not each.evidence <= set().union(*(sources[place] for place in places))
            yield Example(
                id=f"q{each.number}",
                group=f"q{each.number}",
                kind="",
                pages=tuple(pages[place] for place in places),
                before="",
                after=each.question,
                query=each.question,
                answers=each.answers,
                evidence=evidence,
                scoring="plain",
                max_new_tokens=_LONGEST,
                missed=missed,
                evidence_all=False,  # which pages of a document state it is not known
            )

    def _pages(self, reader: Paginator) -> tuple[list[Page], list[set[str]]]:
        """Pages that look different, as a bank stores them, and the sources of the documents that hold each."""
        found: dict[str, tuple[Page, set[str]]] = {}
        for document in self._documents:
            for page in reader.pages(document.text, document.source):
                found.setdefault(page.digest, (page, set()))[1].add(document.source)
        if not found:
            raise InputError("The documents hold nothing that a page could show; give documents with text.")
        return [page for page, _ in found.values()], [sources for _, sources in found.values()]

    @cached_property
    def _documents(self) -> list[Document]:
        documents = []
        for found in read_documents(self.documents):
            if isinstance(found, Failure):
                raise found.error
            if isinstance(found, Document):
                documents.append(found)
        return documents

    @cached_property
    def _data(self) -> bytes:
        try:
            return Path(self.questions).read_bytes()
        except OSError as error:
            raise InputError(
                f"The questions {self.questions!r} cannot be read ({error.strerror or error}); check the path."
            ) from error

    def _asked(self) -> list[_Asked]:
        suffix = Path(self.questions).suffix.lower()
        if suffix not in (".jsonl", ".csv"):
            raise InputError(f"Questions come in a .jsonl or .csv file, not {self.questions!r}.")
        rows = json_rows(self._data, self.questions) if suffix == ".jsonl" else _csv_rows(self._data, self.questions)
        asked = [self._read(row, number) for number, row in enumerate(rows, start=1)]
        if not asked:
            raise InputError(f"{self.questions} holds no question.")
        return asked

    def _read(self, row: Row, number: int) -> _Asked:
        for name in row.values:
            if name not in _FIELDS:
                raise row.wrong(f"the field {name!r} is unknown; there are {', '.join(_FIELDS)}")
        if ("answer" in row.values) == ("answers" in row.values):
            raise row.wrong("give either 'answer' or 'answers'")
        answers = row.texts("answer" if "answer" in row.values else "answers")
        evidence = None
        if row.values.get("evidence") is not None:
            evidence = frozenset(self._source(row, name) for name in row.texts("evidence"))
        return _Asked(number, row.text("question"), answers, evidence)

    def _source(self, row: Row, name: str) -> str:
        wanted = Path(name).as_posix()
        sources = dict.fromkeys(each.source for each in self._documents)
        found = [source for source in sources if f"/{source}".endswith(f"/{wanted}")]
        if wanted in found:
            return wanted
        if not found:
            raise row.wrong(f"no document is called {name!r}")
        if len(found) > 1:
            raise row.wrong(f"{name!r} may be {' or '.join(map(repr, found))}; write more of its path")
        return found[0]


def _csv_rows(data: bytes, source: str) -> Iterator[Row]:
    """Rows as they would stand in a JSONL file; a cell that is empty is not there."""
    header: list[str] | None = None
    for number, cells in _csv_cells(decode(data, source), source):
        where = f"{source}, line {number}"
        if not any(cell.strip() for cell in cells):
            continue
        if header is None:
            header = [cell.strip() for cell in cells]
            if "question" not in header or len(set(header)) < len(header):
                raise InputError(f"{where}: the header must name the columns, such as question,answer,evidence.")
            continue
        if len(cells) != len(header):
            raise InputError(f"{where}: there are {len(cells)} cells for {len(header)} columns.")
        values: dict[str, Any] = {name: cell.strip() for name, cell in zip(header, cells, strict=True) if cell.strip()}
        for name in values.keys() - {"question"}:
            values[name] = [part.strip() for part in values[name].split("|")]
        yield Row(where, values)


def _csv_cells(text: str, source: str) -> list[tuple[int, list[str]]]:
    """The cells of each row, and the line that it ends on."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    limit = csv.field_size_limit()  # the whole process's, so it is put back
    try:
        csv.field_size_limit(max(limit, len(text)))
        return [(reader.line_num, cells) for cells in reader]
    except csv.Error as error:
        raise InputError(f"{source}, line {reader.line_num}: this is no CSV ({error}).") from error
    finally:
        csv.field_size_limit(limit)
