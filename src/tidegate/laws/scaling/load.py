"""The policy "load" of the papers: the number of replicas from the waiting messages.

    avg_load = waiting messages / replicas
    avg_load > max_load and not inhibited          add one replica
    predicted avg_load > max_load                  the same, if looks_ahead is set
    avg_load < min_load and no plan                plan: drain the last added replica step by step
    avg_load > min_load while a plan runs          cancel the plan, restore the replica's share
    max_load = tolerated waiting time · consumption rate of a replica, when an agreement says so

The paper leaves one case open: on a constant load its rule plans and cancels for ever, or removes
and adds for ever. The law therefore remembers the arrival rate at which a number of replicas was
too few: when a plan is cancelled and when a replica is added. It does not go back to that number
until the arrival rate has fallen by a tenth. After an hour it tries again; each time the number
proves too few again, it waits twice as long. If arrivals are lower than consumption, the load is an
old backlog that is being worked off, and the law remembers nothing.

The paper reacts only after the load has passed max_load, which is late on a ramp. This law
extrapolates the load to the time when a replica with a free slot would serve and the loop polls
again:

    growth   the slope of what waits over the last six samples, if it is above four times its own
             standard error and the last sample grew; else 0
    soon     (waiting + growth · (start_s + period)) / replicas > max_load      one replica more

A load that varies without growing has no significant slope. Workers that take many messages at once
make the load a sawtooth, so the extrapolation at most doubles the load: below half of max_load it
adds nothing. The law does not look ahead over a boot, because that needs arrival rates (policy
"feed-forward"). With `looks_ahead=False` it is the paper's own rule.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, linear_regression
from typing import NamedTuple

from tidegate.laws.scaling import Proposal, QueueSituation

REMEMBERED_S = 3600.0
# Samples from which growth is estimated, and the multiple of its standard error that it must
# exceed.
GROWTH_SAMPLES = 6
SIGNIFICANT = 4.0
# A gap longer than this multiple of the previous gap clears the samples for growth.
_GAP_MAX = 10.0


@dataclass(frozen=True)
class LoadLawSettings:
    """The settings of the policy "load"."""

    # Fraction by which the arrival rate must fall before a cancelled plan is tried again.
    fall: float = 0.1
    remembered_s: float = REMEMBERED_S
    # Replicas that one decision may add.
    step_max: int = 1
    # Whether a replica is added before the load exceeds max_load. False is the paper's rule.
    looks_ahead: bool = True


DEFAULT_LOAD_LAW_SETTINGS = LoadLawSettings()


class UndersizedRate(NamedTuple):
    """The arrival rate at which a number of replicas was too few, and until when that counts."""

    arrived_per_s: float
    until: float
    times: int


class LoadLaw:
    """A `LoadLaw` keeps the average load between min_load and max_load."""

    def __init__(self, elasticity: LoadLawSettings = DEFAULT_LOAD_LAW_SETTINGS) -> None:
        self._set = elasticity
        # Keyed by number of replicas.
        self._too_few: dict[int, UndersizedRate] = {}
        self._waited: deque[tuple[float, int]] = deque(maxlen=GROWTH_SAMPLES)

    def step(self, now: QueueSituation) -> Proposal:
        """Return the number of replicas for the next period."""
        count = now.replicas
        load = now.average_load
        soon = self._soon(now)
        if load > now.max_load:
            seen = f"The average load is {load:.0f} messages, above max_load {now.max_load:g}"
            return self._above(now, count, "avg_load > max_load", seen)
        if now.draining and load > now.min_load:
            self._note(now, count)
            return Proposal(
                count + now.draining,
                "avg_load > min_load: plan cancelled",
                f"The average load rose to {load:.0f} messages, above min_load {now.min_load:g}, "
                f"while a replica's share went down: {count} replicas are too few for "
                f"{now.arrived_per_s:.0f} msg/s, so it stays.",
                f"At or below {now.min_load:g} messages the removal would have gone on.",
            )
        if soon > now.max_load and not now.draining:
            seen = (
                f"The average load is {load:.0f} messages and grows: before a replica that is "
                f"added now serves it may be {soon:.0f}, above max_load {now.max_load:g}"
            )
            return self._above(now, count, "avg_load > max_load soon", seen)
        if load < now.min_load:
            return self._below(now, count, load)
        return Proposal(
            count,
            "min_load ≤ avg_load ≤ max_load",
            f"The average load of {load:.0f} messages lies between min_load {now.min_load:g} and "
            f"max_load {now.max_load:g}.",
            f"Above {now.max_load:g}, now or soon, a replica would have been added, below "
            f"{now.min_load:g} one would have begun to go.",
        )

    def _soon(self, now: QueueSituation) -> float:
        """Return the average load at the time when a replica added now would serve."""
        last = self._waited
        if last and not self._follows_last(now.at):
            last.clear()
        last.append((now.at, now.waiting))
        if not self._set.looks_ahead or len(last) < GROWTH_SAMPLES:
            return now.average_load
        grown = growth_per_s(last) * (now.start_s + last[-1][0] - last[-2][0])
        return now._replace(waiting=now.waiting + round(min(grown, now.waiting))).average_load

    def _follows_last(self, at: float) -> bool:
        """Return whether a sample follows the previous ones without a clock step or a long gap."""
        last = self._waited
        gap_s = at - last[-1][0]
        return gap_s > 0.0 and (len(last) < 2 or gap_s <= _GAP_MAX * (last[-1][0] - last[-2][0]))

    def _above(self, now: QueueSituation, count: int, rule: str, seen: str) -> Proposal:
        if now.draining:
            self._note(now, count)
            return Proposal(
                count + now.draining,
                f"{rule}: plan cancelled",
                f"{seen}, while a replica is going: it stays.",
                f"At or below min_load {now.min_load:g} the removal would have gone on.",
            )
        if now.inhibited:
            return Proposal(
                count,
                "held: inhibited",
                f"{seen}, but the last scale-up is still to show what it does.",
                "If that is still so when it serves and the inhibition is over, another comes.",
            )
        self._note(now, count)
        more = math.ceil(now.waiting / now.max_load) - count if now.max_load > 0.0 else 1
        more = min(max(more, 1), self._set.step_max)
        return Proposal(
            count + more,
            rule,
            f"{seen}, and nothing is on its way.",
            f"At or below {now.max_load:g} messages, now and soon, nothing would have been added.",
        )

    def _below(self, now: QueueSituation, count: int, load: float) -> Proposal:
        seen = f"The average load is {load:.0f} messages, below min_load {now.min_load:g}"
        if now.draining:
            return Proposal(
                count,
                "avg_load < min_load: plan goes on",
                f"{seen}, and a replica is already going.",
                f"Above {now.min_load:g} messages it would stay.",
            )
        if not count:
            return Proposal(
                0,
                "avg_load < min_load",
                f"{seen}, and there is no replica that could go.",
                "Messages that wait would bring a replica.",
            )
        known = self._too_few.get(count - 1)
        bar = self._bar(known) if known else math.inf
        if known is not None and now.at < known.until and now.arrived_per_s >= bar:
            return Proposal(
                count,
                "held: backed off",
                f"{seen}, but {count - 1} replicas were too few at {known.arrived_per_s:.0f} msg/s "
                f"and {now.arrived_per_s:.0f} msg/s arrive now.",
                f"Below {bar:.0f} msg/s, or in {known.until - now.at:.0f} s, it is tried again.",
            )
        return Proposal(
            count - 1,
            "avg_load < min_load",
            f"{seen}: the last added replica is to go, a step of its share each period.",
            f"At or above {now.min_load:g} messages all would stay.",
        )

    def _note(self, now: QueueSituation, count: int) -> None:
        """Remember that `count` replicas were too few at this arrival rate.

        Does nothing while an old backlog is worked off, when arrivals are below consumption.
        """
        if now.arrived_per_s < now.consumed_per_s * 0.95 and not now.draining:
            return
        if not now.arrived_per_s > 0.0:
            # The arrival rate can never fall below 0, so an entry for it could never be retried
            # early.
            return
        known = self._too_few.get(count)
        # An entry that still held and was not tried again has not been confirmed once more.
        times = known.times if known else 0
        if known is None or now.at >= known.until or now.arrived_per_s < self._bar(known):
            times += 1
        lasts_s = self._set.remembered_s * 2.0 ** min(times - 1, 10)
        self._too_few[count] = UndersizedRate(now.arrived_per_s, now.at + lasts_s, times)

    def _bar(self, known: UndersizedRate) -> float:
        """Return the arrival rate below which the number of replicas is tried again."""
        return known.arrived_per_s * (1.0 - self._set.fall)


def growth_per_s(looks: Sequence[tuple[float, int]]) -> float:
    """Return the slope of the waiting messages by least squares, in messages per second.

    Returns 0 if noise may explain the slope, or if the last sample did not grow.
    """
    if looks[-1][1] <= looks[-2][1]:
        return 0.0
    times = [at - looks[0][0] for at, _ in looks]
    slope, begin = linear_regression(times, [waiting for _, waiting in looks])
    left_over = sum(
        (waiting - begin - slope * at) ** 2 for at, (_, waiting) in zip(times, looks, strict=True)
    )
    middle = fmean(times)
    error = math.sqrt(left_over / (len(looks) - 2) / sum((at - middle) ** 2 for at in times))
    return slope if slope > SIGNIFICANT * error else 0.0


# -- length_target --
# The policy "length": the number of replicas that KEDA and the Kubernetes HPA would choose.
#
#     desired = ceil(messages / queue_length)
#
# The law follows KEDA and the Kubernetes autoscaler (HPA):
# - Messages are the ready and the unacknowledged ones, as KEDA's scaler for RabbitMQ counts by
#   default.
# - The queue is polled once per polling interval (KEDA: 30 s); the proposal is unchanged in
# between.
# - A ratio messages / (replicas · queue_length) within 10 % of 1 changes nothing (HPA's tolerance).
# - A scale-up is immediate, to at most twice the replicas or four more (HPA's default policies).
# - A scale-in goes to the largest number desired within the last 300 s (HPA's stabilisation window,
#   here `cooldown_period`).
# - On the first poll the current number of replicas counts as desired until then.
# - Only the step from one replica to none is KEDA's own: after `cooldown_period` without a message.
#
# The weakness of the policy: an empty queue may be empty because just enough replicas keep it so.
# The law removes them, the queue fills, and the replicas come back.


POLLING_S = 30.0
STABILISATION_S = 300.0
TOLERANCE = 0.1
# HPA's default scale-up policies; the larger result of the two counts.
UP_FACTOR = 2
UP_MORE = 4


class LengthLaw:
    """A `LengthLaw` divides the number of messages by a target, once per polling interval."""

    def __init__(
        self,
        queue_length: float,
        *,
        polling_s: float = POLLING_S,
        stabilisation_s: float = STABILISATION_S,
    ) -> None:
        if not queue_length > 0.0:
            raise ValueError(f"queue_length is above 0 messages per replica, not {queue_length}")
        self._queue_length = queue_length
        self._polling_s = polling_s
        self._stabilisation_s = stabilisation_s
        self._polled_at = -math.inf
        self._active_at = -math.inf
        self._wish: Proposal | None = None
        # Desired numbers within the window as (time, number): the largest first, later smaller ones
        # behind it.
        self._desired: deque[tuple[float, int]] = deque()

    def step(self, now: QueueSituation) -> Proposal:
        """Return the proposal of the last poll, and poll again if the interval has passed."""
        if self._wish is None or now.at - self._polled_at >= self._polling_s * (1.0 - 1e-9):
            self._polled_at = now.at
            self._wish = self._poll(now)
        return self._wish

    def _poll(self, now: QueueSituation) -> Proposal:
        messages = now.waiting + now.unacknowledged
        count = now.replicas
        window = self._desired
        if not window:
            # On the first poll, as HPA does, the current replicas count as desired, because the
            # time since which the queue has been idle is unknown.
            window.append((now.at, count))
            self._active_at = now.at if count else -math.inf
        if messages:
            self._active_at = now.at
        desired = math.ceil(messages / self._queue_length)
        if desired == 0 and now.at - self._active_at < self._stabilisation_s:
            desired = 1
        if count and abs(messages / (count * self._queue_length) - 1.0) <= TOLERANCE:
            desired = count
        desired = min(desired, max(count * UP_FACTOR, count + UP_MORE))
        while window and window[-1][1] <= desired:
            window.pop()
        window.append((now.at, desired))
        while window[0][0] < now.at - self._stabilisation_s:
            window.popleft()
        seen = f"{messages} messages for a target of {self._queue_length:g} per replica"
        if desired >= count:
            return Proposal(
                desired,
                "messages / queue_length",
                f"{seen} ask for {desired} replicas, and there are {count}.",
                f"At {count * self._queue_length:g} messages nothing would change.",
            )
        stable = min(window[0][1], count)
        return Proposal(
            stable,
            "messages / queue_length" if stable < count else "held: stabilisation window",
            f"{seen} ask for {desired} replicas; the most that was asked for in the last "
            f"{self._stabilisation_s:g} s was {window[0][1]}.",
            f"A scale-in goes no lower than what was asked for within {self._stabilisation_s:g} s.",
        )
