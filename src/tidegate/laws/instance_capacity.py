"""What one instance answers at most, learned while it works.

    X1 = the largest mean of a few rates that were seen while something waited for the instance
    a smaller mean, waiting too:  X1 ← X1 − 0.02 · (X1 − mean)       it forgets slowly
    far smaller ones, eight in a row:  X1 ← mean                     but it is another now
    a larger mean, waiting or not:     X1 ← mean                     what it does, it can do

Something waits when the instance has all the requests that it may have, at the beginning and at the
end of a sample (one less, if requests wait in the door); or when it takes half as long again as it
did at its best, though it may have more.
An instance that nothing waits for shows how much is asked of it, and not what it can do. But that
much it can do: it is proven, and enough to tell that fewer would do. One that answers nothing at
all stands still, which is no capacity: whoever let in no more than that would never see it go on.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

# As many rates have the mean that counts; a burst of answers is no capacity.
MEAN_OF = 4
SAMPLES_MIN = 2
FORGET = 0.02
# Means below this part of X1, so many in a row, are no accident.
FAR_SMALLER = 0.8
IN_A_ROW = 8
# Of the best mean response: what takes so long has waited inside.
INFLATED = 1.5
# The best is forgotten so fast, a sample: what was quick with an empty table is not so for ever.
_BEST_FORGOTTEN = 0.002
_ANSWERS_MIN = 3


@dataclass(frozen=True)
class InstanceRate:
    """One instance over one interval."""

    interval_s: float
    answered: float
    # At the beginning and at the end.
    outstanding_before: int
    outstanding: int
    # It may have so many at a time.
    concurrency: int
    # From being sent to the end of the answer; None: nothing was answered.
    mean_response_s: float | None = None
    # Whether requests waited in the door, at the beginning and at the end.
    door_waited: bool = False

    @property
    def per_s(self) -> float:
        return self.answered / self.interval_s if self.interval_s > 0.0 else math.nan


class InstanceCapacity:
    """What is known of one instance."""

    def __init__(self) -> None:
        # None: nothing has waited for it yet.
        self.per_s: float | None = None
        # The shortest mean response: what it takes when nothing waits; None: not known.
        self.best_response_s: float | None = None
        self._recent: deque[float] = deque(maxlen=MEAN_OF)
        # What it has answered, waiting or not: the largest mean of a few; None: too few were seen.
        self.proven_per_s: float | None = None
        self._any: deque[float] = deque(maxlen=MEAN_OF)
        self._far = 0

    def see(self, rate: InstanceRate) -> None:
        """One more sample."""
        if not math.isfinite(rate.per_s):
            return
        self._see_response(rate)
        self._any.append(rate.per_s)
        if len(self._any) == MEAN_OF:
            mean = math.fsum(self._any) / MEAN_OF
            self.proven_per_s = max(mean, self.proven_per_s or 0.0)
            # Where few are let in nothing ever waits: what was slow once must not stay so for that.
            if self.per_s is not None:
                self.per_s = max(mean, self.per_s)
        if not self.had_waiting(rate):
            return
        self._recent.append(rate.per_s)
        if not any(self._recent):
            # It stands still: what it can do is seen when it goes on, and from there.
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
            # What the one before has proven says nothing of this one.
            self.per_s = self.proven_per_s = mean
            self._far = 0
            self._any.clear()
        else:
            self.per_s -= FORGET * (self.per_s - mean)

    def had_waiting(self, rate: InstanceRate) -> bool:
        """Whether something waited for it all the time."""
        least = min(rate.outstanding_before, rate.outstanding)
        # Between two requests one may be missing for a moment, though others wait.
        moment = max(rate.concurrency // 10, 1) if rate.door_waited else 0
        if least >= max(rate.concurrency - moment, 1):
            return True
        return least >= 2 and self.inflation(rate) >= INFLATED

    def inflation(self, rate: InstanceRate) -> float:
        """How many times longer it takes than at its best; 1 when nobody knows."""
        if rate.mean_response_s is None or not self.best_response_s:
            return 1.0
        return rate.mean_response_s / self.best_response_s

    @property
    def knee(self) -> int | None:
        """Requests at a time that keep it busy; more only wait inside it. None: not known."""
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
    """Of one as they usually are: a slow one says nothing about the next. None: not known."""
    known = [one for one in capacities_per_s if one is not None and one > 0.0]
    return median(known) if known else None
