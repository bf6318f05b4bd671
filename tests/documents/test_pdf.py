"""The text layer of PDFs that are written here, byte by byte."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from tests.documents.reading import failure, pdf, read, write


def test_pdf_text_with_a_form_feed_between_pages() -> None:
    pytest.importorskip("pypdfium2")
    write("t.pdf", pdf("Badge code of Marta\nis K-204", "", "Second \\(last\\) page", compress=True))
    assert read("t.pdf") == "Badge code of Marta\nis K-204\f\fSecond (last) page"


def test_pdf_words_broken_at_the_end_of_a_line_are_joined_and_codes_keep_their_hyphen() -> None:
    pytest.importorskip("pypdfium2")
    write("t.pdf", pdf("a hyphen-\nated word and K-\n204 and Franco-\nPrussian"))
    assert read("t.pdf") == "a hyphenated word and K-204 and Franco-Prussian"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pdf("", ""), "has no text layer, so it is probably a scan; run OCR on it first (ocrmypdf does)."),
        (b"%PDF-1.4 nonsense", "is damaged or not a PDF; open and save it again."),
        (b"", "is damaged or not a PDF; open and save it again."),
        (
            pdf(
                "secret",
                trailer=f"/ID [<{'00' * 16}> <{'00' * 16}>] /Encrypt << /Filter /Standard /V 1 /R 2 /P -4 "
                f"/O <{'11' * 32}> /U <{'22' * 32}> >> ",
            ),
            "is encrypted; save a copy without a password and give that.",
        ),
    ],
)
def test_pdfs_without_readable_text(data: bytes, message: str) -> None:
    pytest.importorskip("pypdfium2")
    write("t.pdf", data)
    assert failure("t.pdf") == f"The PDF 't.pdf' {message}"


def test_pdf_without_the_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    write("t.pdf", pdf("text"))

    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    assert failure("t.pdf") == "Reading the PDF 't.pdf' needs pypdfium2; run pip install 'qvpic-rag[docs]'."
