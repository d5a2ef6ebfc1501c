"""A process that starts is waited for while it works, however busy the computer is."""

from __future__ import annotations

import os
import time

from tidegate.fleet.processes import StartPatience, processor_s


def test_a_start_that_gets_a_little_of_a_busy_computer_is_waited_for() -> None:
    patience = StartPatience(100.0)

    # A hundredth of a core: what takes 1.5 s elsewhere takes 150 s.
    assert not any(patience.is_over(100.0 + at, 0.01 * at) for at in range(1, 151))


def test_a_start_that_does_nothing_is_given_up() -> None:
    patience = StartPatience(0.0)
    assert not patience.is_over(1.0, 0.9)

    # What its timers cost is no work.
    assert not patience.is_over(20.5, 0.91)
    assert patience.is_over(21.0, 0.92)


def test_a_start_that_never_ends_is_given_up_at_last() -> None:
    patience = StartPatience(0.0)

    assert not patience.is_over(StartPatience.MOST_S - 1.0, 299.0)
    assert patience.is_over(StartPatience.MOST_S, 300.0)


def test_processor_time_of_a_missing_process_is_none() -> None:
    # Rounded down to ticks of the kernel's, so never more than we know of ourselves.
    used_s = processor_s(os.getpid())
    assert used_s is not None
    assert 0.0 < used_s <= time.process_time() + 0.01

    # Larger than any pid.
    assert processor_s(1 << 30) is None
