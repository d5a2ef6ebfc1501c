"""Flow control: the share of new messages that each replica gets.

    r_i(k+1) = max(c_i − g·(l_i − l_avg), 0) / Σ_j max(c_j − g·(l_j − l_avg), 0)

c_i is the number of messages that replica i consumes in a period. l_i is the number that wait in
it, and l_avg the mean of l_i. A replica that consumes more gets more. A replica with more waiting
messages than the mean gets less until lengths are even.

The paper leaves these points open; the law settles them as follows:
- The maximum clips, so the sum is taken after it. Shares therefore always add up to 1.
- g is 1 in the paper, which corrects a length in one period. Shares reach producers up to a period
  after lengths were read. With that delay g = 1 oscillates for ever and g = 1/2 settles.
- An idle replica consumes what it gets, which does not show its capacity. Its estimated capacity
  counts instead, or the mean of the other replicas while it is unknown.
- The share of a serving replica never falls to 0: a small floor keeps it measurable (probing).
- If all replicas are idle or clipped, shares are equal. A new replica starts at the average share.
- A replica without consumers has no share while other replicas have consumers: no flow out of it
  would ever show that it is stuck.
- A draining replica's share goes down by a step each period, regardless of the formula. When a
  sample is late it goes down by as many steps as periods have passed, since producers had all that
  time. Otherwise a replica would drain more slowly the busier the machine is. A starting or
  unreachable replica has no share. If no replica serves, draining replicas keep equal shares as
  long as any replica is to stay. Otherwise all shares are 0 and the alias keeps the messages.
- In a period in which waiting messages are transferred g is 0: shares follow rates alone, so that
  only the transfer corrects lengths.
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
    """The settings of flow control."""

    # g: the part of a length's distance from the mean that one period corrects.
    gain: float = 0.5
    # Fraction of an even share that a serving replica keeps, so that it stays measurable.
    probe: float = 0.05
    # Number of periods in which a draining replica's even share goes to 0.
    drain_periods: int = 5
    # Number of periods for which a replica counts as new.
    new_periods: float = 3.0
    # Fraction of an even share below which a change is not sent to the clients.
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
    """Return the shares of all replicas for the next period.

    No share is below 0, and they add up to 1 or are all 0. `capacity_per_s` has the estimated
    capacities by replica number. Set `correct_lengths=False` in a period with transfers. `periods`
    is the number of periods since the last decision about shares.
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
        # A draining replica keeps less each period. The serving replicas divide the rest by the
        # formula.
        step = periods / (len(open_) + len(going)) / flow.drain_periods
        for one in going:
            less = one.share - step
            shares[one.number] = less if less > step * 1e-6 else 0.0
        left = max(1.0 - sum(shares.values()), 0.0)
        for number, share in _with_floor(wanted, flow.probe / len(open_)).items():
            shares[number] = share * left
    elif going and any(one.state is not ReplicaState.DRAINING for one in replicas):
        # No replica that is to stay can take messages yet, so the draining ones keep taking them.
        for one in going:
            shares[one.number] = 1.0 / len(going)
    return shares


def differ(
    before: Mapping[int, float], after: Mapping[int, float], flow: Flow = DEFAULT_FLOW
) -> bool:
    """Return whether the new shares are worth sending to the clients.

    A change within the deadband is not; a share that starts from 0 or falls to 0 always is.
    """
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
    """Return the shares by the formula, with new replicas at the average; they add up to 1."""
    # A new replica has little history, and its measured rate would be too low.
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
    """Return the rate per second that the replica can consume, or `None` if not known."""
    if one.waiting > 0 and not one.waiting_consumers:
        return one.consumed_per_s
    capacity = known.get(one.number)
    if capacity is not None:
        return max(one.consumed_per_s, capacity)
    return None


def _with_floor(shares: dict[int, float], floor: float) -> dict[int, float]:
    """Raise each share to at least `floor`, at the expense of the larger shares in proportion."""
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
    """Return the shares that an override sets, limited to the replicas that can take messages.

    A replica that is not named, does not serve or is unreachable has share 0. Returns `None` if
    no replica with a share can take messages.
    """
    parts = {
        one.number: said.get(one.number, 0.0)
        if one.state is ReplicaState.SERVING and one.reachable
        else 0.0
        for one in replicas
    }
    total = sum(parts.values())
    return {number: part / total for number, part in parts.items()} if total > 0.0 else None
