"""Archives written by hand, member by member, so that tests can write what an export never would."""

from __future__ import annotations

import base64
import json
import tarfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from qvpic_rag.bank import Bank, export_bank
from tests.bank import samples

NAMES = ("qvpic-archive.json", "pages.jsonl", "documents.jsonl")


def line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


@dataclass
class Parts:
    """An archive taken apart: members by name in their order, without the end."""

    members: list[tuple[str, bytes]]
    infos: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Per member, arguments of :func:`header` that are to be otherwise."""

    @classmethod
    def of(cls, archive: Path) -> Parts:
        with tarfile.open(archive, "r:") as tar:
            found = [(info.name, tar.extractfile(info).read()) for info in tar]  # type: ignore[union-attr]
        return cls(found[:-1])

    def get(self, name: str) -> bytes:
        return dict(self.members)[name]

    def set(self, name: str, content: bytes) -> Parts:
        members = [(each, content if each == name else before) for each, before in self.members]
        return replace(self, members=members)

    def json(self, name: str, number: int = 0) -> Any:
        return json.loads(self.get(name).splitlines()[number])

    def change(self, name: str, number: int = 0, **values: Any) -> Parts:
        """Other values in one line of a member."""
        lines = self.get(name).splitlines(keepends=True)
        lines[number] = line({**json.loads(lines[number]), **values})
        return self.set(name, b"".join(lines))

    def blocks(self) -> list[str]:
        return [name for name, _ in self.members if name.startswith("blocks/")]

    def write(self, path: Path) -> Path:
        """With the right checksums and an end, whatever the members are."""
        checksums = {name: xxhash.xxh3_128_hexdigest(content) for name, content in self.members}
        end = line({"bytes": sum(len(content) for _, content in self.members), "checksums": checksums})
        with path.open("wb") as file:
            for name, content in (*self.members, ("end.json", end)):
                file.write(header(name, **{"size": len(content), **self.infos.get(name, {})}))
                file.write(content + bytes(-len(content) % 512))
            file.write(bytes(1024))
        return path


def header(name: str, size: int, *, gnu: bool = False, **values: Any) -> bytes:
    """A member's header by the standard library; GNU's format where asked for, and a long name or size needs it."""
    info = tarfile.TarInfo(name)
    info.size = size
    for field_name, value in values.items():
        setattr(info, field_name, value)
    raw = bytearray(info.tobuf(tarfile.GNU_FORMAT if gnu else tarfile.USTAR_FORMAT))
    if len(raw) == 512 and raw[329:345] == b"0000000\0" * 2:  # as some versions of tarfile write device numbers
        raw[329:345] = bytes(16)
        raw[148:156] = b"        "
        raw[148:156] = b"%06o\0 " % sum(raw)
    return bytes(raw)


def embedding(vector: Any) -> str:
    return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()


def sample_bank(folder: Path, namespace: str = "default") -> Bank:
    """Two documents that share a page, with everything that may be in one."""
    bank = Bank.create(folder, samples.recipe(), namespace)
    samples.put(bank, "a.txt", ["one", "shared"])
    samples.put(bank, "b/ü.txt", ["shared", "two", "one", "two"])
    return bank


def sample_archive(folder: Path) -> Path:
    with sample_bank(folder / "origin") as bank:
        export_bank(bank, folder / "sample.tar")
    return folder / "sample.tar"


def content(bank: Bank) -> dict[str, Any]:
    """Everything that a namespace holds, comparable bit by bit; blocks without their namespace."""
    found: dict[str, Any] = {}
    for document in bank.documents():
        pages = bank.document_pages(document.source)
        vectors = bank.embeddings([page.digest for page in pages])
        found[document.source] = (
            document.digest,
            document.metadata,
            pages,
            [vectors[page.digest].tobytes() for page in pages],
            [block_bits(bank, page.digest) for page in pages],
        )
    return found


def block_bits(bank: Bank, page: str) -> list[Any]:
    found = []
    for dpi in bank.recipe.dpis:
        block = bank.get_block(bank.recipe.block_key(page, dpi, bank.namespace))
        tensors = (block.keys, block.values, block.token_ids, block.positions)
        found.append((block.span, replace(block.key, namespace=""), [(t.shape, samples.bits(t)) for t in tensors]))
    return found
