"""Tests that hang end at their limit, and leave nothing to the next test."""

from __future__ import annotations

import pytest
from places import ROOT

pytest_plugins = ["pytester"]

# The signal of the limit is sent by hand: a limit that is reached is one of a busy machine, too.
HANGING = """
import asyncio
import os
import signal
import threading

import pytest
import uvloop
from hypothesis import given, settings, strategies

LOOPS = [uvloop.new_event_loop, asyncio.new_event_loop]


def is_up():
    signal.raise_signal(signal.SIGALRM)


async def hang():
    asyncio.get_running_loop().call_soon(
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGALRM)).start
    )
    await asyncio.Event().wait()


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_loop_that_waits(new_loop):
    asyncio.Runner(loop_factory=new_loop).run(hang())


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_loop_whose_callback_is_interrupted(new_loop):
    async def wait():
        asyncio.get_running_loop().call_soon(is_up)
        await asyncio.Event().wait()

    asyncio.Runner(loop_factory=new_loop).run(wait())


tries = []


@settings(deadline=None, database=None)
@given(strategies.integers(0, 1000))
def test_an_example(number):
    tries.append(number)
    assert len(tries) == 1
    is_up()


@pytest.fixture
def own():
    return []


@pytest.fixture
async def slow():
    yield
    await hang()


def test_a_fixture_that_does_not_end(own, slow):
    own.append("left")


def test_the_next(own):
    assert own == []
    # It comes more than once.
    assert signal.getitimer(signal.ITIMER_REAL)[1] == 120.0
"""


def test_a_test_that_hangs_fails_and_the_next_begins_with_fixtures_of_its_own(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "support"), prepend=":")
    pytester.makepyfile(HANGING)
    found = pytester.runpytest_subprocess(
        *("-p", "time_limit", "-p", "no:tidegate", "-p", "no:cacheprovider", "--timeout=120"),
        *("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"),
    )
    # The test of the fixture has passed.
    found.assert_outcomes(passed=2, failed=5, errors=1)
    said = [line for line in found.outlines if line.startswith("E ") and " Failed: " in line]
    assert len(said) == 6
    assert all(line.endswith("the test takes longer than 120 s") for line in said)
