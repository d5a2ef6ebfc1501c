"""What a door measured between two samples.

A door's totals count from its start, so a lost sample loses nothing. Evaluation and recording need
the difference between two samples. The difference is counted from zero for a restarted door, a new
instance, or a total that decreased. Requests before a door's first instance are not counted.
"""

from __future__ import annotations

import msgspec

from tidegate.core.hosting import DoorSample, Durations, InstanceSample


def since(before: DoorSample | None, after: DoorSample) -> DoorSample:
    """Return the sample with counts since the sample before."""
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
