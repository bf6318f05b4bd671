"""The folder of block files: where a block lies, how a new one becomes visible, and what else is found there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qvpic_rag.bank.blockfile import Written, sync_folder
from qvpic_rag.bank.writers import TEMPORARY

__all__ = ["BlockFiles", "FoundFile"]

_DIGEST = re.compile(r"[0-9a-f]{64}")
_SUFFIX = ".safetensors"


@dataclass(frozen=True)
class FoundFile:
    """A file below the block folder: ``digest`` is "" unless its name and place are those of a block."""

    path: Path
    digest: str
    temporary: bool
    nbytes: int
    modified: float


class BlockFiles:
    """Block files below one folder, at ``<first two hex digits>/<digest>.safetensors``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, digest: str) -> Path:
        """Where the block of a key digest lies. Nothing but a digest ever becomes part of a path."""
        if not _DIGEST.fullmatch(digest):
            raise ValueError(f"A block digest is 64 hexadecimal digits, not {digest!r}.")
        return self.root / digest[:2] / f"{digest}{_SUFFIX}"

    def exists(self, digest: str) -> bool:
        """Whether the block's file is there; an ``OSError`` other than its absence is raised, not taken for it."""
        try:
            self.path(digest).stat()
        except FileNotFoundError:
            return False
        return True

    def place(self, digest: str, name: str) -> Path:
        """A file's path in the folder where the block of a digest lies."""
        return self.path(digest).parent / name

    def prepare(self, digest: str) -> None:
        """Make the folder where a block will lie, durably."""
        folder = self.path(digest).parent
        if not folder.is_dir():
            self.root.mkdir(exist_ok=True)
            folder.mkdir(exist_ok=True)
            sync_folder(self.root)
            sync_folder(self.root.parent)

    def publish(self, written: Written, digest: str) -> None:
        """Give a written file its name, durably. The caller holds the database's write lock."""
        path = self.path(digest)
        written.path.replace(path)
        sync_folder(path.parent)

    def walk(self) -> Iterator[FoundFile]:
        """Every file below the folder; files that vanish meanwhile are skipped."""
        for folder, _, names in os.walk(self.root):
            for name in sorted(names):
                path = Path(folder, name)
                try:
                    status = path.lstat()
                except FileNotFoundError:
                    continue
                digest = name.removesuffix(_SUFFIX)
                known = bool(_DIGEST.fullmatch(digest)) and self.path(digest) == path
                temporary = name.endswith(TEMPORARY)
                yield FoundFile(path, digest if known else "", temporary, status.st_size, status.st_mtime)
