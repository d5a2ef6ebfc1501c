"""The probe: sends a request to a door every second, as a client would, on its own connection.

Its samples are independent of what doors report; control/monitoring.py compares both. A response
with status 500 and above is a failure, and so is a missing response. Several doors are probed in
turn. The request runs in a task, so a door that hangs delays nothing. Doors recognize the probe by
its header and do not count it.
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
    """The result of one probe request."""

    # Seconds since 1970.
    at: float
    address: str
    duration_s: float
    # None if there was no response.
    status: int | None
    # Why the probe failed; empty if it did not.
    failure: str = ""
    # Whether the computer answered, and refused the connection because nothing listens on the port.
    nobody_listens: bool = False


# Sends a request to an address for a path, with a mark.
Ask = Callable[[str, str, str], Awaitable[ProbeSample]]


async def ask(
    address: str, path: str, mark: str = "", timeout_s: float = HEALTH_ANSWER_S
) -> ProbeSample:
    """Send one request to a door; a failure is part of the sample and not raised."""
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
    """Probes the doors of one service in turn."""

    def __init__(self, ask: Ask = ask, clock: Clock | None = None) -> None:
        self._ask = ask
        self._clock = clock or Clock()
        self.addresses: Sequence[str] = ()
        self.path = "/"
        # The mark by which doors recognize the probe (core.probe_mark).
        self.mark = ""
        self.samples: deque[ProbeSample] = deque(maxlen=_KEPT)
        self._turn = 0
        self._asking: asyncio.Task[ProbeSample] | None = None
        self._asked_at = float("-inf")

    def tick(self, now: float) -> list[ProbeSample]:
        """Start a request if one is due, and return the results since the last call; never wait."""
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
        """Cancel the running request and start no more."""
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None
