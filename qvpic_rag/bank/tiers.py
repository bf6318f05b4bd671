"""What lies above and below a bank's files: blocks in memory, and blocks at a remote place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qvpic_rag.bank.ram import RamTier
from qvpic_rag.errors import ConfigError

if TYPE_CHECKING:
    from qvpic_rag.bank.remote import RemoteTier

__all__ = ["Tiers"]


@dataclass(frozen=True)
class Tiers:
    """The tiers of one bank object besides its files; ``remote`` is None where there is none."""

    ram: RamTier
    remote: RemoteTier | None

    @classmethod
    def of(cls, ram_bytes: int, remote: str | None) -> Tiers:
        """``ram_bytes`` of memory, and a remote tier at an fsspec URL.

        Raises ``ConfigError`` and ``MissingDependencyError`` as :class:`~qvpic_rag.bank.remote.RemoteTier` does.
        """
        if not isinstance(ram_bytes, int) or isinstance(ram_bytes, bool) or ram_bytes < 0:
            raise ConfigError(f"ram_bytes must be a whole number of bytes from 0, not {ram_bytes!r}.")
        if remote is None:
            return cls(RamTier(ram_bytes), None)
        from qvpic_rag.bank.remote import RemoteTier  # here: it imports fsspec

        return cls(RamTier(ram_bytes), RemoteTier(remote))
