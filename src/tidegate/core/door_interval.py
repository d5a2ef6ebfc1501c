"""What a door saw between two of its samples.

Totals of a door count from its beginning, so that a lost sample loses nothing; whoever judges or
records needs what one interval brought. A door that is another since (restarted), an instance that
is new, and totals that ran backwards count from zero: what they say has happened since. What came
to a door before it ever had an instance counts for nothing.
"""

from __future__ import annotations

import msgspec

from tidegate.core.hosting import DoorSample, Durations, InstanceSample


def since(before: DoorSample | None, after: DoorSample) -> DoorSample:
    """The same sample, its counts those of the time since the one before."""
    if not after.has_begun:
        return msgspec.structs.replace(after, accepted=0, answered=0, refused=0, by_class={})
    if before is None or before.door != after.door:
        return after
    known = {one.instance_id: one for one in before.instances}
    return msgspec.structs.replace(
        after,
        accepted=_grown(before.accepted, after.accepted),
        answered=_grown(before.answered, after.answered),
        refused=_grown(before.refused, after.refused),
        by_class={
            name: _grown(before.by_class.get(name, 0), count)
            for name, count in after.by_class.items()
        },
        response=_added(before.response, after.response),
        instances=[_of_instance(known.get(one.instance_id), one) for one in after.instances],
    )


def _of_instance(before: InstanceSample | None, after: InstanceSample) -> InstanceSample:
    if before is None:
        return after
    return msgspec.structs.replace(
        after,
        sent=_grown(before.sent, after.sent),
        answered=_grown(before.answered, after.answered),
        server_errors=_grown(before.server_errors, after.server_errors),
        failed=_grown(before.failed, after.failed),
        response=_added(before.response, after.response),
    )


def _grown(before: int, after: int) -> int:
    return after - before if after >= before else after


def _added(before: Durations, after: Durations) -> Durations:
    counts = dict(before)
    added = [(bound_s, _grown(counts.get(bound_s, 0), count)) for bound_s, count in after]
    return [(bound_s, count) for bound_s, count in added if count]
