"""Handler of overrides of HTTP services."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.core.by_hand import complaints
from tidegate.core.errors import InvalidValue
from tidegate.node.person_change import note_by_hand
from tidegate.wire.connection import Received
from tidegate.wire.packet import Success
from tidegate.wire.packets.steering import SteerService

if TYPE_CHECKING:
    from tidegate.node.session import Session


async def steer_service(session: Session, packet: SteerService, event: Received) -> None:
    """Store a user's override of a service; the leader applies it."""
    if wrong := complaints(packet.by_hand):
        raise InvalidValue("; ".join(wrong))
    store = session.node.store
    services = {one.spec.name: one for one in await store.services()}
    service = services.get(packet.service)
    # A repeated request after a lost answer: it is stored already.
    if service is None or service.by_hand != packet.by_hand:
        if not await store.steer_service(packet.service, packet.by_hand, packet.before):
            raise InvalidValue(f"no service is called {packet.service!r}: see `tidegate services`")
        await note_by_hand(session, packet.service, packet.before, packet.by_hand)
    session.answer(Success(), event.packet_id)
