"""The input and the output of a scaling law: a `QueueSituation` and a `Proposal`.

A scaling law maps the situation of one logical queue to a proposed number of replicas. It does
not act. The autoscaler applies the guards that hold for every law: the bounds of the settings,
steps, the cool-down and a human's override.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from tidegate.core.reasons import Explanation
from tidegate.core.text import Term


class QueueSituation(NamedTuple):
    """One sample of a logical queue, as every scaling law reads it.

    Rates are messages per second.
    """

    # Time in seconds on the control loop's clock.
    at: float
    # k: replicas that serve and are not being removed.
    serving: int
    # Ordered replicas that do not serve yet, because they start or wait for a slot.
    coming: int = 0
    draining: int = 0
    # Unreachable replicas among the serving and draining ones. `waiting` excludes their messages.
    away: int = 0
    # Waiting messages, including those in the alias.
    waiting: int = 0
    unacknowledged: int = 0
    arrived_per_s: float = 0.0
    consumed_per_s: float = 0.0
    oldest_age_s: float = 0.0
    # What one replica can consume: the mean of the serving replicas. `None` means not known yet.
    capacity_per_s: float | None = None
    # `capacity_per_s` if only 1, 2, … of the serving replicas remained. Empty means that all
    # replicas are alike.
    capacity_of_fewer_per_s: tuple[float, ...] = ()
    # Waiting messages per replica.
    min_load: float = 50.0
    max_load: float = 200.0
    # Whether `min_load` and `max_load` are computed from a tolerated wait and the capacity.
    loads_follow_capacity: bool = False
    # The last scale-up has not shown its effect yet.
    inhibited: bool = False
    # Seconds until a new replica serves: with a free slot, and when a machine must boot first.
    start_s: float = 5.0
    boot_s: float = 5.0
    # Free slots on running machines. `None` means not known.
    slots_free: int | None = None
    slots_per_machine: int = 1
    # Whether a warm machine is kept for growth that no forecast predicts.
    keeps_warm: bool = False

    @property
    def replicas(self) -> int:
        """Replicas that will serve once all ordered ones have started."""
        return self.serving + self.coming

    def with_fewer(self, count: int) -> QueueSituation:
        """Return the situation right after all but `count` replicas have begun to drain.

        Laws use it to check a removal: `capacity_per_s` becomes the mean of the remaining
        replicas, and loads that follow the capacity change with it.
        """
        serving = min(count, self.serving)
        before = self.capacity_per_s
        capacity, part = before, 1.0
        if before and 0 < serving <= len(self.capacity_of_fewer_per_s):
            capacity = self.capacity_of_fewer_per_s[serving - 1]
            part = capacity / before if self.loads_follow_capacity else 1.0
        return self._replace(
            serving=serving,
            coming=count - serving,
            draining=self.draining + self.serving - serving,
            capacity_per_s=capacity,
            min_load=part * self.min_load,
            max_load=part * self.max_load,
        )

    @property
    def average_load(self) -> float:
        """Waiting messages per reachable replica that consumes them; draining replicas count."""
        return self.waiting / max(self.serving + self.draining - self.away, 1)


class Proposal(NamedTuple):
    """The number of replicas that a law proposes, and why."""

    replicas: int
    # The rule in a few words, such as "avg_load > max_load".
    rule: str
    reasons: tuple[Explanation, ...] = ()


# -- load --
# The load of a queue: its clients relative to the number of clients that it can serve.
#
#     L_i = (N_i + M_i) / C_i                 one replica: N producers, M consumers, capacity C
#     L_c = (N + M) / ΣC = Σ(L_i·C_i) / ΣC    the replicated queue
#
# Below 1 the queue is underloaded, above 1 it is overloaded. The paper complements the client load
# with measured resource use; `overall_load` takes the largest of them.


def client_load(producers: Term, consumers: Term, capacity_clients: Term) -> Term:
    """Return L_i of one replica, or L_c when given the sums over all replicas."""
    return (producers + consumers) / capacity_clients


def cluster_load(replicas: Iterable[tuple[float, float, float]]) -> float:
    """Return L_c of replicas, each given as (producers, consumers, capacity in clients).

    Raises `ValueError` if the capacities sum to 0 or less.
    """
    clients = capacity = 0.0
    for producers, consumers, capacity_clients in replicas:
        clients += producers + consumers
        capacity += capacity_clients
    if capacity <= 0.0:
        raise ValueError("replicas without capacity have no load: give each a capacity above 0")
    return clients / capacity


def overall_load(client: float, *resources: float) -> float:
    """Return the largest of the client load and the loads of CPU, memory and store."""
    return max(client, *resources) if resources else client


# -- stability --
# The stability of a queue: whether it fills, empties, or neither.
#
#     Δl = p − c          p production rate, c consumption rate (messages per second)
#     flooded    Δl >  relative · max(p, c) + absolute
#     draining  −Δl >  relative · max(p, c) + absolute
#     stable     otherwise
#
# If p > c, the larger of the two is p, so the code needs no `max`: a queue is flooded if `p − c >
# relative·p + absolute` and draining if `c − p > relative·c + absolute`. A Spark Column can
# evaluate these conditions too. The band is needed because two noisy rates are never equal.
#
# For several replicas ΔL = Σp − Σc. If every replica is stable, the sum is stable. The reverse does
# not hold: one replica may flood as fast as another one drains.


class Stability(StrEnum):
    """The direction in which a queue's length changes."""

    STABLE = "stable"
    FLOODED = "flooded"
    DRAINING = "draining"


