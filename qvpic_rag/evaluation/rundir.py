"""The folder of a run: what was run, and one file of JSON lines for each kind of record.

A run is killed now and then, so records are appended one by one and a run goes on where it was left. A line that was
being written when that happened is cut off by the next writer; readers pass over it.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import stat
import threading
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeAlias

from qvpic_rag.errors import ConfigError, InputError, QVPICError
from qvpic_rag.evaluation.checking import FORMAT, check_settings, record
from qvpic_rag.evaluation.records import Answered, Example, OfflineCost, Served, Timed
from qvpic_rag.evaluation.strict_json import strict_json

__all__ = ["Record", "RunFolder", "runs_below"]

Record: TypeAlias = Example | Answered | Timed | OfflineCost | Served

_SETTINGS = "run.json"
_LOCK = "run.lock"
_KINDS: dict[str, tuple[type[Any], tuple[str, ...]]] = {
    "examples": (Example, ("id",)),
    "answers": (Answered, ("example", "method")),
    "timing": (Timed, ("example", "method", "repeat")),
    "offline": (OfflineCost, ("group", "method")),
    "served": (Served, ("method", "callers", "example")),
}
_FREE = ("format", "started", "methods", "preset", "model.name")
"""Settings in which a run that goes on may differ: methods grow, and a model may have moved."""


class RunFolder:
    """A run's folder, opened for reading by :meth:`open` or for writing by :meth:`create`.

    Attributes
    ----------
    path : Path
        The folder.
    settings : Mapping[str, Any]
        What ``run.json`` holds.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], lock: int | None = None) -> None:
        self.path = path
        self.settings = settings
        self._lock = lock
        self._files: dict[str, int] = {}
        self._appending = threading.Lock()

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """For reading, also while somebody writes.

        Raises
        ------
        InputError
            There is no run, or its ``run.json`` is damaged or of a newer version.
        """
        settings = _settings(path)
        if settings is None:
            raise InputError(f"{path} holds no run: there is no {_SETTINGS}; name the --out of `qvpic eval run`.")
        return cls(path, settings)

    @classmethod
    def create(cls, path: Path, settings: Mapping[str, Any]) -> RunFolder:
        """For writing: begin a run, or go on with the one that is there.

        Parameters
        ----------
        settings : Mapping[str, Any]
            What ``run.json`` gets, JSON-able, without ``format``. ``started`` is filled in. Methods that the run does
            not have yet are added to it.

        Raises
        ------
        ConfigError
            The folder holds a run with other settings, or records without a ``run.json``; or the settings are none that
            could be read again.
        InputError
            Another process writes to the folder.
        QVPICError
            The folder cannot be written.
        """
        try:
            wanted = strict_json(json.dumps(settings).encode())
        except ValueError as error:
            raise ConfigError(f"The run's settings could not be read again ({error}); choose others.") from error
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise QVPICError(f"{path} cannot be written ({error.strerror}); use another --out.") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            agreed = _agreed(path, wanted)
            _repair(path)
            return cls(path, agreed, lock)
        except BlockingIOError:
            os.close(lock)
            raise InputError(f"Another process writes to {path}; wait until it ends, or use another --out.") from None
        except OSError as error:
            os.close(lock)
            raise QVPICError(f"{path} cannot be written ({error.strerror}); use another --out.") from error
        except BaseException:
            os.close(lock)
            raise

    def append(self, kind: str, row: Record) -> None:
        """Write one record, whole or not at all; it is there when this returns, whatever happens to the process.

        Safe to call from several threads.

        Raises
        ------
        QVPICError
            The file cannot be written: a full disk.
        """
        if self._lock is None:
            raise QVPICError(f"{self.path} was opened for reading; open it with RunFolder.create to write.")
        _kind(kind)
        line = json.dumps(row.to_dict(), ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"
        data = line.encode("utf-8", "replace")
        path = self.path / f"{kind}.jsonl"
        with self._appending:
            try:
                if kind not in self._files:
                    self._files[kind] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
                _write(self._files[kind], data)
            except OSError as error:
                raise QVPICError(f"{path} cannot be written ({error.strerror}); free space and run again.") from error

    def rows(self, kind: str) -> Iterator[Record]:
        """The records of a kind, in the order in which they were written; of several with one key the first.

        Raises
        ------
        InputError
            A line is no record of this kind; the message names file and line.
        """
        cls, key = _kind(kind)
        path = self.path / f"{kind}.jsonl"
        seen = set()
        try:
            if not _is_there(path):
                return
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if not line.endswith(b"\n"):
                        return  # is being written, or was when its writer was killed
                    row = record(cls, line, f"{path}, line {number}")
                    name = tuple(getattr(row, field) for field in key)
                    if name not in seen:
                        seen.add(name)
                        yield row
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror}).") from error

    def done(self, kind: str) -> set[tuple[Any, ...]]:
        """The keys of the records that are there.

        ``(id,)`` of examples, ``(example, method)`` of answers, ``(example, method, repeat)`` of timing,
        ``(group, method)`` of offline, ``(method, callers, example)`` of served.
        """
        _, key = _kind(kind)
        return {tuple(getattr(row, field) for field in key) for row in self.rows(kind)}

    def close(self) -> None:
        """End writing; harmless where nothing is written."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def runs_below(path: Path) -> list[RunFolder]:
    """The run in a folder, or the runs in its sub-folders (a preset over several models), by name, for reading.

    Raises
    ------
    InputError
        There is none.
    """
    if path.is_file():
        raise InputError(f"{path} is a file; name the folder that holds the run, such as {path.parent}.")
    if (path / _SETTINGS).is_file():
        return [RunFolder.open(path)]
    below = sorted(path.iterdir()) if path.is_dir() else []
    found = [RunFolder.open(each) for each in below if (each / _SETTINGS).is_file()]
    if not found:
        raise InputError(f"{path} holds no run: there is no {_SETTINGS}; name the --out of `qvpic eval run`.")
    return found


def _write(file: int, data: bytes) -> None:
    whole, done = os.fstat(file).st_size, 0
    try:
        while done < len(data):
            done += os.write(file, data[done:])
    except BaseException:
        os.ftruncate(file, whole)  # or the next record would be joined to half of this one
        raise


def _kind(name: str) -> tuple[type[Any], tuple[str, ...]]:
    if name not in _KINDS:
        raise ConfigError(f"A run has no records of kind {name!r}; its kinds are {', '.join(_KINDS)}.")
    return _KINDS[name]


def _settings(path: Path) -> dict[str, Any] | None:
    file = path / _SETTINGS
    try:
        if not _is_there(file):
            return None
        settings: dict[str, Any] = strict_json(file.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read ({error}); use another --out.") from error
    check_settings(settings, str(file))
    return settings


def _is_there(file: Path) -> bool:
    """Whether there is a file; something else, such as a pipe, would be waited for without end."""
    try:
        mode = file.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISREG(mode):
        raise InputError(f"{file} is not a regular file; take it away, or use another folder.")
    return True


def _agreed(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """What ``run.json`` holds from now on."""
    held = _settings(path)
    if held is None:
        for kind in _KINDS:
            if (path / f"{kind}.jsonl").exists():
                raise ConfigError(f"{path} holds {kind}.jsonl but no {_SETTINGS}; use another --out.")
        started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        agreed = {"format": FORMAT, "started": started, **settings}
    else:
        there, here = dict(_flat(held)), dict(_flat(settings))
        for name in [*there, *(name for name in here if name not in there)]:
            if name == "embedder" and None in (there.get(name), here.get(name)):
                continue  # it is loaded where a method needs it
            if name not in _FREE and there.get(name) != here.get(name):
                raise ConfigError(
                    f"{path} holds a run with {name} {there.get(name)!r}, not {here.get(name)!r}; use another --out."
                )
        more = [name for name in settings["methods"] if name not in held["methods"]]
        if not more:
            return held
        embedder = held.get("embedder") or settings.get("embedder")
        agreed = {**held, "methods": held["methods"] + more, "embedder": embedder}
    temporary = path / f".{secrets.token_hex(8)}.tmp"
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(agreed, file, ensure_ascii=True, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path / _SETTINGS)
    finally:
        temporary.unlink(missing_ok=True)
    return agreed


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by dotted names, such as ``suite.name``; lists are compared whole."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield before + name, value


def _repair(path: Path) -> None:
    """Cut off the lines that writers were killed in."""
    for kind in _KINDS:
        if _is_there(path / f"{kind}.jsonl"):
            with (path / f"{kind}.jsonl").open("r+b") as file:
                whole = sum(len(line) for line in file if line.endswith(b"\n"))
                file.truncate(whole)
