"""The login: two round trips before a client may identify itself."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from tidegate.access.scram import WRONG, ServerLogin
from tidegate.core.errors import NotAuthenticated, UnexpectedPacket
from tidegate.wire.connection import Received, State
from tidegate.wire.packet import Success
from tidegate.wire.packets.login import (
    ActFor,
    Authenticate,
    AuthenticateResponse,
    Prove,
    ProveResponse,
)

if TYPE_CHECKING:
    from tidegate.node.session import Session

log = logging.getLogger(__name__)

# Delays the answer after a wrong password, to slow down guessing.
_AFTER_FAILURE_S = 0.5


async def authenticate(session: Session, packet: Authenticate, event: Received) -> None:
    if session.state is not State.OPENED or session.login is not None:
        raise UnexpectedPacket("a login comes first, and once")
    accounts = session.node.accounts
    login = session.login = ServerLogin(accounts.keys_for)
    session.forgo_trust()
    await accounts.refresh()
    challenge = login.challenge(packet.message)
    session.login_account = accounts.account(login.user)
    session.answer(AuthenticateResponse(challenge), event.packet_id)


async def prove(session: Session, packet: Prove, event: Received) -> None:
    login = session.login
    if session.state is not State.CHALLENGED or login is None:
        raise UnexpectedPacket("a proof follows a challenge, once")
    session.login = None
    accounts = session.node.accounts
    try:
        signature = login.verify(packet.message)
        if accounts.account(login.user) != session.login_account:
            raise NotAuthenticated(WRONG)
    except NotAuthenticated:
        log.warning("login refused", extra={"user": login.user, "address": session.address})
        await asyncio.sleep(_AFTER_FAILURE_S)
        session.end(NotAuthenticated(WRONG), event.packet_id)
        return
    session.logged_in(accounts.guard_of(login.user))
    session.answer(ProveResponse(signature), event.packet_id)


async def act_for(session: Session, packet: ActFor, event: Received) -> None:
    """Set the user for whom another node relays packets."""
    if not session.is_node or session.state is not State.AUTHENTICATED:
        raise UnexpectedPacket("only nodes act for others, once, after their login")
    accounts = session.node.accounts
    # The other node may have read a new user before this one.
    await accounts.refresh()
    session.guard = accounts.guard_acting_for(packet.user)
    session.answer(Success(), event.packet_id)
