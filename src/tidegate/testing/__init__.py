"""Tests of workers without a server and without sleeping: an in-memory broker in virtual time.

    async def test_a_failed_order_is_retried(tidegate_broker):
        mq = await tidegate_broker.connect()
        …
        await tidegate_broker.advance(60)

It runs the real node and the real client in the test's own event loop. So leases, retries, delays
and dead letters behave as in production. See docs/testing.md.
"""

from tidegate.testing.broker import BlockingBroker, Broker, Delivery
from tidegate.testing.virtual_time import VirtualTimeLoop, run

__all__ = ["BlockingBroker", "Broker", "Delivery", "VirtualTimeLoop", "run"]
