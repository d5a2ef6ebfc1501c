"""Clients in a process of their own, so that what is measured shares no event loop with them."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

import msgspec
import uvloop

from tidegate.lab.bench.child import Child, answer
from tidegate.lab.tapas.clients import Crowd, Visit, visit

# Beyond what they are to do: the machine may be busy.
_GRACE_S = 120.0


class Visitors:
    """A crowd that is on its way."""

    def __init__(self, child: Child, crowd: Crowd, began_at: float) -> None:
        self._child = child
        self._crowd = crowd
        # The first of them asks a moment later.
        self.began_at = began_at

    def until(self, seconds: float) -> None:
        """Wait until so much time has passed since they began, or they have gone."""
        left_s = self.began_at + seconds - time.monotonic()
        if left_s > 0.0:
            self._child.has_answered(left_s)

    @property
    def have_gone(self) -> bool:
        return self._child.has_answered(0.0)

    def seen(self, timeout_s: float | None = None) -> Visit:
        """What they saw, once the last one has gone."""
        crowd = self._crowd
        most_s = (crowd.seconds or 600.0) + crowd.clients * crowd.ramp_s + crowd.timeout_s
        return self._child.hear(Visit, timeout_s or most_s + _GRACE_S)


@contextlib.contextmanager
def visitors(crowd: Crowd) -> Iterator[Visitors]:
    """They come at once."""
    arguments = [msgspec.json.encode(crowd).decode()]
    with Child("tidegate.lab.tapas.clients_process", arguments) as child:
        child.hear(bool, _GRACE_S)
        child.say(True)
        yield Visitors(child, crowd, time.monotonic())


def visited(crowd: Crowd) -> Visit:
    """All of it."""
    with visitors(crowd) as crowd_on_its_way:
        return crowd_on_its_way.seen()


if __name__ == "__main__":
    order = msgspec.json.decode(sys.argv[1], type=Crowd)
    answer(True)
    if not sys.stdin.readline():
        raise SystemExit("the visit was called off")
    answer(uvloop.run(visit(order)))
