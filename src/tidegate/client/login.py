"""Logging in with SCRAM: two round trips that do not send the password."""

from __future__ import annotations

import asyncio

from tidegate.access.scram import ClientLogin
from tidegate.client.credentials import Credentials
from tidegate.client.link import Link
from tidegate.wire.packets.login import Authenticate, AuthenticateResponse, Prove, ProveResponse


async def log_in(link: Link, credentials: Credentials) -> None:
    """Log in on a transport; raise `NotAuthenticated` if either side rejects the other."""
    login = ClientLogin(credentials.user, credentials.password)
    challenge = (await link.ask(Authenticate(login.first()))).packet
    assert isinstance(challenge, AuthenticateResponse)
    # Hashing takes milliseconds and would block the event loop.
    proof = await asyncio.to_thread(login.proof, challenge.message)
    signature = (await link.ask(Prove(proof))).packet
    assert isinstance(signature, ProveResponse)
    login.check(signature.message)
