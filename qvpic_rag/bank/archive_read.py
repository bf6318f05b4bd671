"""Reading an archive that nobody vouches for: everything is checked first, and pieces are taken out afterwards."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar

import xxhash

from qvpic_rag.bank import archive
from qvpic_rag.bank.archive import ArchivedDocument, ArchivedPage, Manifest
from qvpic_rag.bank.blockfile import BlockHeader
from qvpic_rag.errors import ArchiveError, CorruptBlockError
from qvpic_rag.records import BlockKey, stable_digest

__all__ = ["ArchiveReader", "ArchivedBlock"]

_T = TypeVar("_T")
_HEADER_BYTES = 1 << 17  # of a block; no block's header is longer


@dataclass(frozen=True)
class ArchivedBlock:
    """Where a block lies in the archive: the key at departure, first byte, size, and checksum of its file."""

    key: BlockKey
    offset: int
    nbytes: int
    checksum: str


class _Member:
    """A member while it is read in order: never past its end, hashed on the way."""

    def __init__(self, reader: ArchiveReader, name: str, size: int) -> None:
        self.reader, self.name, self.size, self.left = reader, name, size, size
        self.hasher = xxhash.xxh3_128()

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes, fewer at the member's end."""
        data = self.reader.take(min(count, self.left))
        self.left -= len(data)
        self.hasher.update(data)
        return data

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Every line and its first byte in the archive."""
        while self.left:
            offset = self.reader.offset
            line = self.reader.line(min(self.left, archive.LONGEST_LINE))
            self.left -= len(line)
            self.hasher.update(line)
            yield offset, line


class ArchiveReader:
    """An archive, opened and its manifest read; :meth:`check` comes next, and nothing is taken out before.

    Raises
    ------
    ArchiveError
        From every method: the file is no archive, or not as it was written; one sentence.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pages: list[tuple[str, int, int]] = []  # digest, first byte and length of each page's line
        self._documents: list[tuple[int, int]] = []
        self._seen: set[str] = set()
        self._named = 0  # how many pages documents have named so far
        self.blocks: list[list[ArchivedBlock]] = []
        """Per page, its blocks."""
        try:
            # O_NONBLOCK: nobody waits for the writer of a named pipe, which is no archive.
            raw = io.FileIO(path, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise ArchiveError(
                f"The archive {str(path)!r} cannot be read ({reason}): give a file that `qvpic bank export` wrote."
            ) from error
        self._file = io.BufferedReader(raw)
        try:
            status = os.fstat(raw.fileno())
            self.nbytes = status.st_size
            if not stat.S_ISREG(status.st_mode):
                self.refuse("it is no file")
            self.manifest = self._read_manifest()
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> ArchiveReader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ------------------------------------------------------------------ bytes

    @property
    def offset(self) -> int:
        """Where the next byte is read."""
        return self._file.tell()

    def refuse(self, what: str, cause: Exception | None = None) -> NoReturn:
        """Raise the sentence of which ``what`` is the reason."""
        raise ArchiveError(
            f"The archive {str(self.path)!r} is damaged or none, {what}: copy it here again, or write it again with "
            f"`qvpic bank export`."
        ) from cause

    def take(self, count: int) -> bytes:
        """Exactly ``count`` bytes."""
        try:
            data = self._file.read(count)
        except OSError as error:
            self.refuse(f"it cannot be read ({error.strerror})", error)
        if len(data) < count:
            self.refuse("it is cut off")
        return data

    def line(self, limit: int) -> bytes:
        """A line of at most ``limit`` bytes, its end included."""
        try:
            data = self._file.readline(limit)
        except OSError as error:
            self.refuse(f"it cannot be read ({error.strerror})", error)
        if not data.endswith(b"\n"):
            self.refuse("it is cut off, or a line in it does not end")
        return data

    def _begin(self, name: str) -> _Member:
        """The next member, which must be this one."""
        at = self.offset
        header = self.take(archive.SECTOR)
        size = archive.size_in_header(header)
        if header != archive.member_header(name, size):
            self.refuse(f"at byte {at} does not stand what should, the member {name}")
        if self.offset + size > self.nbytes:
            self.refuse("it is cut off")
        return _Member(self, name, size)

    def _end(self, member: _Member) -> str:
        """Check that nothing else is in a member; returns its checksum."""
        if member.left or self.take(-member.size % archive.SECTOR) != archive.padding(member.size):
            self.refuse(f"more than should stands in the member {member.name}")
        return member.hasher.hexdigest()

    # ------------------------------------------------------------------ checking

    def _read_manifest(self) -> Manifest:
        member = self._begin(archive.HEAD)
        line = member.take(archive.LONGEST_LINE)
        try:
            manifest = Manifest.decode(line, self.path)
        except archive.NewerArchiveError as error:
            found, known = error.args
            raise ArchiveError(
                f"The archive {str(self.path)!r} has format {found}, and this version of qvpic-rag reads up to "
                f"{known}: upgrade qvpic-rag here, or export the bank again with this version."
            ) from error
        except ValueError as error:
            self.refuse(str(error), error)
        self._checksums = {member.name: self._end(member)}
        self._bytes = member.size
        return manifest

    def check(self, progress: Callable[[int], None]) -> None:
        """Read all of it, and refuse it unless everything is as it was written.

        Parameters
        ----------
        progress : callable
            Called with the number of blocks checked so far.
        """
        self._read_lines(archive.PAGES, self._check_page, self.manifest.pages)
        self._read_lines(archive.DOCUMENTS, self._check_document, self.manifest.documents)
        if self._named != len(self._pages) or not self._documents:
            self.refuse("not all of its pages belong to a document")
        count = 0
        for digest, *_ in self._pages:
            keys = self.manifest.keys(digest)
            self.blocks.append([self._check_block(key) for key in keys])
            count += len(keys)
            progress(count)
        if count != self.manifest.blocks:
            self.refuse("it has another number of blocks than it says")
        expected = archive.end_of(self._checksums, self._bytes)
        end = self._begin(archive.END)
        if end.size != len(expected) or end.take(end.size) != expected:
            self.refuse("its bytes are not those that were written")
        self._end(end)
        if self.nbytes - self.offset != len(archive.TAIL) or self.take(len(archive.TAIL)) != archive.TAIL:
            self.refuse("it does not end as an archive does")

    def _read_lines(self, name: str, check: Callable[[int, bytes], None], count: int) -> None:
        member, found = self._begin(name), 0
        for offset, line in member.lines():
            found += 1
            try:
                check(offset, line)
            except ValueError as error:
                self.refuse(f"entry {found} of {name} cannot be used, {error}", error)
        if found != count:
            self.refuse(f"it has {found} entries in {name} and says {count}")
        self._checksums[name] = self._end(member)
        self._bytes += member.size

    def _check_page(self, offset: int, line: bytes) -> None:
        page = ArchivedPage.decode(line, self.manifest.recipe.dimension)
        digest = stable_digest(list(page.lines))
        self._add(digest)
        self._pages.append((digest, offset, len(line)))

    def _check_document(self, offset: int, line: bytes) -> None:
        document = ArchivedDocument.decode(line)
        self._add(f"document {document.source}")
        for page in document.pages:  # a page that was not named before must be the next one
            if page > self._named or page >= len(self._pages):
                raise ValueError("it names a page that is not there, or not in its order")
            self._named = max(self._named, page + 1)
        self._documents.append((offset, len(line)))

    def _add(self, name: str) -> None:
        if name in self._seen:
            raise ValueError("it is there twice")
        self._seen.add(name)

    def _check_block(self, key: BlockKey) -> ArchivedBlock:
        member = self._begin(archive.block_name(key))
        offset, data = self.offset, member.take(_HEADER_BYTES)
        try:
            header = BlockHeader.parse(data, member.size)
        except CorruptBlockError as error:
            self.refuse(f"in the block {member.name} {error}", error)
        if differing := header.key.differing(key):
            self.refuse(f"{member.name} holds another block, its {differing[0]} differs")
        while member.left:
            member.take(archive.CHUNK)
        checksum = self._checksums[member.name] = self._end(member)
        self._bytes += member.size
        return ArchivedBlock(key, offset, member.size, checksum)

    # ------------------------------------------------------------------ taking out

    def documents(self) -> Iterator[tuple[ArchivedDocument, list[str]]]:
        """Every document with the digests of its pages, in the archive's order."""
        for offset, length in self._documents:
            document = self._decoded(ArchivedDocument.decode, offset, length)
            yield document, [self._pages[page][0] for page in document.pages]

    def page(self, number: int) -> ArchivedPage:
        """The page at a place in the archive."""
        _, offset, length = self._pages[number]
        return self._decoded(lambda line: ArchivedPage.decode(line, self.manifest.recipe.dimension), offset, length)

    def _decoded(self, decode: Callable[[bytes], _T], offset: int, length: int) -> _T:
        self._file.seek(offset)
        try:
            return decode(self.take(length))
        except ValueError as error:  # checked before: somebody writes into the file meanwhile
            self.refuse(f"it changed while it was read, {error}", error)

    def pieces(self, block: ArchivedBlock) -> Iterator[bytes]:
        """The bytes of a block's file."""
        self._file.seek(block.offset)
        for start in range(0, block.nbytes, archive.CHUNK):
            yield self.take(min(archive.CHUNK, block.nbytes - start))
