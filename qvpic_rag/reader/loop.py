"""The loop around a reader's training: stages in order, checkpoints, a log, and going on where a run was left.

Every batch follows from the recipe's seed, the stage and the step, so that a run that is interrupted and continued sees
what an uninterrupted one sees. A run's folder holds ``checkpoint.pt`` (read without unpickling anything but tensors and
plain values) and ``log.jsonl``.
"""

from __future__ import annotations

import fcntl
import json
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch

from qvpic_rag.errors import ConfigError, QVPICError

__all__ = ["CHECKPOINT", "Loop", "StageLike", "read_checkpoint"]

CHECKPOINT = "checkpoint.pt"
_LOG = "log.jsonl"
_SAVE_EVERY, _EXAMINE_EVERY = 120, 600  # seconds
_LOG_EVERY = 20  # steps
_MEMORY = 0.95  # of the running averages in the log


class StageLike(Protocol):
    """What the loop needs to know of a stage."""

    @property
    def name(self) -> str:
        """Unique in the recipe."""

    @property
    def steps(self) -> int:
        """Optimiser steps."""

    @property
    def shelf_steps(self) -> int:
        """Steps for which one shelf of samples serves."""


StageT = TypeVar("StageT", bound=StageLike)
ShelfT = TypeVar("ShelfT")


