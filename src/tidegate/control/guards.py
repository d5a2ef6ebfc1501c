"""What holds whatever a law wishes: bounds, harm that is remembered, cool-down, and people.

a person's number   wins, within the bounds
reversal guard      no more replicas than before the scale-up that lowered throughput
min, max            never below, never above
consumers           without a `worker`, no replica that nobody would come to consume from
nobody away         nothing is removed while a replica cannot be reached
the last one        goes when there was nothing at all to do for the time of the cool-down
cool-down           nothing is removed for a while after any change
"""

from __future__ import annotations

from tidegate.control.reading import Reading
from tidegate.core.scaling import Scaling, ScalingPolicy, Steering
from tidegate.laws.reversal import Verdict
from tidegate.laws.wish import Situation, Wish


def guarded(
    scaling: Scaling,
    now: Situation,
    reading: Reading,
    wish: Wish,
    harm: Verdict | None,
    changed_at: float,
    busy_at: float,
) -> Wish:
    """The number of replicas that may be had, with the rule and the sentences that say why.

    `harm` is what the reversal guard remembers, `changed_at` when replicas last came or went,
    `busy_at` when there was last anything to do.
    """
    count = now.replicas
    wanted, rule, reason, otherwise = wish
    manual = scaling.steering is Steering.MANUAL
    harm = None if manual else harm
    if not manual and wanted < 1 and (last := _last(scaling, now, reading, busy_at)) is not None:
        wanted, rule, reason, otherwise = last
    if harm is not None and wanted > harm.fewer:
        wanted = max(harm.fewer, scaling.replicas.min)
        rule = "reversal guard"
        done = "it is undone and not" if count > harm.fewer else "it is not"
        reason = (
            f"Going from {harm.fewer} to {harm.more} replicas lowered the throughput from "
            f"{harm.before_per_s:.0f} to {harm.after_per_s:.0f} msg/s at no less arrival: {done} "
            "tried again."
        )
        otherwise = f"In {harm.until - now.at:.0f} s it is forgotten and may be tried again."
    low, high = scaling.replicas.min, max(scaling.replicas.max, scaling.replicas.min)
    if wanted > high:
        wanted = high
        rule = f"{rule}, at max"
        reason += f" {high} is the most that there may be."
        otherwise = f"A larger `replicas.max` would allow more. {otherwise}"
    if count < low and wanted <= low:
        return Wish(
            low,
            "below min",
            f"There {_counted(count)}, and {low} is the least that there may be.",
            "A smaller `replicas.min` would allow fewer.",
        )
    if wanted < low:
        rule = f"{rule}, at min"
        wanted = low
        reason += f" {low} is the least that there may be."
        otherwise = f"A smaller `replicas.min` would allow fewer. {otherwise}"
    if wanted > count and not manual:
        attended = _attended(scaling, reading, count)
        if attended is not None and wanted > attended.replicas:
            return attended._replace(replicas=max(attended.replicas, count))
    if wanted < count:
        # A person's word, a bound and harm that is undone do not wait; HPA's window is the whole
        # of that policy's cool-down.
        waits = not (
            manual or count > high or harm is not None or scaling.policy is ScalingPolicy.LENGTH
        )
        held = _keeps(now, reading, changed_at + scaling.cooldown_period_s if waits else now.at)
        if held is not None:
            return held._replace(replicas=count, reason=f"{reason} {held.reason}")
    return Wish(wanted, rule, reason, otherwise)


def _last(scaling: Scaling, now: Situation, reading: Reading, busy_at: float) -> Wish | None:
    """Why there is to be a replica although a law wants none; None: none is right.

    A last replica is not a matter of load. Nor of what arrives on average, which remembers a
    message for minutes and would call back who has just gone.
    """
    if reading.is_busy:
        waiting, arrived = reading.waiting, reading.sample.arrived_per_s
        done = "one stays" if now.replicas else "one is to serve"
        return Wish(
            1,
            "something to do",
            f"{waiting} waiting messages, {reading.unacknowledged} unacknowledged and "
            f"{arrived:.3g} msg/s that arrive are little, but not nothing: {done}.",
            "With nothing to do for the time of the cool-down there would be none.",
        )
    left_s = busy_at + scaling.cooldown_period_s - now.at
    if now.replicas and left_s > 0.0:
        return Wish(
            1,
            "something to do a moment ago",
            "There is nothing to do, but there was a moment ago: the last replica stays.",
            f"If nothing comes for another {left_s:.0f} s it goes.",
        )
    return None


def _attended(scaling: Scaling, reading: Reading, count: int) -> Wish | None:
    """The most replicas that somebody would consume from; None: that is no matter."""
    if scaling.worker is not None or scaling.policy in (
        ScalingPolicy.CLIENTS,
        ScalingPolicy.FIXED,
    ):
        return None
    if reading.sample.consumers_roam:
        return None
    # With none at all they are not counted, or are still to come: replicas wait for them too.
    if not reading.consumers:
        return None
    return Wish(
        max(reading.consumers, scaling.replicas.min),
        "held: no consumers for another replica",
        f"{reading.consumers} consumers serve {count} replicas: nobody would consume from another "
        "one.",
        "More consumers, or a `worker` that comes with each replica, would allow more.",
    )


def _keeps(now: Situation, reading: Reading, until: float) -> Wish | None:
    """Why nothing goes although fewer would do; `until` is when the cool-down ends."""
    if reading.unreachable:
        return Wish(
            now.replicas,
            "held: a replica is away",
            f"{reading.unreachable} of the replicas cannot be reached, so nothing is removed.",
            "When all can be reached a scale-in may begin.",
        )
    if now.at < until:
        return Wish(
            now.replicas,
            "held: cool-down",
            "Replicas have changed a moment ago, so nothing is removed.",
            f"In {until - now.at:.0f} s the cool-down is over.",
        )
    return None


def _counted(replicas: int) -> str:
    return "is 1 replica" if replicas == 1 else f"are {replicas} replicas"
