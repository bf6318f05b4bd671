"""The text layer of PDFs that are written here, byte by byte."""

from __future__ import annotations

import importlib
import zlib
from typing import Any

import pytest

from tests.documents.reading import failure, read, write


def pdf(*pages: str, trailer: str = "", compress: bool = False) -> bytes:
    """A PDF with one line of Helvetica per line of each page."""
    streams = []
    for text in pages:
        lines = "".join(f"({line}) Tj 0 -14 Td " for line in text.split("\n")) if text else ""
        streams.append(f"BT /F1 12 Tf 72 700 Td {lines}ET".encode("latin-1"))
    kids = " ".join(f"{4 + 2 * place} 0 R" for place in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    ]
    for place, stream in enumerate(streams):
        data, method = (zlib.compress(stream), " /Filter /FlateDecode") if compress else (stream, "")
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents {5 + 2 * place} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>".encode()
        )
        objects.append(f"<< /Length {len(data)}{method} >>\nstream\n".encode() + data + b"\nendstream")
    body, offsets = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, start=1):
        offsets.append(len(body))
        body += f"{number} 0 obj\n".encode() + content + b"\nendobj\n"
    table = "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    size = len(objects) + 1
    end = f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer\n<< /Size {size} /Root 1 0 R {trailer}>>\n"
    return body + end.encode("latin-1") + f"startxref\n{len(body)}\n%%EOF\n".encode()


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
