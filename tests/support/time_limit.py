"""The limit of a test's time: pytest-timeout decides how long, this module ends the test.

pytest-timeout raises `Failed` once, in whatever code runs when its signal comes. That did not end
every test:

- uvloop, while it waits, gives an exception of a signal handler to its exception handler and waits
  on. Every event loop does so if the signal comes during a callback, whose work is then lost.
- Hypothesis takes `Failed` for a failing example and tries to make it smaller, without a limit.

`TimeIsUp` is a `KeyboardInterrupt`, which event loops and Hypothesis let through. It is also an
outcome of pytest: when it interrupts a fixture, the other fixtures of the test still end. pytest
does not promise that for other exceptions, `asyncio.CancelledError` among them: the fixtures that
have not ended are then used by the next test as they are.

The signal comes again after each further limit, so that ending the fixtures has a limit, too. It
does nothing while pytest itself works between the phases of a test.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import pytest_timeout
from _pytest.outcomes import OutcomeException

_in_phase = False


class TimeIsUp(OutcomeException, KeyboardInterrupt):
    """The test takes longer than it may."""


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """Set the timer in place of pytest-timeout; None leaves it to pytest-timeout."""
    if settings.method != "signal" or threading.current_thread() is not threading.main_thread():
        return None

    def end(*_: object) -> None:
        if not _in_phase or pytest_timeout.is_debugging():
            return
        if threading.active_count() > 1:
            pytest_timeout.dump_stacks(item.config.get_terminal_writer())
        raise TimeIsUp(f"the test takes longer than {settings.timeout:g} s")

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    item.cancel_timeout = cancel  # type: ignore[attr-defined]
    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout, settings.timeout)
    return True


def _phase() -> Iterator[None]:
    global _in_phase
    _in_phase = True
    try:
        yield
    except TimeIsUp as up:
        # pytest would end the whole run at a KeyboardInterrupt.
        raise pytest.fail.Exception(str(up)) from up
    finally:
        _in_phase = False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    yield from _phase()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    yield from _phase()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    yield from _phase()
