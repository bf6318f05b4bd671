"""Encodings, standard input and digests."""

from __future__ import annotations

import codecs
import io
import sys
from typing import Any

import pytest

from qvpic_rag.documents import document_digest, read_documents
from qvpic_rag.errors import DocumentError
from qvpic_rag.records import Document
from tests.documents.reading import failure, read, write


@pytest.mark.parametrize(
    "data",
    [
        "naïve – 日本".encode(),
        codecs.BOM_UTF8 + "naïve – 日本".encode(),
        codecs.BOM_UTF16_LE + "naïve – 日本".encode("utf-16-le"),
        codecs.BOM_UTF16_BE + "naïve – 日本".encode("utf-16-be"),
    ],
)
def test_encodings(data: bytes) -> None:
    write("t.txt", data)
    assert read("t.txt") == "naïve – 日本"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("caf\xe9".encode("latin-1"), "'t.txt' is not UTF-8 text (byte 0xe9 at offset 3); convert it to UTF-8."),
        (codecs.BOM_UTF16_LE + b"a\0b", "'t.txt' is not UTF-16-LE text (byte 0x62 at offset 4); convert it to UTF-8."),
        ("text".encode("utf-16-le"), "'t.txt' is a binary file, not text; convert it to UTF-8 text."),
        (b"\x89PNG\r\n\x1a\n\x01\xff", "'t.txt' is a binary file, not text; convert it to UTF-8 text."),
        (b"\x7fELF\0", "'t.txt' is a binary file, not text; convert it to UTF-8 text."),
        (b"", "'t.txt' is empty; give a file that holds text."),
        (b" \r\n\t\n", "'t.txt' is empty; give a file that holds text."),
        (codecs.BOM_UTF8, "'t.txt' is empty; give a file that holds text."),
    ],
)
def test_what_is_no_text_is_one_sentence(data: bytes, message: str) -> None:
    write("t.txt", data)
    assert failure("t.txt") == message


def test_plain_text_keeps_everything_but_the_kind_of_line_end() -> None:
    write("t.md", "# T\r\n\r\n  a\tb\x0cc\rd\n")
    assert read("t.md") == "# T\n\n  a\tb\x0cc\nd\n"


@pytest.mark.parametrize("stream", [io.BytesIO(b"\xef\xbb\xbfpiped \xc3\xa9\r\n"), io.StringIO("\ufeffpiped é\r\n")])
def test_standard_input(stream: Any) -> None:
    assert list(read_documents(["-", "-"], stdin=stream)) == [Document("piped é\n", "stdin")]


def test_standard_input_of_the_process_and_its_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc")))
    assert list(read_documents(["-"])) == [Document("abc", "stdin")]
    monkeypatch.setattr(sys, "stdin", None)
    assert failure("-") == "There is no standard input; give paths."
    assert failure("-", stdin=io.BytesIO(b" ")) == "Standard input is empty; pipe text into it or give paths."
    assert "'stdin' is a binary file" in failure("-", stdin=io.BytesIO(b"%PDF-1.7\n\0"))
    assert "cannot be read as text" in failure("-", stdin=io.TextIOWrapper(io.BytesIO(b"\xff\xfe\xff"), "utf-8"))


def test_the_digest_follows_text_and_metadata_only() -> None:
    digest = document_digest(Document("a", "x", {"k": 1, "l": [2]}))
    assert digest == document_digest(Document("a", "y", {"l": [2], "k": 1}))
    others = [Document("b", "x", {"k": 1, "l": [2]}), Document("a", "x", {"k": 1}), Document("\ud800", "x")]
    assert len({digest, *map(document_digest, others)}) == 4
    with pytest.raises(DocumentError, match="metadata of 'x' cannot be stored as JSON"):
        document_digest(Document("a", "x", {"k": object()}))
