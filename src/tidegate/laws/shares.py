"""What part of new messages each replica gets (flow control).

    r_i(k+1) = max(c_i − g·(l_i − l_avg), 0) / Σ_j max(c_j − g·(l_j − l_avg), 0)

c_i messages that replica i consumes in a period, l_i messages that wait in it, l_avg their mean:
who consumes more gets more, who is behind the others gets less until lengths are even.

Left open by the paper and settled here:
- The maximum clips, so the sum is taken after it and shares always add up to 1.
- g is 1 in the paper, which corrects a length in one period. Shares reach producers up to a period
  after lengths were read; with that delay g = 1 swings for ever and g = 1/2 settles.
- An idle replica consumes what it gets, which says nothing about what it could: its estimated
  capacity counts instead, or the mean of the others while it is unknown.
- Nobody's share falls to 0 while it serves: a small floor keeps it measurable (probing).
- Everybody idle, or everybody clipped: equal shares. A new replica starts at the average share.
- A replica that nobody consumes from has no share while others are attended: no flow out of it
  would ever tell.
- A draining replica's share goes down a step each period, whatever the formula says, and as many
  as have passed when a sample is late: producers had all that time, and who drains would stay the
  longer the busier the computer is. One that starts or cannot be reached has none. If nobody is
  left, or all are to go, all are 0 and the alias keeps messages.
- In a period in which waiting messages are exchanged g is 0: shares follow rates alone, and lengths
  are corrected by one hand only (laws/exchange.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidegate.core.replication import ReplicaState
from tidegate.core.steering import ReplicaSample
from tidegate.laws.splitter import Splitter

__all__ = ["DEFAULT_FLOW", "Flow", "Splitter", "differ", "flow_shares", "shares_by_hand"]


@dataclass(frozen=True)
class Flow:
    """How flow control is set."""

    # g: which part of a length's distance from the mean one period corrects.
    gain: float = 0.5
    # Of an even share: what a serving replica keeps to be measured by.
    probe: float = 0.05
    # In how many periods a draining replica's even share goes to 0.
    drain_periods: int = 5
    # For so many periods a replica is new.
    new_periods: float = 3.0
    # Of an even share: changes that are not worth telling every client.
    deadband: float = 0.1


DEFAULT_FLOW = Flow()


def flow_shares(
    replicas: Sequence[ReplicaSample],
    period_s: float,
    capacity_per_s: Mapping[int, float] | None = None,
    *,
    correct_lengths: bool = True,
    flow: Flow = DEFAULT_FLOW,
    periods: int = 1,
) -> dict[int, float]:
    """Shares of all replicas for the next period: none below 0, adding up to 1 or all 0.

    `periods`: how many have passed since shares were decided last.
    """
    known = capacity_per_s or {}
    shares = {one.number: 0.0 for one in replicas}
    open_ = [one for one in replicas if one.reachable and one.state is ReplicaState.SERVING]
    open_ = [one for one in open_ if one.is_attended] or open_
    going = [
        one
        for one in replicas
        if one.reachable and one.state is ReplicaState.DRAINING and one.share > 0.0
    ]
    if open_:
        wanted = _wanted(open_, period_s, known, flow.gain if correct_lengths else 0.0, flow)
        # A draining replica keeps less each period; the others share what is left by the formula.
        step = periods / (len(open_) + len(going)) / flow.drain_periods
        for one in going:
            less = one.share - step
            shares[one.number] = less if less > step * 1e-6 else 0.0
        left = max(1.0 - sum(shares.values()), 0.0)
        for number, share in _with_floor(wanted, flow.probe / len(open_)).items():
            shares[number] = share * left
    elif going and any(one.state is not ReplicaState.DRAINING for one in replicas):
        # Those that are to stay cannot take it yet: who is to go holds the fort.
        for one in going:
            shares[one.number] = 1.0 / len(going)
    return shares


def differ(
    before: Mapping[int, float], after: Mapping[int, float], flow: Flow = DEFAULT_FLOW
) -> bool:
    """Whether the difference is worth telling: noise is not, the first and the last share is."""
    if before.keys() != after.keys():
        return True
    serving = sum(1 for share in after.values() if share > 0.0)
    least = flow.deadband / serving if serving else 0.0
    return any(
        (share > 0.0) != (before[number] > 0.0) or abs(share - before[number]) > least
        for number, share in after.items()
    )


def _wanted(
    replicas: Sequence[ReplicaSample],
    period_s: float,
    known: Mapping[int, float],
    gain: float,
    flow: Flow,
) -> dict[int, float]:
    """The formula, with a new replica at the average; adding up to 1."""
    # Until a replica has a history it gets the average, whatever little it has shown.
    new_s = flow.new_periods * period_s
    rates = {
        one.number: None if one.age_s < new_s and one.number not in known else _rate(one, known)
        for one in replicas
    }
    measured = [rate for rate in rates.values() if rate is not None]
    usual = sum(measured) / len(measured) if measured else 0.0
    length = sum(one.waiting for one in replicas) / len(replicas)
    pull = {}
    for one in replicas:
        rate = rates[one.number]
        due = (usual if rate is None else rate) * period_s
        pull[one.number] = max(due - gain * (one.waiting - length), 0.0)
    total = sum(pull.values())
    if not total > 0.0 or not usual > 0.0:
        return dict.fromkeys(pull, 1.0 / len(pull))
    return {number: part / total for number, part in pull.items()}


def _rate(one: ReplicaSample, known: Mapping[int, float]) -> float | None:
    """What it can consume, messages a second; None: it was idle, and nobody knows."""
    if one.waiting > 0 and not one.waiting_consumers:
        return one.consumed_per_s
    capacity = known.get(one.number)
    if capacity is not None:
        return max(one.consumed_per_s, capacity)
    return None


def _with_floor(shares: dict[int, float], floor: float) -> dict[int, float]:
    """Each at least the floor; those above it give what is missing, in proportion."""
    missing = sum(floor - share for share in shares.values() if share < floor)
    if missing <= 0.0:
        return shares
    spare = sum(share - floor for share in shares.values() if share > floor)
    return {
        number: floor if share <= floor else floor + (share - floor) * (1.0 - missing / spare)
        for number, share in shares.items()
    }


def shares_by_hand(
    replicas: Sequence[ReplicaSample], said: Mapping[int, float]
) -> dict[int, float] | None:
    """What a person has said, among those that can take it; None: none of them can.

    Whoever was not named, is to go or cannot be reached has none.
    """
    parts = {
        one.number: said.get(one.number, 0.0)
        if one.state is ReplicaState.SERVING and one.reachable
        else 0.0
        for one in replicas
    }
    total = sum(parts.values())
    return {number: part / total for number, part in parts.items()} if total > 0.0 else None
