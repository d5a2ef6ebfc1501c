"""Clients in a child process, so that they share no event loop with the measured server."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

import msgspec
import uvloop

from tidegate.lab.bench.child import Child, answer
from tidegate.lab.tapas.clients import Crowd, Visit, visit

# Additional seconds to wait for the clients, because the machine may be busy.
_GRACE_S = 120.0


class Visitors:
    """A running group of clients in a child process."""

    def __init__(self, child: Child, crowd: Crowd, began_at: float) -> None:
        self._child = child
        self._crowd = crowd
        # The first request comes a moment later.
        self.began_at = began_at

    def until(self, seconds: float) -> None:
        """Wait until `seconds` have passed since the start, or all clients have finished."""
        left_s = self.began_at + seconds - time.monotonic()
        if left_s > 0.0:
            self._child.has_answered(left_s)

    @property
    def have_gone(self) -> bool:
        return self._child.has_answered(0.0)

    def seen(self, timeout_s: float | None = None) -> Visit:
        """Wait for the last client and return the record of all requests."""
        crowd = self._crowd
        most_s = (crowd.seconds or 600.0) + crowd.clients * crowd.ramp_s + crowd.timeout_s
        return self._child.hear(Visit, timeout_s or most_s + _GRACE_S)


@contextlib.contextmanager
def visitors(crowd: Crowd) -> Iterator[Visitors]:
    """Start a group of clients in a child process."""
    arguments = [msgspec.json.encode(crowd).decode()]
    with Child("tidegate.lab.tapas.clients_process", arguments) as child:
        child.hear(bool, _GRACE_S)
        child.say(True)
        yield Visitors(child, crowd, time.monotonic())


def visited(crowd: Crowd) -> Visit:
    """Run a group of clients in a child process and return its record."""
    with visitors(crowd) as crowd_on_its_way:
        return crowd_on_its_way.seen()


if __name__ == "__main__":
    order = msgspec.json.decode(sys.argv[1], type=Crowd)
    answer(True)
    if not sys.stdin.readline():
        raise SystemExit("the visit was called off")
    answer(uvloop.run(visit(order)))
