"""The training loop by itself: order, checkpoints, the log, going on."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from qvpic_rag.errors import ConfigError, QVPICError
from qvpic_rag.reader.loop import Loop, read_checkpoint


@dataclass(frozen=True)
class Stage:
    name: str
    steps: int
    shelf_steps: int = 3


class Counting(Loop[Stage, int]):
    """Keeps what it was given."""

    def __init__(self, folder: Path, stages: list[Stage], seed: int = 1) -> None:
        self.seen: list[tuple[str, int, float]] = []
        self.lines: list[dict[str, Any]] = []
        super().__init__(folder, stages, seed, self.lines.append)
        self.resumed = self.resume()

    def prepare(self, stage: Stage, rng: random.Random) -> int:
        return rng.randrange(10**6)

    def learn(self, stage: Stage, shelf: int, rng: random.Random) -> dict[str, float]:
        self.seen.append((stage.name, shelf, rng.random()))
        return {"loss": float(len(self.seen))}

    def examine(self, stage: Stage) -> dict[str, float]:
        return {"unseen": 0.5}

    def state(self) -> dict[str, Any]:
        return {"seen": [list(each) for each in self.seen]}

    def restore(self, state: dict[str, Any]) -> None:
        self.seen = [tuple(each) for each in state["seen"]]  # type: ignore[misc]


STAGES = [Stage("a", 7), Stage("b", 25)]


def test_stages_in_order_with_shelves_replaced(tmp_path: Path) -> None:
    loop = Counting(tmp_path, STAGES)
    assert not loop.resumed
    loop.run()
    assert [name for name, _, _ in loop.seen] == ["a"] * 7 + ["b"] * 25
    shelves = [shelf for _, shelf, _ in loop.seen]
    assert shelves[0] == shelves[2] != shelves[3]
    assert len(set(shelves)) == 3 + 9
    assert len({chance for _, _, chance in loop.seen}) == 32


@pytest.mark.parametrize("stop", range(1, 32, 5))
def test_a_run_goes_on_where_it_was_left(stop: int, tmp_path: Path) -> None:
    whole = Counting(tmp_path / "whole", STAGES)
    whole.run()
    part = Counting(tmp_path / "part", STAGES)
    part.run(lambda: len(part.seen) == stop)
    assert len(part.seen) == stop
    again = Counting(tmp_path / "part", STAGES)
    assert again.resumed
    again.run()
    assert again.seen == whole.seen
    assert again.seconds >= part.seconds


def test_finished_stages_are_known_by_name(tmp_path: Path) -> None:
    Counting(tmp_path, STAGES[:1]).run()
    longer = Counting(tmp_path, [Stage("a", 100), Stage("c", 2)])
    longer.run()
    assert [name for name, _, _ in longer.seen] == ["a"] * 7 + ["c"] * 2


def test_the_log(tmp_path: Path) -> None:
    loop = Counting(tmp_path, STAGES)
    loop.run()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines == loop.lines
    assert [(line["stage"], line["step"]) for line in lines] == [("a", 7), ("b", 20), ("b", 25)]
    assert lines[1]["loss"] < 27  # an average that follows
    assert lines[2]["unseen"] == 0.5


def test_checkpoints_hold_plain_values_only(tmp_path: Path) -> None:
    Counting(tmp_path, STAGES).run()
    state = read_checkpoint(tmp_path)
    assert state["done"] == ["a", "b"]
    assert len(state["run"]["seen"]) == 32


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"nonsense"])
def test_a_damaged_checkpoint_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").write_bytes(content)
    with pytest.raises(ConfigError, match=r"checkpoint\.pt"):
        Counting(tmp_path, STAGES)


def test_a_state_of_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Counting(tmp_path, STAGES).run()
    monkeypatch.setattr(Counting, "restore", lambda self, state: state["other"])
    with pytest.raises(ConfigError, match="cannot be continued"):
        Counting(tmp_path, STAGES)


def test_two_trainings_do_not_share_a_folder(tmp_path: Path) -> None:
    first = Counting(tmp_path, STAGES)
    second = Counting(tmp_path, STAGES)

    def meanwhile() -> bool:
        with pytest.raises(ConfigError, match="Another training"):
            second.run()
        return True

    first.run(meanwhile)
    second.run()
    assert len(second.seen) == 32


def test_a_run_that_diverged_says_so_and_keeps_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Counting(tmp_path, STAGES)
    loop.run(lambda: len(loop.seen) == 3)
    old = (tmp_path / "checkpoint.pt").read_bytes()
    for state in ({"w": torch.tensor([1.0, float("nan")])}, {"moments": [{"m": torch.tensor(float("inf"))}]}):
        monkeypatch.setattr(Counting, "state", lambda self, state=state: state)
        with pytest.raises(QVPICError, match=r"diverged.*lower the recipe's rates"):
            loop.run()
        assert (tmp_path / "checkpoint.pt").read_bytes() == old


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("enforce fail\nat 672")])
def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def full(state: object, path: Path) -> None:
        path.write_bytes(b"part")
        raise error

    loop = Counting(tmp_path, STAGES)
    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(QVPICError, match=r"cannot be written.*go on") as raised:
        loop.run()
    assert "\n" not in str(raised.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.jsonl"]


def test_a_folder_that_cannot_be_written_is_said_before_training(tmp_path: Path) -> None:
    loop = Counting(tmp_path, STAGES)
    (tmp_path / "log.jsonl").mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        loop.run()
    assert loop.seen == []
