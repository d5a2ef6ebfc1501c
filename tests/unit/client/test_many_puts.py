"""`put_many`: the checks of its payloads at the call."""

from __future__ import annotations

import pytest
from virtual_nodes import in_virtual_time, virtual_node

from tidegate.core.errors import TooLarge
from tidegate.protocol.connection import MESSAGE_BYTES_MAX


@in_virtual_time
async def test_put_many_raises_too_large_at_the_call_when_one_payload_exceeds_the_limit() -> None:
    async with virtual_node() as there:
        mq = await there.connect(name="first")
        await mq.create_queue("orders")

        with pytest.raises(TooLarge, match="exceeds the limit"):
            await mq.put_many("orders", [b"small", bytes(MESSAGE_BYTES_MAX + 1)])

        assert await mq.browse("orders") == []
