"""Short ways to write a file and to read it back as a document or a failure."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from qvpic_rag.documents import Failure, LeftOut, read_documents
from qvpic_rag.errors import DocumentError
from qvpic_rag.records import Document

__all__ = ["failure", "left_out", "pdf", "read", "sources", "write"]


def write(path: str, content: str | bytes = "text") -> None:
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))


def sources(*paths: str) -> list[str]:
    """What was read, in order; a failure in round brackets."""
    found = [item for item in read_documents(paths) if not isinstance(item, LeftOut)]
    return [item.source if isinstance(item, Document) else f"({item.source})" for item in found]


def left_out(*paths: str) -> list[str]:
    return [item.source for item in read_documents(paths) if isinstance(item, LeftOut)]


def read(path: str) -> str:
    (item,) = read_documents([path])
    assert isinstance(item, Document), item
    assert item.source == path
    return item.text


def failure(path: str, **options: Any) -> str:
    (item,) = (item for item in read_documents([path], **options) if not isinstance(item, LeftOut))
    assert isinstance(item, Failure), item
    assert isinstance(item.error, DocumentError)
    message = str(item.error)
    assert "\n" not in message
    assert message.endswith(".")
    return message


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