@dataclass(frozen=True)
class StabilityBand:
    """The tolerance within which production and consumption rates count as equal."""

    relative: float = 0.05
    # For queues with almost no traffic, where one message is a large fraction of the rate.
    absolute_per_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.relative < 1.0 or not self.absolute_per_s >= 0.0:
            raise ValueError(
                "a tolerance band has a relative part from 0 up to 1 and an absolute part from 0 "
                f"on, not {self.relative} and {self.absolute_per_s}"
            )


DEFAULT_BAND = StabilityBand()


def growth_per_s(produced_per_s: Term, consumed_per_s: Term) -> Term:
    """Return Δl, the number of messages by which the queue grows per second."""
    return produced_per_s - consumed_per_s


def is_flooded(
    produced_per_s: Term, consumed_per_s: Term, band: StabilityBand = DEFAULT_BAND
) -> Term:
    """Return whether the queue grows by more than the band allows."""
    allowed = produced_per_s * band.relative + band.absolute_per_s
    return growth_per_s(produced_per_s, consumed_per_s) > allowed


def is_draining(
    produced_per_s: Term, consumed_per_s: Term, band: StabilityBand = DEFAULT_BAND
) -> Term:
    """Return whether the queue shrinks by more than the band allows."""
    return is_flooded(consumed_per_s, produced_per_s, band)


def stability(
    produced_per_s: float, consumed_per_s: float, band: StabilityBand = DEFAULT_BAND
) -> Stability:
    """Return whether one queue is flooded, draining or stable."""
    if is_flooded(produced_per_s, consumed_per_s, band):
        return Stability.FLOODED
    if is_draining(produced_per_s, consumed_per_s, band):
        return Stability.DRAINING
    return Stability.STABLE


@dataclass(frozen=True)
class QueueTotals:
    """The rates and the stability of a replicated queue as a whole."""

    produced_per_s: float
    consumed_per_s: float
    growth_per_s: float
    overall: Stability
    every_replica_stable: bool


def queue_totals(
    rates: Iterable[tuple[float, float]], band: StabilityBand = DEFAULT_BAND
) -> QueueTotals:
    """Return the totals of replicas, each given as (production rate, consumption rate)."""
    replicas = list(rates)
    produced = sum(p for p, _ in replicas)
    consumed = sum(c for _, c in replicas)
    return QueueTotals(
        produced_per_s=produced,
        consumed_per_s=consumed,
        growth_per_s=growth_per_s(produced, consumed),
        overall=stability(produced, consumed, band),
        every_replica_stable=all(stability(p, c, band) is Stability.STABLE for p, c in replicas),
    )


# -- universal_scalability --
# Gunther's Universal Scalability Law: throughput against clients, on the standard library.
#
# X(n) = λ·n / (1 + σ·(n − 1) + κ·n·(n − 1))


def throughput_at(clients: Term, rate_per_s: Term, contention: Term, coherency: Term) -> Term:
    """Return X(n) for λ, σ and κ."""
    waiting = contention * (clients - 1.0) + coherency * clients * (clients - 1.0)
    return rate_per_s * clients / (1.0 + waiting)


