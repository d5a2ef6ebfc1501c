"""Concurrent-safe changes of how a queue scales."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.cli.asking import queue_key
from tidegate.cli.worker_doubts import worker_doubts
from tidegate.core.errors import ChangedMeanwhile, InvalidValue
from tidegate.core.replication import logical_name
from tidegate.core.scaling import (
    DEFAULT_SCALING,
    REPLICAS_MAX,
    Range,
    Scaling,
    ScalingPolicy,
    Steering,
)
from tidegate.core.scaling_words import changed

if TYPE_CHECKING:
    from tidegate.agreement.document import Agreement
    from tidegate.client.client import Client
    from tidegate.core.replication import Topology

# How often to try a change that collides with changes by other clients.
_TRIES_MAX = 8


async def topology_of(mq: Client, queue: str) -> Topology | None:
    """Return the topology of a logical queue; None for a plain queue.

    Raise `InvalidValue` for a replica, because only the logical queue scales.
    """
    info = await mq.queue(queue_key(queue))
    if info.alias_id:
        whole = logical_name(info.name)
        raise InvalidValue(
            f"{info.name} is a replica of queue {whole}, which scales as a whole: "
            f"`tidegate scale {whole}`"
        )
    return await mq.topology(info.queue_id) if info.elastic else None


async def change_scaling(
    mq: Client, queue: str, changes: dict[str, Any], declared: Scaling | None = None
) -> None:
    """Change some scaling keys of a queue, and keep concurrent changes of others.

    `declared` replaces the present settings before the changes apply. Print a warning if the
    worker's module cannot be found here.
    """

    def wanted(topology: Topology | None) -> Scaling:
        before = declared or (DEFAULT_SCALING if topology is None else topology.scaling)
        said = changes
        if topology is None and declared is None and "min" in changes and "max" not in changes:
            # Without an upper bound for a new logical queue, use the lower bound. An existing upper
            # bound stays, or the server refuses the change.
            said = {"max": changes["min"], **changes}
        name = queue if topology is None else topology.queue
        obeyed, rest = _obeying(before, said, name)
        _check_wanted(obeyed, rest, name)
        return changed(obeyed, rest)

    await _rescale(mq, queue, wanted)
    worker = changes.get("worker") or (None if declared is None else declared.worker)
    if worker not in (None, "none") and (doubts := worker_doubts(worker, queue)):
        print(f"warning: {doubts}", file=sys.stderr)


def _check_wanted(before: Scaling, changes: dict[str, Any], queue: str) -> None:
    """Raise `InvalidValue` with the bounds and a remedy if --to is outside of them."""
    wanted = changes.get("replicas_wanted")
    if not isinstance(wanted, int):
        return
    free = msgspec.structs.replace(before, steering=Steering.AUTO, replicas_wanted=None)
    said = {key: value for key, value in changes.items() if key in ("min", "max", "replicas")}
    bounds = changed(free, said).replicas
    if bounds.min <= wanted <= bounds.max:
        return
    told = f"--to {wanted}: must be between min {bounds.min} and max {bounds.max} of queue {queue}"
    if wanted > REPLICAS_MAX:
        raise InvalidValue(f"{told}; no queue has more than {REPLICAS_MAX} replicas")
    bound = "--max" if wanted > bounds.max else "--min"
    raise InvalidValue(f"{told}; `tidegate scale {queue} --to {wanted} {bound} {wanted}` moves it")


async def _rescale(mq: Client, queue: str, wanted: Callable[[Topology | None], Scaling]) -> None:
    """Read, change and write the scaling; try again if another client changed it meanwhile."""
    for left in reversed(range(_TRIES_MAX)):
        topology = await topology_of(mq, queue)
        before = None if topology is None else topology.scaling
        try:
            await mq.set_scaling(queue_key(queue), wanted(topology), before=before)
            return
        except ChangedMeanwhile:
            if not left:
                raise


def _obeying(
    before: Scaling, changes: dict[str, Any], queue: str
) -> tuple[Scaling, dict[str, Any]]:
    """Replace `agreement`, a file name, by the scaling that the agreement gives.

    Return the changed scaling, and the remaining changes.
    """
    file = changes.get("agreement")
    if file is None or file == "none":
        return before, changes
    from tidegate.agreement.scaling_terms import agreement_of_file, with_agreement

    agreement, text = agreement_of_file(Path(file).expanduser(), queue)
    is_bounded = (
        agreement.resources.replicas_max is not None
        or before.replicas != Range()
        or {"max", "replicas"} & changes.keys()
    )
    if changes.get("policy") == ScalingPolicy.AGREEMENT and not is_bounded:
        raise InvalidValue(
            f"{file} does not say how many replicas there may be: write replicas = "
            "{ min = 1, max = 8 } into it, or say --max"
        )
    rest = {key: value for key, value in changes.items() if key != "agreement"}
    agreed = with_agreement(before, agreement, text)
    if changes.get("policy", before.policy) == ScalingPolicy.AGREEMENT:
        offer, text = _offered(agreement, text, changed(agreed, rest))
        agreed = with_agreement(before, offer, text)
    return agreed, rest


def _offered(agreement: Agreement, text: str, scaling: Scaling) -> tuple[Agreement, str]:
    """Return the agreement that this many replicas can keep, or a reduced one, with its text.

    Raise `InvalidValue` if the replicas do not suffice and the agreement must not be reduced.
    """
    from tidegate.control.agreement_figures import Asked, figures
    from tidegate.control.agreement_plan import plan
    from tidegate.control.reduced_agreement import reduced_agreement

    most = scaling.replicas.max
    bounded = replace(agreement, resources=replace(agreement.resources, replicas_max=most))
    asked = Asked(capacity_per_s=scaling.capacity_per_s)
    found = plan(bounded, figures(bounded, asked, None), asked)
    if not found.missing:
        return agreement, text
    if found.offer is None:
        raise InvalidValue(
            f"{agreement.name}: {'; '.join(found.missing)}. Promise less, allow more replicas, or "
            'write insufficient = "reduce"'
        )
    offer, text = reduced_agreement(agreement, found, "replica")
    print(f"{agreement.name}: reduced: {offer.resources.reduced}", file=sys.stderr)
    return offer, text
