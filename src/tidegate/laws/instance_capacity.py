"""The capacity of one instance, learned while it works.

    X1 = the largest mean of a few rates that were measured while requests waited for the instance
    a smaller mean, waiting too:  X1 ← X1 − 0.02 · (X1 − mean)       slow forgetting
    far smaller ones, eight in a row:  X1 ← mean                     the instance has changed
    a larger mean, waiting or not:     X1 ← mean                     the instance has proven it

Requests wait in two cases. First, the instance has all the requests that it may have, at the
beginning and at the end of a sample. A few may be missing if requests wait in the door. Second, it
takes half as long again as at its best, even though it may have more requests.

An instance without waiting requests shows the demand and not its capacity. But the rate it reached
is proven, which is enough to show that fewer instances suffice. A sample without any answer shows
no capacity: the instance is stuck, and a limit derived from it would never let it recover.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

# Number of rates in the mean that counts; a single burst of answers is no capacity.
MEAN_OF = 4
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
        self._recent: deque[float] = deque(maxlen=MEAN_OF)
        # The largest mean rate, waiting or not. `None` means that too few samples were seen.
        self.proven_per_s: float | None = None
        self._any: deque[float] = deque(maxlen=MEAN_OF)
        self._far = 0

    def see(self, rate: InstanceRate) -> None:
        """Add a sample."""
        if not math.isfinite(rate.per_s):
            return
        self._see_response(rate)
        self._any.append(rate.per_s)
        if len(self._any) == MEAN_OF:
            mean = math.fsum(self._any) / MEAN_OF
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


def typical(capacities_per_s: Iterable[float | None]) -> float | None:
    """Return the median capacity, or `None` if none is known.

    With the median, one slow instance does not count.
    """
    known = [one for one in capacities_per_s if one is not None and one > 0.0]
    return median(known) if known else None
