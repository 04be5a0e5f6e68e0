"""Turns, deadlines and ratios, with clocks of our own: nothing here measures time."""

import itertools

import pytest
import torch

from equicolor.benchmark import timing
from equicolor.benchmark.timing import Deadline, iterations, milliseconds, paired_ratio, take_turns

CPU = torch.device("cpu")


class Clock:
    """Says what it is told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_deadline_counts_from_its_making():
    clock = Clock()
    deadline = Deadline(10, clock)
    assert not deadline.over()
    assert not deadline.over(reserve=10)
    clock.now += 4
    assert not deadline.over(reserve=6)
    assert deadline.over(reserve=6.5)
    clock.now += 7
    assert deadline.over()


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_deadline_refuses_no_time(seconds):
    with pytest.raises(ValueError, match="more than 0 seconds"):
        Deadline(seconds)


def test_milliseconds_are_of_one_call(monkeypatch):
    ticks = itertools.count(step=0.5)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(ticks))
    calls = []
    assert milliseconds(lambda: calls.append(1), CPU, 5) == 100.0
    assert len(calls) == 5


def test_iterations_last_long_enough():
    assert iterations(2.5, 10) == 4
    assert iterations(3, 10) == 4
    assert iterations(11, 10) == 1
    assert iterations(0, 10) == 10_000  # a clock too coarse to see the step
    assert iterations(5, 0) == 1


def test_steps_take_turns():
    calls = []
    steps = [lambda: calls.append("a"), lambda: calls.append("b")]
    told = []
    times = take_turns(
        steps, [1, 2], CPU, repeats=3, deadline=Deadline(), progress=lambda: told.append(1)
    )
    assert calls == ["a", "b", "b"] * 3
    assert [len(own) for own in times] == [3, 3]
    assert len(told) == 6


def test_rounds_are_whole_and_at_least_one():
    clock = Clock()

    def slow():
        clock.now += 1

    times = take_turns([slow, slow], [1, 1], CPU, repeats=9, deadline=Deadline(5, clock))
    assert [len(own) for own in times] == [3, 3]  # the third round begins in time
    clock.now += 100
    times = take_turns([slow, slow], [1, 1], CPU, repeats=9, deadline=Deadline(0.5, clock))
    assert [len(own) for own in times] == [1, 1]


def test_ratio_does_not_see_drift():
    base = [1.0, 1.0, 5.0, 6.0]
    assert paired_ratio([3 * value for value in base], base) == 3.0
    # one bad round does not count
    assert paired_ratio([2.0, 2.0, 50.0], [1.0, 1.0, 1.0]) == 2.0


@pytest.mark.parametrize(("times", "base"), [([], []), ([1.0], []), ([1.0, 2.0], [1.0])])
def test_ratio_needs_the_same_rounds(times, base):
    with pytest.raises(ValueError, match="same rounds"):
        paired_ratio(times, base)
