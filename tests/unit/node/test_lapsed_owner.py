"""An owner that was paused until its lease had gone: another may have given its messages away."""

from __future__ import annotations

import pytest
from backing import Connect, StartNode, TurnedClock

from tidegate.core.errors import StaleEpoch
from tidegate.protocol.messages import GetWaitingIds, GetWaitingIdsResponse


async def test_an_owner_whose_lease_has_gone_names_no_messages(
    start_node: StartNode, connect: Connect
) -> None:
    clock = TurnedClock()
    node = await start_node(clock=clock)
    mq = await connect(node)
    queue = await mq.create_queue("orders")
    await mq.put("orders", b"x")
    link = await mq.connected()
    asked = GetWaitingIds(queue.queue_id, 10)
    assert (await link.request(asked)).packet == GetWaitingIdsResponse([(1, 1)], 2)

    clock.turn(2 * node.limits.lease_s)

    # A stream would plan a batch of what somebody else may have by now.
    with pytest.raises(StaleEpoch):
        await link.request(asked)
