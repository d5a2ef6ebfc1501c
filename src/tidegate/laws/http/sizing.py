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
import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from tidegate.core.text import Term

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
class ServiceLoad:
    """The load of a service."""

    # Requests in the service, and answers per second.
    in_hand: float
    answered_per_s: float
    # Requests in hand when an instance ordered now will serve.
    in_hand_ahead: float = 0.0
    # Whether requests arrive independently of earlier answers. `None` means not known.
    is_open: bool | None = False


@dataclass(frozen=True)
class ResponseTargets:
    """Mean response times at which the promise warns, and at which it nearly breaches."""

    target_s: float
    limit_s: float


# For a service whose agreement promises nothing about response times.
NO_TARGETS = ResponseTargets(math.inf, math.inf)


def needed_instances(
    load: ServiceLoad,
    capacity_per_s: float,
    points: ResponseTargets,
    utilisation: float = UTILISATION,
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


def needed_instances_with_reserve(
    load: ServiceLoad, capacity_per_s: float, points: ResponseTargets
) -> int:
    """Return the number of instances that suffices with reserve, for scale-in."""
    # If the kind of load is not known, assume an open load, which needs more reserve.
    is_open = load.is_open is not False
    room = ROOM if is_open else ROOM_CLOSED
    return needed_instances(
        replace(load, is_open=is_open),
        capacity_per_s,
        ResponseTargets(points.target_s * room, points.limit_s * room),
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

    def observe(self, at: float, needed_with_room: int) -> None:
        """Record the number of instances needed now, with reserve."""
        if self._since is None:
            self._since = at
        # A value that a later one exceeds can no longer be the maximum.
        while self._needed and self._needed[-1][1] <= needed_with_room:
            self._needed.pop()
        self._needed.append((at, needed_with_room))
        while self._needed[0][0] < at - self.cooldown_s:
            self._needed.popleft()

    def restart(self, at: float) -> None:
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


class TailRatio:
    """The ratio of the promised percentile to the mean response time while requests wait."""

    def __init__(self) -> None:
        self.value = TAIL
        self._seen = 0

    def observe(self, percentile_s: float, mean_s: float) -> None:
        """Add a sample; both values must come from the same requests."""
        if not (0.0 < mean_s <= percentile_s and math.isfinite(percentile_s)):
            return
        ratio = min(max(percentile_s / mean_s, TAIL_MIN), TAIL_MAX)
        self._seen += 1
        # The plain mean of the first samples, then an exponential average.
        self.value += max(1.0 / self._seen, _TAIL_GAIN_MIN) * (ratio - self.value)


# -- load_trend --
# The trend of the requests in hand, and whether they arrive independently of earlier answers.
#
#     growth   the mean of the last five steps but the largest, if four went up; else 0
#     spread   1.05 · median |step − median step|         the deviation of N, with any trend
#     open     spread² ≥ 0.25 · N
#
# A single step up is no growth: its requests have arrived already and are counted in N.
#
# Requests that arrive independently (an open load) make N vary by about √N, so that spread² is
# about N. With clients that wait for their answers (a closed load), the number of clients is fixed
# and N hardly varies.


TREND_MEAN_OF = 3
STEPS = 5
STEPS_UP = 4
SPREAD_SAMPLES = 16
SPREAD_SAMPLES_MIN = 8
# The median of |a − b| of two draws of a normal distribution is 0.954 deviations.
_DEVIATIONS = 1.05
OPEN_DISPERSION = 0.25
# Below this mean the variation shows nothing.
IN_HAND_MIN = 2.0


class LoadTrend:
    """A `LoadTrend` keeps the last samples of the requests in hand."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=SPREAD_SAMPLES)

    def observe(self, at: float, in_hand: float) -> None:
        """Add a sample. Ignores samples that are not newer than the last one."""
        if not self._samples or at > self._samples[-1][0]:
            self._samples.append((at, in_hand))

    @property
    def in_hand(self) -> float:
        """The current requests in hand.

        For an open load the mean of the last few, as each varies by chance.
        """
        if not self._samples:
            return 0.0
        last = [in_hand for _, in_hand in self._samples][-TREND_MEAN_OF if self.is_open else -1 :]
        return sum(last) / len(last)

    @property
    def growth_per_s(self) -> float:
        """The growth per second, or 0 if it may be chance or a single step."""
        last = list(self._samples)[-STEPS - 1 :]
        steps = [later - earlier for (_, earlier), (_, later) in pairwise(last)]
        if len(steps) < STEPS or sum(step > 0.0 for step in steps) < STEPS_UP:
            return 0.0
        # A single burst among the steps is already counted and does not recur, so the largest step
        # is left out.
        usual = sum(sorted(steps)[:-1]) / (STEPS - 1)
        return max(usual * STEPS / (last[-1][0] - last[0][0]), 0.0)

    @property
    def is_open(self) -> bool | None:
        """Whether requests arrive independently of earlier answers. `None` means not known yet."""
        if len(self._samples) < SPREAD_SAMPLES_MIN:
            return None
        mean = sum(in_hand for _, in_hand in self._samples) / len(self._samples)
        if mean < IN_HAND_MIN:
            return None
        steps = [later - earlier for (_, earlier), (_, later) in pairwise(self._samples)]
        usual = median(steps)
        spread = _DEVIATIONS * median(abs(step - usual) for step in steps)
        return spread * spread >= OPEN_DISPERSION * mean

    def ahead(self, lead_s: float) -> float:
        """Return the requests in hand after `lead_s` seconds; at most twice the current ones."""
        now = self.in_hand
        return now + min(self.growth_per_s * lead_s, now)


# -- instance_capacity --
# The capacity of one instance, learned while it works.
#
#     X1 = the largest mean of a few rates that were measured while requests waited for the instance
#     a smaller mean, waiting too:  X1 ← X1 − 0.02 · (X1 − mean)       slow forgetting
#     far smaller ones, eight in a row:  X1 ← mean                     the instance has changed
#     a larger mean, waiting or not:     X1 ← mean                     the instance has proven it
#
# Requests wait in two cases. First, the instance has all the requests that it may have, at the
# beginning and at the end of a sample. A few may be missing if requests wait in the door. Second,
# it takes half as long again as at its best, even though it may have more requests.
#
# An instance without waiting requests shows the demand and not its capacity. But the rate it
# reached is proven, which is enough to show that fewer instances suffice. A sample without any
# answer shows no capacity: the instance is stuck, and a limit derived from it would never let it
# recover.


# Number of rates in the mean that counts; a single burst of answers is no capacity.
CAPACITY_MEAN_OF = 4
SAMPLES_MIN = 2
FORGET = 0.02
# Means below this fraction of X1, this many in a row, are no accident.
FAR_SMALLER = 0.8
IN_A_ROW = 8
# Multiple of the best mean response; a longer response means that requests wait inside the
# instance.
INFLATED = 1.5
# Rate per sample at which the best response is forgotten: an instance that was fast with little
# data may become slower.
_BEST_FORGOTTEN = 0.002
_ANSWERS_MIN = 3


@dataclass(frozen=True)
class InstanceRate:
    """The work of one instance over one interval."""

    interval_s: float
    answered: float
    # Requests in the instance, at the beginning and at the end.
    outstanding_before: int
    outstanding: int
    # Largest number of concurrent requests that the instance may have.
    concurrency: int
    # From sending the request to the end of the answer. `None` means that nothing was answered.
    mean_response_s: float | None = None
    # Whether requests waited in the door, at the beginning and at the end.
    door_waited: bool = False

    @property
    def per_s(self) -> float:
        return self.answered / self.interval_s if self.interval_s > 0.0 else math.nan


class InstanceCapacity:
    """What has been learned about one instance."""

    def __init__(self) -> None:
        # X1 in requests per second. `None` means that nothing has waited for the instance yet.
        self.per_s: float | None = None
        # The shortest mean response, when nothing waits. `None` means not known.
        self.best_response_s: float | None = None
        self._recent: deque[float] = deque(maxlen=CAPACITY_MEAN_OF)
        # The largest mean rate, waiting or not. `None` means that too few samples were seen.
        self.proven_per_s: float | None = None
        self._any: deque[float] = deque(maxlen=CAPACITY_MEAN_OF)
        self._far = 0

    def observe(self, rate: InstanceRate) -> None:
        """Add a sample."""
        if not math.isfinite(rate.per_s):
            return
        self._see_response(rate)
        self._any.append(rate.per_s)
        if len(self._any) == CAPACITY_MEAN_OF:
            mean = math.fsum(self._any) / CAPACITY_MEAN_OF
            self.proven_per_s = max(mean, self.proven_per_s or 0.0)
            # With a low limit nothing ever waits, and X1 would stay low after a slow phase.
            if self.per_s is not None:
                self.per_s = max(mean, self.per_s)
        if not self.had_waiting(rate):
            return
        self._recent.append(rate.per_s)
        if not any(self._recent):
            # The instance is stuck. Its capacity is measured from when it answers again.
            self._recent.clear()
            return
        if len(self._recent) < SAMPLES_MIN:
            return
        mean = math.fsum(self._recent) / len(self._recent)
        if self.per_s is None or mean > self.per_s:
            self.per_s = mean
        is_far = mean < FAR_SMALLER * self.per_s
        self._far = self._far + 1 if is_far else 0
        if self._far >= IN_A_ROW:
            # The rates that the previous instance has proven do not apply to this one.
            self.per_s = self.proven_per_s = mean
            self._far = 0
            self._any.clear()
        else:
            self.per_s -= FORGET * (self.per_s - mean)

    def had_waiting(self, rate: InstanceRate) -> bool:
        """Return whether requests waited for the instance during the whole sample."""
        least = min(rate.outstanding_before, rate.outstanding)
        # Between two requests a slot may be empty for a moment although requests wait in the door.
        moment = max(rate.concurrency // 10, 1) if rate.door_waited else 0
        if least >= max(rate.concurrency - moment, 1):
            return True
        return least >= 2 and self.inflation(rate) >= INFLATED

    def inflation(self, rate: InstanceRate) -> float:
        """Return the response time relative to the best one, or 1 if it is not known."""
        if rate.mean_response_s is None or not self.best_response_s:
            return 1.0
        return rate.mean_response_s / self.best_response_s

    @property
    def knee(self) -> int | None:
        """Concurrent requests that keep the instance busy; more only wait in it.

        `None` means not known.
        """
        if self.per_s is None or not self.best_response_s:
            return None
        return max(math.ceil(self.per_s * self.best_response_s), 1)

    def _see_response(self, rate: InstanceRate) -> None:
        mean_s = rate.mean_response_s
        if mean_s is None or not mean_s > 0.0 or rate.answered < _ANSWERS_MIN:
            return
        best = self.best_response_s
        self.best_response_s = (
            mean_s if best is None else min(mean_s, best * (1.0 + _BEST_FORGOTTEN))
        )


def typical_capacity(capacities_per_s: Iterable[float | None]) -> float | None:
    """Return the median capacity, or `None` if none is known.

    With the median, one slow instance does not count.
    """
    known = [one for one in capacities_per_s if one is not None and one > 0.0]
    return median(known) if known else None


# -- saturated_capacity --
# The capacity of one HTTP instance, learned offline from windows in which it was saturated.
#
#     saturated    outstanding ≥ 0.9 · concurrency                        for a whole window
#     capacity     of an instance the 90th percentile of such windows; of several the median
#
# An instance with fewer requests than it may have shows the demand and not its capacity, so its
# rate is only a lower bound. The capacity holds for the concurrency at which it was measured. With
# another concurrency the instance may do more, and would take longer for each request.


NEARLY_ALL = 0.9
BUSIEST = 0.9
# Half a minute of windows of five seconds; fewer are not trusted.
WINDOWS_MIN = 6


def is_saturated(outstanding: Term, concurrency: Term) -> Term:
    """Return whether an instance had nearly all the requests that it may have."""
    return outstanding >= concurrency * NEARLY_ALL


@dataclass(frozen=True)
class InstanceWork:
    """The measured work of one instance."""

    # Number of windows that were saturated throughout, and the 90th percentile of the rate in them.
    saturated_windows: int
    saturated_per_s: float
    # The largest rate in any window.
    most_per_s: float


@dataclass(frozen=True)
class SaturatedCapacity:
    """The learned capacity of an instance of a service, or the reason why it is not known."""

    accepted: bool
    reason: str
    # NaN means not known.
    per_s: float
    # The largest rate of any instance; a lower bound of the capacity.
    at_least_per_s: float
    instances: int


def saturated_capacity(service: str, work: Sequence[InstanceWork]) -> SaturatedCapacity:
    """Return the capacity of one instance of `service`, from the work of its instances."""
    at_least = max((one.most_per_s for one in work), default=0.0)
    known = [one.saturated_per_s for one in work if one.saturated_windows >= WINDOWS_MIN]
    if not known:
        return SaturatedCapacity(
            accepted=False,
            reason=f"no instance of {service} was seen with all the requests it may have for half "
            f"a minute: one can do at least {at_least:.4g}/s, and what more is not known",
            per_s=math.nan,
            at_least_per_s=at_least,
            instances=0,
        )
    found = statistics.median(known)
    seen = "one instance" if len(known) == 1 else f"the median of {len(known)} instances"
    return SaturatedCapacity(
        accepted=True,
        reason=f"{found:.4g} requests/s by {seen} with all the requests that it may have",
        per_s=found,
        at_least_per_s=at_least,
        instances=len(known),
    )
