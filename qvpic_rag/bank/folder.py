"""Which folder may become a bank, which one is a bank, what a namespace may be called and where its index is."""

from __future__ import annotations

import hashlib
from pathlib import Path

from qvpic_rag.bank import failures
from qvpic_rag.bank.index_db import FILE_NAME
from qvpic_rag.errors import BankNotFoundError, ConfigError

__all__ = ["check_free", "check_namespace", "find_folder", "holds_bank", "index_path", "prepare_folder"]


def check_namespace(namespace: object) -> None:
    """Raise ``ConfigError`` unless this is a string of 1 to 255 characters that UTF-8 can write."""
    if not isinstance(namespace, str) or not 1 <= len(namespace) <= 255:
        raise ConfigError(f"A namespace must be a string of 1 to 255 characters, not {namespace!r}.")
    try:
        namespace.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(f"A namespace must be plain Unicode text, not {namespace!r}.") from error


def index_path(folder: Path, namespace: str) -> Path:
    """Where the search index of a namespace belongs."""
    return folder / "index" / f"{hashlib.sha256(namespace.encode('utf-8')).hexdigest()[:32]}.faiss"


def prepare_folder(folder: Path) -> None:
    """Make the folder of a new bank; see :func:`check_free`."""
    with failures.guard(folder):
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
    check_free(folder)


def holds_bank(folder: Path) -> bool:
    """Whether a bank's database is in the folder, sound or not."""
    with failures.guard(folder):
        return (folder / FILE_NAME).exists()


def check_free(folder: Path) -> None:
    """Raise ``BankNotFoundError`` where other things are, so that nothing is mixed up; a bank may be there."""
    with failures.guard(folder):
        if not folder.exists():
            return
        if not folder.is_dir():
            raise BankNotFoundError(f"{str(folder)!r} is a file, and a bank needs a folder: give another path.")
        others = any(path.name != FILE_NAME for path in folder.iterdir())
    # Looked for last: another process may be making a bank here, and the database is the first file that it makes.
    if others and not holds_bank(folder):
        raise BankNotFoundError(
            f"{str(folder)!r} holds other files and no bank: give a new or empty folder for the bank."
        )


def find_folder(folder: Path) -> None:
    """Raise ``BankNotFoundError`` unless the folder holds a bank's database."""
    with failures.guard(folder):
        try:
            (folder / FILE_NAME).stat()  # and not is_file(), which hides a missing permission in newer Pythons
        except (FileNotFoundError, NotADirectoryError):
            kinds = (
                (folder.is_dir(), "is a folder without one"),
                (folder.exists(), "is a file"),
                (True, "does not exist"),
            )
            what = next(text for found, text in kinds if found)
        else:
            return
    raise BankNotFoundError(
        f"There is no bank at {str(folder)!r}, which {what}: make one with "
        f"`qvpic ingest PATH --bank {folder} --model MODEL`, or give the folder of a bank."
    )
