"""The circuit breaker, with a clock of its own."""

from __future__ import annotations

from qvpic_rag.bank.breaker import Breaker


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_waits_double_up_to_the_longest_and_end_with_an_answer() -> None:
    clock = Clock()
    breaker = Breaker(30, 600, clock)
    waits = []
    for _ in range(7):
        ticket = breaker.enter()
        assert ticket is not None
        assert breaker.failed(ticket) == (not waits)
        waits.append(breaker.retry_in_s)
        assert breaker.enter() is None
        clock.now += waits[-1]
        assert breaker.retry_in_s == 0
    assert waits == [30, 60, 120, 240, 480, 600, 600]
    assert breaker.skipped == 7
    ticket = breaker.enter()
    assert ticket is not None
    assert breaker.succeeded(ticket)
    assert breaker.retry_in_s == 0
    ticket = breaker.enter()
    assert ticket is not None
    assert not breaker.succeeded(ticket)  # nothing ended
    breaker.failed(ticket)
    assert breaker.retry_in_s == 30


def test_failures_at_the_same_time_count_once() -> None:
    clock = Clock()
    breaker = Breaker(30, 600, clock)
    tickets = [breaker.enter() for _ in range(5)]
    assert [breaker.failed(ticket) for ticket in tickets if ticket is not None] == [True, False, False, False, False]
    assert breaker.retry_in_s == 30
    assert not breaker.succeeded(0)  # an answer to a question from before it went down
    assert breaker.retry_in_s == 30


def test_one_caller_tries_while_the_others_go_on() -> None:
    clock = Clock()
    breaker = Breaker(30, 600, clock)
    breaker.failed(0)
    clock.now += 30
    assert [breaker.enter() for _ in range(3)] == [1, None, None]
    clock.now += 30  # the one that tries was never heard of again
    assert breaker.enter() == 1


def test_very_many_failures() -> None:
    clock = Clock()
    breaker = Breaker(30, 600, clock)
    for _ in range(3000):
        breaker.failed(breaker.enter() or 0)
        clock.now += 600
    assert breaker.enter() == 3000