class Loop(ABC, Generic[StageT, ShelfT]):
    """A resumable run; subclasses say what a step is.

    Parameters
    ----------
    folder : Path
        Of the run; made if missing.
    stages : Sequence[StageT]
        In order. A continued run may have others: finished ones are recognised by their names.
    seed : int
        Decides the samples.
    log : Callable[[dict[str, Any]], None]
        Called with every line that goes into the log.
    """

    def __init__(
        self, folder: Path, stages: Sequence[StageT], seed: int, log: Callable[[dict[str, Any]], None]
    ) -> None:
        self.folder, self.stages, self.seed, self._say = folder, list(stages), seed, log
        self.done: list[str] = []
        self.stage, self.step, self.seconds = "", 0, 0.0
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"The run folder {folder} cannot be made ({error}); name another one.") from error

    @abstractmethod
    def prepare(self, stage: StageT, rng: random.Random) -> ShelfT:
        """Samples for the next ``shelf_steps`` steps."""

    @abstractmethod
    def learn(self, stage: StageT, shelf: ShelfT, rng: random.Random) -> dict[str, float]:
        """One optimiser step; what it found out goes into the log as running averages."""

    @abstractmethod
    def examine(self, stage: StageT) -> dict[str, float]:
        """A glimpse at unseen samples, for the log."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Tensors and plain values that :meth:`restore` needs."""

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state`; raises any exception for a state of something else."""

    def rng(self, *what: object) -> random.Random:
        """The source of chance for something, the same in every run with this seed."""
        return random.Random(" ".join(map(str, (self.seed, *what))))

    def resume(self) -> bool:
        """Take up the folder's checkpoint; whether there is one.

        Raises
        ------
        ConfigError
            It is damaged, or of a run that this one cannot continue.
        """
        path = self.folder / CHECKPOINT
        if not path.exists():
            return False
        state = read_checkpoint(self.folder)
        try:
            self.restore(state["run"])
            self.done, self.stage, self.step = list(state["done"]), str(state["stage"]), int(state["step"])
            self.seconds = float(state["seconds"])
        except Exception as error:  # torch raises anything for weights of another shape
            raise ConfigError(
                f"The checkpoint {path} cannot be continued ({_reason(error)}); name another run folder to begin anew."
            ) from error
        return True

    def save(self) -> None:
        """Write the checkpoint whole or not at all.

        Raises
        ------
        QVPICError
            It cannot be written, or a weight is no number any more; the last checkpoint stays.
        """
        state = {
            "run": self.state(),
            "done": self.done,
            "stage": self.stage,
            "step": self.step,
            "seconds": self.seconds,
        }
        if not _finite(state):
            raise QVPICError(
                f"Training has diverged: at step {self.step} of stage {self.stage!r} a weight is no number any more; "
                "lower the recipe's rates and run again, which goes on from the last checkpoint."
            )
        part = self.folder / f"{CHECKPOINT}.part"
        try:
            torch.save(state, part)
            part.replace(self.folder / CHECKPOINT)
        except (OSError, RuntimeError) as error:  # torch's own writer raises RuntimeError on a full disk
            if part.is_file():
                part.unlink(missing_ok=True)
            raise QVPICError(
                f"The checkpoint cannot be written to {self.folder} ({str(error).splitlines()[0]}); free space or make "
                "the folder writable, and run again to go on from the last checkpoint."
            ) from error

    def run(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Do what is left of the stages, until ``stop`` says so.

        Raises
        ------
        ConfigError
            The folder cannot be written, or another training is writing it.
        QVPICError
            Training has diverged, or the disk is full.
        """
        with self._alone():
            self._run(stop)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the folder's log: two trainings would overwrite each other's checkpoints."""
        with ExitStack() as held:
            try:
                log = held.enter_context((self.folder / _LOG).open("a", encoding="utf-8"))
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigError(
                    f"Another training is at work in {self.folder}; wait for it, or name another run folder."
                ) from error
            except OSError as error:
                raise ConfigError(
                    f"The run folder {self.folder} cannot be written ({error}); make it writable, or name another one."
                ) from error
            yield

    def _run(self, stop: Callable[[], bool]) -> None:
        for stage in self.stages:
            if stage.name in self.done:
                continue
            if self.stage != stage.name:
                self.stage, self.step = stage.name, 0
            self._run_stage(stage, stop)
            if self.step < stage.steps:
                return
            self.done.append(stage.name)
            self.stage, self.step = "", 0
            self.save()

    def _run_stage(self, stage: StageT, stop: Callable[[], bool]) -> None:
        clock = saved = examined = time.perf_counter()
        shelf: ShelfT | None = None
        number = -1
        averages: dict[str, float] = {}
        while self.step < stage.steps and not stop():
            if shelf is None or number != self.step // stage.shelf_steps:
                number = self.step // stage.shelf_steps
                shelf = self.prepare(stage, self.rng(stage.name, "shelf", number))
            found = self.learn(stage, shelf, self.rng(stage.name, self.step))
            for name, value in found.items():
                averages[name] = averages.get(name, value) * _MEMORY + value * (1 - _MEMORY)
            self.step += 1
            now = time.perf_counter()
            self.seconds, clock = self.seconds + now - clock, now
            if self.step % _LOG_EVERY == 0:
                self._log(stage, averages)
            if now - saved > _SAVE_EVERY:
                self.save()
                saved = now
            if now - examined > _EXAMINE_EVERY or self.step == stage.steps:
                self._log(stage, self.examine(stage))
                examined = time.perf_counter()
        self.save()

    def _log(self, stage: StageT, values: dict[str, float]) -> None:
        line = {
            "minutes": round(self.seconds / 60, 2),
            "stage": stage.name,
            "step": self.step,
            **{name: round(value, 4) for name, value in sorted(values.items())},
        }
        try:
            with (self.folder / _LOG).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise QVPICError(f"The log in {self.folder} cannot be written ({error}); free space and go on.") from error
        self._say(line)


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """What a run's checkpoint holds: ``run`` is what :meth:`Loop.state` gave.

    Raises
    ------
    ConfigError
        There is none, or it is damaged.
    """
    path = folder / CHECKPOINT
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(state, dict) or not isinstance(state.get("run"), dict):
            raise ValueError("it holds no run")
    except FileNotFoundError as error:
        raise ConfigError(f"There is no {path}; name the folder of a run of `qvpic reader train`.") from error
    except Exception as error:  # torch raises anything for a file that is no checkpoint
        raise ConfigError(
            f"{path} is no checkpoint of a training run ({_reason(error)}); name another run folder."
        ) from error
    return state


def _finite(state: Any) -> bool:
    """Whether all floating tensors of nested plain values hold numbers only."""
    if isinstance(state, torch.Tensor):
        return not state.is_floating_point() or bool(torch.isfinite(state).all())
    if isinstance(state, dict):
        return all(map(_finite, state.values()))
    return not isinstance(state, list | tuple) or all(map(_finite, state))


def _reason(error: Exception) -> str:
    """Why, in a few words: torch writes a line per weight, and advises to unpickle what it refuses."""
    return str(error) if isinstance(error, ValueError | OSError) else type(error).__name__
