"""Every error this package raises on purpose, and what its message owes the reader.

Each message is one sentence that names what is wrong and what to do about it. The tree::

    QVPICError
    ├── InputError                 wrong usage or input; the CLI exits with 2
    │   ├── ConfigError            a setting is out of range, unknown, or contradicts another
    │   ├── DocumentError          a file or text cannot be turned into pages
    │   │   └── UndrawableError    strict rendering met a character that no font draws
    │   ├── BankNotFoundError      no bank at this path, or a bank without pages
    │   ├── BankMismatchError      the bank was made with another model, template, profile, dtype ...
    │   ├── ArchiveError           an exported bank is cut off, altered or none, or its file cannot be put there
    │   ├── UnsupportedModelError  the architecture cannot be served; names the families that can
    │   ├── ModelNotFoundError     the model cannot be loaded from where it was looked for
    │   ├── TemplateError          the chat template has no position-independent page
    │   └── ContextOverflowError   the request does not fit the model's context
    ├── MissingDependencyError     an optional package is needed; names the extra to install
    ├── BankError                  the store failed (disk full, no permission, locked)
    │   ├── BankFullError          the bank's limit is reached and nothing more can be evicted
    │   ├── MissingBlockError      a block that should be stored is not
    │   ├── CorruptBlockError      stored bytes are not what was written
    │   └── RemoteError            the bank's remote tier is down or denies access
    ├── CompileError               a page's KV cache came out unusable (NaN, infinity, wrong shape)
    ├── GenerationError            the model failed while answering
    └── QueueFullError             too many questions wait for the model
"""

from __future__ import annotations

from functools import partial
from typing import Any

__all__ = [
    "ArchiveError",
    "BankError",
    "BankFullError",
    "BankMismatchError",
    "BankNotFoundError",
    "CompileError",
    "ConfigError",
    "ContextOverflowError",
    "CorruptBlockError",
    "DocumentError",
    "GenerationError",
    "InputError",
    "MissingBlockError",
    "MissingDependencyError",
    "ModelNotFoundError",
    "QVPICError",
    "QueueFullError",
    "RemoteError",
    "TemplateError",
    "UndrawableError",
    "UnsupportedModelError",
]


class QVPICError(Exception):
    """Base of every error raised on purpose; ``exit_code`` is what the CLI returns for it."""

    exit_code = 1


class InputError(QVPICError):
    """Wrong usage or input."""

    exit_code = 2


class ConfigError(InputError):
    """A setting is out of range, unknown, or contradicts another."""


class DocumentError(InputError):
    """A file or text cannot be turned into pages."""


class UndrawableError(DocumentError):
    """Strict rendering met a character that no font draws."""


class BankNotFoundError(InputError):
    """There is no bank at this path, or it holds no pages."""


class BankMismatchError(InputError):
    """The bank was made with something else than what is asked for.

    Attributes
    ----------
    field : str
        Name of the first differing field (``model``, ``dtype``, ``prefix``, ``profile`` ...).
    """

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors cross process borders; a pool whose worker raised one that does not waits for ever."""
        return partial(type(self), field=self.field), self.args


class ArchiveError(InputError):
    """An exported bank is cut off, altered, of a newer version or none at all, or it cannot be put where it should."""


class UnsupportedModelError(InputError):
    """The architecture cannot be served; the message names the families that can."""


class ModelNotFoundError(InputError):
    """The model cannot be loaded from where it was looked for."""


class TemplateError(InputError):
    """The model's chat template gives no position-independent page."""


class ContextOverflowError(InputError):
    """The request does not fit the model's context or ``max_context_tokens``."""


class MissingDependencyError(QVPICError):
    """An optional package is needed; the message names the extra to install."""


class BankError(QVPICError):
    """The store failed: disk full, no permission, locked by another process."""


class BankFullError(BankError):
    """The bank's limit is reached and nothing more can be evicted."""


class MissingBlockError(BankError):
    """A block that should be stored is not."""


class CorruptBlockError(BankError):
    """Stored bytes are not what was written."""


class RemoteError(BankError):
    """The bank's remote tier is down or denies access; the bank itself works without it."""


class CompileError(QVPICError):
    """A page's KV cache came out unusable."""


class GenerationError(QVPICError):
    """The model failed while answering."""


class QueueFullError(QVPICError):
    """Too many questions wait for the model."""