# -- reversal --
# The reversal guard: detects a scale-up that lowered the throughput, so that it is undone.
#
#     lowered:  after < before · (1 − margin) − z · √(s_before²/n + s_after²/n)
#
# A further replica can reduce throughput if a shared resource, such as the store, a lock or a disk,
# is the bottleneck. The guard compares the throughput just before the scale-up with the throughput
# after the new replica has settled. The two are comparable only if as much arrives as before and
# messages still wait: throughput that fell because there is less to do is no harm. While a harmful
# scale-up is remembered, the autoscaler does not try it again.


@dataclass(frozen=True)
class ReversalSettings:
    """The settings of the reversal guard."""

    # Fraction of the throughput before; a smaller loss is not worth undoing.
    margin: float = 0.05
    # Standard errors of the difference that the loss must exceed in addition.
    z: float = 3.0
    # Samples compared before and after the scale-up.
    samples: int = 5
    # Arrivals after the scale-up must be at least this fraction of those before it.
    comparable: float = 0.95
    # Seconds after a change before samples count, and how long a harmful scale-up is remembered.
    settle_s: float = 4.0
    remembered_s: float = 600.0


class HarmfulScaleUp(NamedTuple):
    """A scale-up from `fewer` to `more` replicas that lowered the throughput."""

    fewer: int
    more: int
    before_per_s: float
    after_per_s: float
    until: float


class _ThroughputSample(NamedTuple):
    consumed_per_s: float
    arrived_per_s: float
    waiting: float


class ReversalGuard:
    """A `ReversalGuard` compares throughput before and after each scale-up."""

    def __init__(self, caution: ReversalSettings) -> None:
        self._caution = caution
        self._serving = -1
        self._since = -math.inf
        self._seen: deque[_ThroughputSample] = deque(maxlen=caution.samples)
        # The number of replicas and the samples before the scale-up that is being judged.
        self._before: tuple[int, list[_ThroughputSample]] | None = None
        self._verdict: HarmfulScaleUp | None = None

    def observe(
        self, at: float, serving: int, consumed_per_s: float, arrived_per_s: float, waiting: float
    ) -> HarmfulScaleUp | None:
        """Add the samples of the next period.

        Returns the harmful scale-up in the period in which it is detected, else `None`.
        """
        if serving != self._serving:
            if serving < self._serving:
                self._before = None
            elif self._serving > 0 and len(self._seen) == self._caution.samples:
                self._before = (self._serving, list(self._seen))
            # Otherwise another replica came before the last one could be judged: both are judged
            # together.
            self._serving = serving
            self._since = at
            self._seen.clear()
            return None
        if at - self._since < self._caution.settle_s:
            return None
        self._seen.append(_ThroughputSample(consumed_per_s, arrived_per_s, waiting))
        if self._before is None or len(self._seen) < self._caution.samples:
            return None
        fewer, before = self._before
        self._before = None
        if not self._did_harm(before, list(self._seen)):
            return None
        self._verdict = HarmfulScaleUp(
            fewer,
            serving,
            _mean(before, 0),
            _mean(self._seen, 0),
            at + self._caution.remembered_s,
        )
        return self._verdict

    def ceiling(self, at: float) -> HarmfulScaleUp | None:
        """Return the remembered harmful scale-up, or `None`.

        While it is remembered, at most its `fewer` replicas should run.
        """
        if self._verdict is not None and at >= self._verdict.until:
            self._verdict = None
        return self._verdict

    def _did_harm(self, before: list[_ThroughputSample], after: list[_ThroughputSample]) -> bool:
        if _mean(after, 1) < self._caution.comparable * _mean(before, 1):
            return False
        # Fewer than half as many messages wait: the replica works, and there is less to do.
        if _mean(after, 2) < 0.5 * _mean(before, 2) or _mean(after, 2) < 1.0:
            return False
        error = math.sqrt(_variance(before) / len(before) + _variance(after) / len(after))
        bar = _mean(before, 0) * (1.0 - self._caution.margin) - self._caution.z * error
        return _mean(after, 0) < bar


def _mean(figures: list[_ThroughputSample] | deque[_ThroughputSample], which: int) -> float:
    return math.fsum(one[which] for one in figures) / len(figures)


def _variance(figures: list[_ThroughputSample]) -> float:
    mean = _mean(figures, 0)
    spread = math.fsum((one.consumed_per_s - mean) ** 2 for one in figures)
    return spread / max(len(figures) - 1, 1)
