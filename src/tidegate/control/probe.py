"""A probe: asks a door from outside each second, as a client would, on a connection of its own.

What it sees is a series of its own, beside what doors report (control/monitoring.py compares them).
An answer of 500 and above is a failure, and so is none in time. Of several doors each is asked in
turn. It runs beside the loop: a door that hangs holds nobody up. Doors know it by its mark, and
count it nowhere.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from tidegate.control.http_call import call
from tidegate.core.errors import TidegateError
from tidegate.core.health import HEALTH_ANSWER_S
from tidegate.core.ports import Clock
from tidegate.core.probe_mark import FIELD

PERIOD_S = 1.0
_KEPT = 60


@dataclass(frozen=True)
class ProbeSample:
    """What one question has brought."""

    # Seconds since 1970.
    at: float
    address: str
    duration_s: float
    # None: there was no answer.
    status: int | None
    # Why it is not content; "": it is.
    failure: str = ""
    # Whether its failure is that the computer is there, and nobody on it is at that port.
    nobody_listens: bool = False


# Asks an address for a path, with a mark.
Ask = Callable[[str, str, str], Awaitable[ProbeSample]]


async def ask(
    address: str, path: str, mark: str = "", timeout_s: float = HEALTH_ANSWER_S
) -> ProbeSample:
    """One question to a door."""
    url = f"{address.rstrip('/')}{path}" if "://" in address else f"http://{address}{path}"
    at, began = time.time(), time.monotonic()
    status, failure, nobody_listens = None, "", False
    try:
        fields = {FIELD: mark} if mark else {}
        status = await call("GET", url, timeout_s=timeout_s, fields=fields)
    except TidegateError as error:
        failure = str(error)
        nobody_listens = isinstance(error.__cause__, ConnectionRefusedError)
    if status is not None and status >= 500:
        failure = f"it answered {status}"
    took_s = time.monotonic() - began
    return ProbeSample(at, address, took_s, status, failure, nobody_listens)


class Probe:
    """Asks the doors of one service as long as it runs."""

    def __init__(self, ask: Ask = ask, clock: Clock | None = None) -> None:
        self._ask = ask
        self._clock = clock or Clock()
        self.addresses: Sequence[str] = ()
        self.path = "/"
        # By which doors know it (core.probe_mark).
        self.mark = ""
        self.samples: deque[ProbeSample] = deque(maxlen=_KEPT)
        self._turn = 0
        self._asking: asyncio.Task[ProbeSample] | None = None
        self._asked_at = float("-inf")

    def tick(self, now: float) -> list[ProbeSample]:
        """Ask if it is time, and tell what has come since; never waits."""
        came: list[ProbeSample] = []
        if self._asking is not None and self._asking.done():
            task, self._asking = self._asking, None
            if not task.cancelled() and task.exception() is None:
                came.append(task.result())
                self.samples.append(task.result())
        if self._asking is None and self.addresses and now - self._asked_at >= PERIOD_S:
            self._asked_at = now
            self._turn += 1
            address = self.addresses[self._turn % len(self.addresses)]
            self._asking = asyncio.ensure_future(self._ask(address, self.path, self.mark))
        return came

    def stop(self) -> None:
        """No more questions."""
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None
