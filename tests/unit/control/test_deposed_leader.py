"""A node that is deposed in the moment in which it begins to lead."""

from __future__ import annotations

from typing import Any

from virtual_nodes import in_virtual_time, virtual_node

from tidegate.control.leader import ControlLoops
from tidegate.core.errors import StaleEpoch
from tidegate.engines.native.actuator import NativeActuator
from tidegate.engines.native.sensor import NativeSensor


@in_virtual_time
async def test_run_once_leads_no_more_when_the_first_order_of_an_epoch_is_refused() -> None:
    async with virtual_node() as there:
        node = there.node
        steering = ControlLoops(
            node.store,
            node,
            NativeSensor(node.store.members, node.node_clients.request_with_body),
            NativeActuator(node.store, node.node_clients.request),
        )

        async def refuse(*_: Any) -> None:
            raise StaleEpoch("another node leads")

        node.store.bound_machines = refuse  # type: ignore[method-assign]

        await steering.run_once(1.0)

        assert not steering.leads
