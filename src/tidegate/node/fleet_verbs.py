"""Handler of the packet about machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tidegate.core.fleet import FleetInfo, MachineState, Slot, SlotKind
from tidegate.wire.connection import Received
from tidegate.wire.packets.cluster import GetFleet, GetFleetResponse

if TYPE_CHECKING:
    from tidegate.node.session import Session


async def fleet(session: Session, packet: GetFleet, event: Received) -> None:
    """Answer with all machines, and with the slots that the user may see."""
    store = session.node.store
    leader, epoch = await store.leader()
    living = {member.member_id for member in await store.members() if member.alive}
    machines = await store.machines()
    # The cached topologies: consoles ask every two seconds, and the store is asked only for
    # changes.
    _, known = await session.node.aliases.all_of_them()
    topologies = session.guard.visible(known, lambda one: one.queue)
    places = [(topology.queue, place) for topology in topologies for place in topology.replicas]
    instances = session.guard.visible(await store.instances(), lambda one: one.service)
    found = FleetInfo(
        leader=leader if leader in living else None,
        epoch=epoch,
        machines=machines,
        slots=[
            Slot(
                machine_id=place.machine_id,
                queue=queue,
                number=place.number,
                state=place.state,
                share=place.share,
            )
            for queue, place in places
            if place.machine_id is not None
        ]
        + [
            Slot(
                machine_id=one.machine_id,
                queue=one.service,
                number=one.instance_id,
                state=one.state,
                share=one.weight,
                kind=SlotKind.INSTANCE,
            )
            for one in instances
            if one.machine_id is not None
        ],
        warm=sum(one.state is MachineState.WARM and one.alive for one in machines),
        unplaced=sum(place.machine_id is None for _, place in places),
        instances_waiting=sum(one.machine_id is None for one in instances),
    )
    session.answer(GetFleetResponse(), event.packet_id, [msgspec.json.encode(found)])
