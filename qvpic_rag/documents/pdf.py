"""The text layer of a PDF, through pypdfium2 (extra ``docs``)."""

from __future__ import annotations

import importlib
import re
import threading
from typing import Any

from qvpic_rag.errors import DocumentError

__all__ = ["pdf_text"]

_pdfium_lock = threading.Lock()  # PDFium is not thread-safe

# PDFium puts one of these for any hyphen at the end of a line. Between a letter and a lower-case one it breaks a word;
# elsewhere ("K-204", "Franco-Prussian") it is part of the text.
_LINE_HYPHEN = re.compile("[\x02\ufffe]\n?")
_WORD_BREAK = re.compile(r"(?<=[^\W\d_])[\x02\ufffe]\n?(?=[^\W\d_A-Z])")


def pdf_text(data: bytes, source: str) -> str:
    """Text of all pages, a form feed between pages.

    Raises
    ------
    DocumentError
        pypdfium2 is missing, or the PDF is damaged, protected by a password, or has no text (a scan).
    """
    try:
        pdfium: Any = importlib.import_module("pypdfium2")
    except ImportError as error:
        raise DocumentError(
            f"Reading the PDF {source!r} needs pypdfium2; run pip install 'qvpic-rag[docs]'."
        ) from error
    with _pdfium_lock:
        try:
            pages = _pages(pdfium, data)
        except pdfium.PdfiumError as error:
            raise _unreadable(source, error) from error
    if not any(page.strip() for page in pages):
        raise DocumentError(
            f"The PDF {source!r} has no text layer, so it is probably a scan; run OCR on it first (ocrmypdf does)."
        )
    return "\f".join(pages)


def _pages(pdfium: Any, data: bytes) -> list[str]:
    pages = []
    document = pdfium.PdfDocument(data)
    try:
        for number in range(len(document)):
            page = document[number]
            layer = page.get_textpage()
            text = layer.get_text_bounded().replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
            pages.append(_LINE_HYPHEN.sub("-", _WORD_BREAK.sub("", text)))
            layer.close()
            page.close()
    finally:
        document.close()
    return pages


def _unreadable(source: str, error: Exception) -> DocumentError:
    if "password" in str(error).lower() or "security" in str(error).lower():
        return DocumentError(f"The PDF {source!r} is encrypted; save a copy without a password and give that.")
    return DocumentError(f"The PDF {source!r} is damaged or not a PDF; open and save it again.")
