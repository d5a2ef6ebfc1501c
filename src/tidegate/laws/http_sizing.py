"""How many instances an HTTP service needs, by what it has in hand: before a percentile tells.

    response   = N / X                                     Little: in hand, answered a second
    needed     = max(ceil(N / (X1 · target_s)),            what is in hand is answered in time
                     ceil(N' / (X1 · limit_s)),            and what will be, too
                     ceil(X / (utilisation · X1)))         and what comes is kept up with
    N, N'      requests in hand, and where they will be when an instance that is ordered now serves
    X1         what one instance answers at most           laws.instance_capacity
    target_s   the mean at which the promised percentile warns: warning point / tail
    limit_s    the mean at which it nearly breaches; between the two there is time to reconfigure
    tail       the promised percentile over the mean

A percentile is made of requests that are over. What is in hand are those that will be late: with N
of them, and n instances that answer X1 a second each, the last one waits N / (n · X1).

The second term is for requests that come whatever becomes of those before them. Clients who wait
for an answer before they ask again keep any number of instances busy: there X is what the instances
can do, and would call for another one forever. How N moves tells the two apart (laws.load_trend).

Scale-in: one fewer must hold with room, at every moment of the cool-down.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace

UTILISATION = 0.85
# Of a target, when an instance is to go: what holds just so would call it back at once.
ROOM = 0.85
# Clients who wait for their answers are as many as they are: they come in no bursts.
ROOM_CLOSED = 0.95
# What is a whole number but for rounding.
_ROUNDING = 1e-9
# More than anybody can have.
INSTANCES_MAX = 10_000
IN_HAND_MAX = 1_000_000_000

TAIL = 1.25
TAIL_MIN, TAIL_MAX = 1.0, 3.0
_TAIL_GAIN_MIN = 0.1


@dataclass(frozen=True)
class Load:
    """What a service has to do."""

    in_hand: float
    answered_per_s: float
    # Where it will be when what is ordered now helps.
    in_hand_ahead: float = 0.0
    # Whether requests come whatever becomes of those before them; None: nobody knows.
    is_open: bool | None = False


@dataclass(frozen=True)
class Points:
    """Mean responses that count: where the promise warns, and where it nearly breaches."""

    target_s: float
    limit_s: float


# Of a service that promises nothing about responses.
NO_POINTS = Points(math.inf, math.inf)


def needed(
    load: Load, capacity_per_s: float, points: Points, utilisation: float = UTILISATION
) -> int:
    """Instances so that responses stay before the points; at least 0."""
    if not (capacity_per_s > 0.0 and points.target_s > 0.0 and points.limit_s > 0.0):
        raise ValueError("capacity and points must be above 0: without them nothing can be said")
    in_time = load.in_hand / (capacity_per_s * points.target_s)
    ahead = load.in_hand_ahead / (capacity_per_s * points.limit_s)
    kept_up = load.answered_per_s / (utilisation * capacity_per_s) if load.is_open else 0.0
    # More instances than requests have nothing to do.
    kept_up = min(kept_up, math.ceil(load.in_hand))
    return math.ceil(min(max(in_time, ahead, kept_up), INSTANCES_MAX) - _ROUNDING)


def needed_with_room(load: Load, capacity_per_s: float, points: Points) -> int:
    """Instances that hold although a little more comes: what scale-in goes by."""
    # Where nobody can tell, what comes may come by itself.
    is_open = load.is_open is not False
    room = ROOM if is_open else ROOM_CLOSED
    return needed(
        replace(load, is_open=is_open),
        capacity_per_s,
        Points(points.target_s * room, points.limit_s * room),
        UTILISATION * room,
    )


def in_hand_max(capacity_per_s: float, breach_s: float, tail: float = 1.0) -> int:
    """As many requests as so much capacity answers before the breaching point; at least one."""
    return max(int(min(capacity_per_s * breach_s / tail, IN_HAND_MAX) + _ROUNDING), 1)


class ScaleIn:
    """Whether one may go: what was needed with room, over the whole cool-down."""

    def __init__(self, cooldown_s: float) -> None:
        self.cooldown_s = cooldown_s
        self._needed: deque[tuple[float, int]] = deque()
        self._since: float | None = None

    def see(self, at: float, needed_with_room: int) -> None:
        """What would be needed now."""
        if self._since is None:
            self._since = at
        # Only what is larger than all that came after it can be the largest.
        while self._needed and self._needed[-1][1] <= needed_with_room:
            self._needed.pop()
        self._needed.append((at, needed_with_room))
        while self._needed[0][0] < at - self.cooldown_s:
            self._needed.popleft()

    def again(self, at: float) -> None:
        """Something has changed: the cool-down begins anew."""
        self._since = at
        self._needed.clear()

    def most_needed(self) -> int | None:
        """The largest in the cool-down; None: nothing was seen."""
        return self._needed[0][1] if self._needed else None

    def left_s(self, at: float) -> float:
        """How long the cool-down lasts still."""
        return self.cooldown_s if self._since is None else self._since + self.cooldown_s - at

    def may_go(self, at: float, count: int) -> bool:
        """Whether one of so many may go."""
        most = self.most_needed()
        return most is not None and self.left_s(at) <= 0.0 and most <= count - 1


class Tail:
    """How far the promised percentile lies above the mean, while requests wait."""

    def __init__(self) -> None:
        self.value = TAIL
        self._seen = 0

    def see(self, percentile_s: float, mean_s: float) -> None:
        """Both of the same requests."""
        if not (0.0 < mean_s <= percentile_s and math.isfinite(percentile_s)):
            return
        ratio = min(max(percentile_s / mean_s, TAIL_MIN), TAIL_MAX)
        self._seen += 1
        # The mean of the first few, and then one that forgets.
        self.value += max(1.0 / self._seen, _TAIL_GAIN_MIN) * (ratio - self.value)
