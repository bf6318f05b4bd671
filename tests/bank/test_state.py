"""Any sequence of steps, crashes among them: limits hold, what is counted lies on the disk, nothing is wrong."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from qvpic_rag.bank import Bank
from qvpic_rag.errors import BankFullError, ConfigError, MissingBlockError
from qvpic_rag.records import KVBlock
from tests.bank import samples, worker

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]

NAMES = ("default", "other")
TEXTS = st.sampled_from(["one", "two", "three", "four", "five"])
PLACES = st.tuples(st.sampled_from(NAMES), TEXTS, st.sampled_from([72, 120]))
SIZES = {72: 6, 120: 14}


def make(bank: Bank, text: str, dpi: int) -> KVBlock:
    return samples.block(bank, samples.page(text), dpi, shape=(2, 2, SIZES[dpi], 4), namespace=bank.namespace)


class BankMachine(RuleBasedStateMachine):
    steps = 0  # of all runs

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="qvpic-state-"))
        self.path = self.folder / "bank"
        self.held: dict[tuple[str, str, int], KVBlock] = {}
        self.open()
        one = make(self.banks["default"], "one", 120)
        self.banks["default"].put_block(one)
        self.largest = self.used()

    def open(self) -> None:
        self.banks = {name: Bank.create(self.path, samples.recipe(), name) for name in NAMES}

    def close(self) -> None:
        for bank in self.banks.values():
            bank.close()

    def teardown(self) -> None:
        self.close()
        shutil.rmtree(self.folder)

    def used(self) -> int:
        return sum(path.stat().st_size for path in (self.path / "blocks").rglob("*") if path.is_file())

    def stored(self, name: str) -> dict[tuple[str, int], bool]:
        bank = self.banks[name]
        return {
            (text, dpi): bank.has_block(make(bank, text, dpi).key)
            for text in ("one", "two", "three", "four", "five")
            for dpi in (72, 120)
        }

    def other(self, name: str) -> str:
        return NAMES[1 - NAMES.index(name)]

    # ------------------------------------------------------------------ steps

    @rule(place=PLACES, cost=st.sampled_from([0.0, 0.1, 3.0]))
    def put(self, place, cost) -> None:
        name, text, dpi = place
        before, bank = self.stored(self.other(name)), self.banks[name]
        try:
            bank.put_block(make(bank, text, dpi), cost_s=cost)
        except BankFullError:
            assert bank.limits() != (None, None)
        else:
            assert bank.has_block(make(bank, text, dpi).key)
        assert self.stored(self.other(name)) == before, "a namespace evicts only its own"

    @rule(place=PLACES, hold=st.booleans())
    def get(self, place, hold) -> None:
        name, text, dpi = place
        bank = self.banks[name]
        wanted = make(bank, text, dpi)
        if not bank.has_block(wanted.key):
            with pytest.raises(MissingBlockError):
                bank.get_block(wanted.key)
            return
        found = bank.get_block(wanted.key)
        assert samples.same(found, wanted)
        if hold:
            self.held[place] = found

    @precondition(lambda self: self.held)
    @rule()
    def release(self) -> None:
        self.held.pop(next(iter(self.held)))

    @rule(name=st.sampled_from(NAMES), texts=st.lists(TEXTS, max_size=3, unique=True))
    def put_document(self, name, texts) -> None:
        samples.put(self.banks[name], "a.txt", texts, blocks=False)

    @rule(name=st.sampled_from(NAMES))
    def remove_document(self, name) -> None:
        self.banks[name].remove_document("a.txt")

    @rule(files=st.one_of(st.none(), st.integers(1, 8)))
    def limit(self, files) -> None:
        bank = self.banks["default"]
        before = bank.limits()[0]
        try:
            bank.set_max_bytes(None if files is None else files * self.largest)
        except (BankFullError, ConfigError):  # more is in use, or kept by quotas
            assert bank.limits()[0] == before

    @rule(name=st.sampled_from(NAMES), files=st.one_of(st.none(), st.integers(1, 4)))
    def quota(self, name, files) -> None:
        bank = self.banks[name]
        before = bank.limits()
        try:
            bank.set_quota(None if files is None else files * self.largest)
        except (BankFullError, ConfigError):
            assert bank.limits() == before

    @rule(name=st.sampled_from(NAMES), grace=st.sampled_from([0.0, 3600.0]))
    def collect(self, name, grace) -> None:
        held = {place: self.path_of(place) for place in self.held}
        there = {place for place, path in held.items() if path.exists()}
        self.banks[name].gc(grace_s=grace)
        assert all(held[place].exists() for place in there), "a block in use stays"

    @rule()
    def reopen(self) -> None:
        self.close()
        self.open()

    @rule(place=PLACES, step=st.integers(1, 40))
    def crash(self, place, step) -> None:
        """A process dies while it stores a block."""
        name, text, dpi = place
        before = self.stored(self.other(name))
        self.close()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with Bank.open(self.path, name) as bank:
                    block, left = make(bank, text, dpi), step

                    def event() -> None:
                        nonlocal left
                        left -= 1
                        if left == 0:
                            os.kill(os.getpid(), signal.SIGKILL)

                    worker._count_events(event)
                    bank.put_block(block)
                code = 0
            except BankFullError:
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL
        self.open()
        assert self.counted(self.banks[name]) >= self.used()
        assert self.stored(self.other(name)) == before
        self.banks[name].gc(grace_s=1e12)

    # ------------------------------------------------------------------ what holds always

    def path_of(self, place: tuple[str, str, int]) -> Path:
        name, text, dpi = place
        digest = make(self.banks[name], text, dpi).key.digest
        return self.path / "blocks" / digest[:2] / f"{digest}.safetensors"

    def counted(self, bank: Bank) -> int:
        with bank._database.read() as connection:
            return sum(
                connection.execute(f"SELECT coalesce(sum(bytes), 0) FROM {table}").fetchone()[0]
                for table in ("blocks", "reservations")
            )

    @invariant()
    def the_accounting_equals_the_disk(self) -> None:
        assert self.counted(self.banks["default"]) == self.used()

    @invariant()
    def limits_hold(self) -> None:
        BankMachine.steps += 1
        total, _ = self.banks["default"].limits()
        assert total is None or self.used() <= total
        for bank in self.banks.values():
            quota = bank.limits()[1]
            assert quota is None or sum(bank.stats().block_bytes.values()) <= quota

    @invariant()
    def what_is_in_use_is_right_and_there(self) -> None:
        for place, found in self.held.items():
            assert samples.same(found, make(self.banks[place[0]], *place[1:]))

    @invariant()
    def nothing_is_damaged(self) -> None:
        assert self.banks["default"].verify() == []


def run(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        BankMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_some_hundred_steps() -> None:
    run(12, 40)


@pytest.mark.slow
def test_ten_thousand_steps() -> None:
    BankMachine.steps = 0
    run(260, 60)
    assert BankMachine.steps >= 10_000
