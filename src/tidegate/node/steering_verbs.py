"""Handlers that return recent decisions of the control loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.core.errors import InvalidValue, QueueNotExisting
from tidegate.core.hosting import decided_about
from tidegate.core.replication import logical_name
from tidegate.core.steering import FLEET
from tidegate.wire.connection import Received
from tidegate.wire.packets.steering import (
    Explain,
    ExplainResponse,
    ExplainService,
    ExplainServiceResponse,
)

if TYPE_CHECKING:
    from tidegate.node.session import Session

# The number of decisions that the store keeps.
EXPLAIN_COUNT_MAX = 500


async def explain(session: Session, packet: Explain, event: Received) -> None:
    """Answer with recent decisions about a queue, or about machines without a queue id."""
    _check_count(packet.count)
    store = session.node.store
    service = FLEET
    if packet.queue_id is not None:
        queue = await store.find_queue(packet.queue_id, None)
        if queue is None:
            raise QueueNotExisting(f"no queue {packet.queue_id}")
        service = logical_name(queue.name)
    documents = await store.decisions(service, packet.count)
    session.answer(ExplainResponse(), event.packet_id, [b"\n".join(documents)])


async def explain_service(session: Session, packet: ExplainService, event: Received) -> None:
    """Answer with recent decisions about a service."""
    _check_count(packet.count)
    store = session.node.store
    if packet.service not in [one.spec.name for one in await store.services()]:
        raise InvalidValue(f"no service is called {packet.service!r}: see `tidegate services`")
    documents = await store.decisions(decided_about(packet.service), packet.count)
    session.answer(ExplainServiceResponse(), event.packet_id, [b"\n".join(documents)])


def _check_count(count: int) -> None:
    if not 1 <= count <= EXPLAIN_COUNT_MAX:
        raise InvalidValue(f"between 1 and {EXPLAIN_COUNT_MAX} decisions, not {count}")
