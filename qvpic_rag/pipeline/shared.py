"""Models and embedders that all engines of a process share, so that each is in memory once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from qvpic_rag.embed import Embedder, load_embedder
from qvpic_rag.models import VisionLanguageModel
from qvpic_rag.models.device import resolve_device

__all__ = ["EMBEDDERS", "MODELS", "Shared", "shared_embedder"]

T = TypeVar("T")


class Shared(Generic[T]):
    """What ``load`` makes, kept as long as somebody uses it."""

    def __init__(self) -> None:
        self._held: WeakValueDictionary[tuple[Any, ...], Any] = WeakValueDictionary()
        self._lock = threading.Lock()

    def get(self, load: Callable[..., T], name: str, **options: Any) -> T:
        """``load(name, **options)``, or what an earlier call with the same arguments made.

        A folder whose files have changed since is loaded again.
        """
        key = _key(load, name, options)
        with self._lock:
            found: T | None = self._held.get(key)
            if found is None:
                found = self._held[key] = load(name, **options)
            return found

    def put(self, value: T, load: Callable[..., T], name: str, **options: Any) -> None:
        """Have :meth:`get` answer these arguments, too, with something that is held already."""
        with self._lock:
            self._held[_key(load, name, options)] = value


def _key(load: Callable[..., Any], name: str, options: dict[str, Any]) -> tuple[Any, ...]:
    return (load, *(_stamp(Path(name)) or (str(name),)), *sorted(options.items()))


def _stamp(folder: Path) -> tuple[Any, ...]:
    """Where a folder is, and sizes and times of its files; nothing for a name that is none."""
    if not folder.is_dir():
        return ()
    files = [(each.name, each.stat()) for each in sorted(folder.iterdir()) if each.is_file()]
    return (str(folder.resolve()), *((name, found.st_size, found.st_mtime_ns) for name, found in files))


MODELS: Shared[VisionLanguageModel] = Shared()
EMBEDDERS: Shared[Embedder] = Shared()


def shared_embedder(name: str, *, device: str | None = None) -> Embedder:
    """The embedding model that engines of this process use under this name; see
    :func:`~qvpic_rag.embed.load_embedder`.

    ``device`` is by default the first CUDA device, else the CPU.
    """
    return EMBEDDERS.get(load_embedder, name, device=str(resolve_device(device)))
