"""A queue whose messages are a fluid: what the autoscaler orders happens, in virtual time.

Small on purpose: the laws' tests need a plant that answers, not the simulation's realism.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from tidegate.control.queues.autoscaler import Autoscaler
from tidegate.core.decisions import (
    AddReplica,
    CancelDrain,
    CancelPending,
    Decision,
    Drain,
    Exchange,
    QueueSample,
    ReplicaSample,
    Retire,
    SetShares,
)
from tidegate.core.topology import ReplicaState
from tidegate.laws.scaling.wait import WaitTarget


@dataclass
class Replica:
    number: int
    state: ReplicaState
    waiting: float = 0.0
    share: float = 0.0
    serves_at: float = 0.0
    consumed_per_s: float = 0.0
    produced_per_s: float = 0.0


@dataclass
class Plant:
    """Replicas of a stated speed; a new one serves `start_s` after it was ordered."""

    autoscaler: Autoscaler
    rate: Callable[[float], float]
    capacity_per_s: Callable[[int], float] = lambda replicas: 100.0
    start_s: float = 5.0
    replicas: list[Replica] = field(default_factory=list)
    pending: list[float] = field(default_factory=list)
    alias: float = 0.0
    at: float = 0.0
    decisions: list[Decision] = field(default_factory=list)
    # (when, replicas that are to stay, average load)
    history: list[tuple[float, int, float]] = field(default_factory=list)
    noise: random.Random | None = None
    # Of its speed, what a replica does, by its number: all of it if nobody says.
    part: dict[int, float] = field(default_factory=dict)
    pledge: WaitTarget | None = None

    @classmethod
    def serving(
        cls, count: int, autoscaler: Autoscaler, rate: Callable[[float], float], **rest: object
    ) -> Plant:
        plant = cls(autoscaler, rate, **rest)  # type: ignore[arg-type]
        plant.replicas = [
            Replica(number, ReplicaState.SERVING, share=1.0 / count, serves_at=-1000.0)
            for number in range(1, count + 1)
        ]
        return plant

    def run(self, seconds: float) -> Plant:
        for _ in range(round(seconds)):
            self._second()
            decision = self.autoscaler.decide(self._sample(), self.pledge)
            self.decisions.append(decision)
            self._act(decision)
            staying = sum(one.state is not ReplicaState.DRAINING for one in self.replicas)
            working = sum(one.state is not ReplicaState.STARTING for one in self.replicas)
            waiting = self.alias + sum(one.waiting for one in self.replicas)
            self.history.append((self.at, staying + len(self.pending), waiting / max(working, 1)))
        return self

    def actions(self, kind: type) -> list[object]:
        return [action for one in self.decisions for action in one.actions if type(action) is kind]

    @property
    def counts(self) -> list[int]:
        """How many were to stay, each number as long as it held once."""
        counts = [count for _, count, _ in self.history]
        return counts[:1] + [after for before, after in pairwise(counts) if after != before]

    @property
    def reversals(self) -> int:
        """Turns from growing to shrinking and back."""
        steps = [b - a for a, b in pairwise(self.counts)]
        return sum((a > 0) != (b > 0) for a, b in pairwise(steps))

    def _second(self) -> None:
        self.at += 1.0
        for due in [one for one in self.pending if one <= self.at]:
            self.pending.remove(due)
            number = max((one.number for one in self.replicas), default=0) + 1
            self.replicas.append(Replica(number, ReplicaState.SERVING, serves_at=self.at))
        rate = self._rate()
        serving = [one for one in self.replicas if one.state is not ReplicaState.STARTING]
        speed = self.capacity_per_s(len(serving))
        shared = sum(one.share for one in self.replicas)
        if shared == 0.0:
            self.alias += rate
        for one in self.replicas:
            one.produced_per_s = rate * one.share / shared if shared else 0.0
            there = one.waiting + one.produced_per_s
            most = speed * self.part.get(one.number, 1.0)
            one.consumed_per_s = min(most, there) if one in serving else 0.0
            one.waiting = there - one.consumed_per_s

    def _rate(self) -> float:
        rate = self.rate(self.at)
        if self.noise is not None:
            rate = max(self.noise.gauss(rate, rate**0.5), 0.0)
        self._arrived = rate
        return rate

    def _sample(self) -> QueueSample:
        return QueueSample(
            queue="orders",
            at=self.at,
            arrived_per_s=self._arrived,
            alias_waiting=round(self.alias),
            pending=len(self.pending),
            replicas=[
                ReplicaSample(
                    number=one.number,
                    state=one.state,
                    produced_per_s=one.produced_per_s,
                    consumed_per_s=one.consumed_per_s,
                    waiting=round(one.waiting),
                    oldest_age_s=one.waiting / max(one.consumed_per_s, 1.0),
                    share=one.share,
                    age_s=self.at - one.serves_at,
                    waiting_consumers=int(one.waiting < 0.5),
                )
                for one in self.replicas
            ],
        )

    def _act(self, decision: Decision) -> None:
        by_number = {one.number: one for one in self.replicas}
        for action in decision.actions:
            match action:
                case AddReplica(count=count):
                    self.pending += [self.at + self.start_s] * count
                case CancelPending(count=count):
                    del self.pending[-count:]
                case Drain(number=number):
                    by_number[number].state = ReplicaState.DRAINING
                case CancelDrain(number=number):
                    by_number[number].state = ReplicaState.SERVING
                case Retire(number=number):
                    self.replicas.remove(by_number[number])
                case SetShares(shares=shares):
                    for number, share in shares.items():
                        by_number[number].share = share
                case Exchange(source=source, target=target, count=count):
                    if source == 0:
                        count = min(count, self.alias)
                        self.alias -= count
                    else:
                        count = min(count, by_number[source].waiting)
                        by_number[source].waiting -= count
                    by_number[target].waiting += count
