"""The fleet as a map: machines, their slots, and nodes."""

from __future__ import annotations

from tidegate.console.model import (
    DecisionView,
    FleetView,
    Kind,
    MachineView,
    NodeView,
    SlotView,
)
from tidegate.console.sight import Sight
from tidegate.core.fleet import MachineState, SlotKind


def fleet_view(sight: Sight, decisions: list[DecisionView]) -> FleetView:
    fleet = sight.fleet
    held: dict[int, list[SlotView]] = {}
    for slot in fleet.slots:
        kind = Kind.HTTP if slot.kind is SlotKind.INSTANCE else Kind.QUEUE
        held.setdefault(slot.machine_id, []).append(
            SlotView(
                service=slot.queue,
                kind=kind,
                number=slot.number,
                state=slot.state,
                share=slot.share,
            )
        )
    machines = [
        MachineView(
            machine_id=one.machine_id,
            state=one.state.value,
            slots=one.slots,
            held=held.get(one.machine_id, []),
            host=one.host,
            address=one.address,
            booting_s=max(sight.at - one.ordered_at, 0.0)
            if one.state is MachineState.BOOTING
            else None,
            detail=one.detail,
        )
        for one in fleet.machines
    ]
    nodes = [
        NodeView(
            member_id=one.member_id,
            name=one.name,
            address=one.address,
            uptime_s=one.uptime_s,
            queues=len(one.queues) + one.queues_left_out,
            connections=one.connections,
            memory_bytes=one.process_memory_bytes,
            commit_p99_s=one.commit.p99_ms / 1e3 if one.commit.count else None,
            is_leader=one.member_id == fleet.leader,
        )
        for one in sight.numbers.nodes
    ]
    return FleetView(
        at=sight.at,
        leader=fleet.leader,
        machines=machines,
        nodes=nodes,
        unplaced=fleet.unplaced,
        instances_waiting=fleet.instances_waiting,
        decisions=decisions,
    )
