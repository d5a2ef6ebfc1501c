"""Sizing of an HTTP service: the number of instances, from the requests in hand.

    response   = N / X                                     Little: in hand, answered per second
    needed     = max(ceil(N / (X1 · target_s)),            answers the requests in hand in time
                     ceil(N' / (X1 · limit_s)),            and those expected to be in hand
                     ceil(X / (utilisation · X1)))         and keeps up with the arrivals
    N, N'      requests in hand, and where they will be when an instance that is ordered now serves
    X1         the most that one instance answers         (`InstanceCapacity`)
    target_s   the mean at which the promised percentile warns: warning point / tail
    limit_s    the mean at which it nearly breaches; between the two there is time to reconfigure
    tail       the promised percentile over the mean

Requests in hand are received and not yet answered. A percentile describes finished requests, so it
reacts too late. The requests in hand are the ones that will be late: with N of them and n instances
that each answer X1 per second, the last one waits N / (n · X1).

The third term applies only to requests that arrive independently of earlier answers (an open load).
Clients that wait for an answer before they send again keep any number of instances busy. There X is
what the instances can do, and the term would order further instances for ever. The variation of N
tells the two kinds of load apart (`LoadTrend`).

Scale-in requires that one instance fewer suffices with reserve at every moment of the cool-down.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace

# Fraction of an instance's capacity that open load may use.
UTILISATION = 0.85
# Fraction of a target that counts for scale-in. Without this reserve an instance that just suffices
# would be added again at once.
ROOM = 0.85
# The same for clients that wait for their answers. Their number is fixed, so they send no bursts.
ROOM_CLOSED = 0.95
# A value this close to a whole number counts as whole.
_ROUNDING = 1e-9
# An upper bound far beyond any real service.
INSTANCES_MAX = 10_000
IN_HAND_MAX = 1_000_000_000

# The ratio of percentile and mean before it is measured, and its limits.
TAIL = 1.25
TAIL_MIN, TAIL_MAX = 1.0, 3.0
_TAIL_GAIN_MIN = 0.1


@dataclass(frozen=True)
class Load:
    """The load of a service."""

    # Requests in the service, and answers per second.
    in_hand: float
    answered_per_s: float
    # Requests in hand when an instance ordered now will serve.
    in_hand_ahead: float = 0.0
    # Whether requests arrive independently of earlier answers. `None` means not known.
    is_open: bool | None = False


@dataclass(frozen=True)
class Points:
    """Mean response times at which the promise warns, and at which it nearly breaches."""

    target_s: float
    limit_s: float


# For a service whose agreement promises nothing about response times.
NO_POINTS = Points(math.inf, math.inf)


def needed(
    load: Load, capacity_per_s: float, points: Points, utilisation: float = UTILISATION
) -> int:
    """Return the number of instances that keeps response times below the targets; at least 0."""
    if not (capacity_per_s > 0.0 and points.target_s > 0.0 and points.limit_s > 0.0):
        raise ValueError("capacity and points must be above 0: without them nothing can be said")
    in_time = load.in_hand / (capacity_per_s * points.target_s)
    ahead = load.in_hand_ahead / (capacity_per_s * points.limit_s)
    kept_up = load.answered_per_s / (utilisation * capacity_per_s) if load.is_open else 0.0
    # More instances than requests in hand would be idle.
    kept_up = min(kept_up, math.ceil(load.in_hand))
    return math.ceil(min(max(in_time, ahead, kept_up), INSTANCES_MAX) - _ROUNDING)


def needed_with_room(load: Load, capacity_per_s: float, points: Points) -> int:
    """Return the number of instances that suffices with reserve, for scale-in."""
    # If the kind of load is not known, assume an open load, which needs more reserve.
    is_open = load.is_open is not False
    room = ROOM if is_open else ROOM_CLOSED
    return needed(
        replace(load, is_open=is_open),
        capacity_per_s,
        Points(points.target_s * room, points.limit_s * room),
        UTILISATION * room,
    )


def in_hand_max(capacity_per_s: float, breach_s: float, tail: float = 1.0) -> int:
    """Return how many requests this capacity answers before the breaching point; at least 1."""
    return max(int(min(capacity_per_s * breach_s / tail, IN_HAND_MAX) + _ROUNDING), 1)


class ScaleIn:
    """Decides whether an instance may be removed, from what was needed during the cool-down."""

    def __init__(self, cooldown_s: float) -> None:
        self.cooldown_s = cooldown_s
        self._needed: deque[tuple[float, int]] = deque()
        self._since: float | None = None

    def see(self, at: float, needed_with_room: int) -> None:
        """Record the number of instances needed now, with reserve."""
        if self._since is None:
            self._since = at
        # A value that a later one exceeds can no longer be the maximum.
        while self._needed and self._needed[-1][1] <= needed_with_room:
            self._needed.pop()
        self._needed.append((at, needed_with_room))
        while self._needed[0][0] < at - self.cooldown_s:
            self._needed.popleft()

    def again(self, at: float) -> None:
        """Restart the cool-down after a change."""
        self._since = at
        self._needed.clear()

    def most_needed(self) -> int | None:
        """Return the largest number needed within the cool-down; `None` means no record."""
        return self._needed[0][1] if self._needed else None

    def left_s(self, at: float) -> float:
        """Return the remaining seconds of the cool-down; 0 or less means that it is over."""
        return self.cooldown_s if self._since is None else self._since + self.cooldown_s - at

    def may_go(self, at: float, count: int) -> bool:
        """Return whether one of `count` instances may be removed."""
        most = self.most_needed()
        return most is not None and self.left_s(at) <= 0.0 and most <= count - 1


class Tail:
    """The ratio of the promised percentile to the mean response time while requests wait."""

    def __init__(self) -> None:
        self.value = TAIL
        self._seen = 0

    def see(self, percentile_s: float, mean_s: float) -> None:
        """Add a sample; both values must come from the same requests."""
        if not (0.0 < mean_s <= percentile_s and math.isfinite(percentile_s)):
            return
        ratio = min(max(percentile_s / mean_s, TAIL_MIN), TAIL_MAX)
        self._seen += 1
        # The plain mean of the first samples, then an exponential average.
        self.value += max(1.0 / self._seen, _TAIL_GAIN_MIN) * (ratio - self.value)
