"""Logging in: two round trips, in which the password does not travel."""

from __future__ import annotations

import asyncio

from tidegate.access.scram import ClientLogin
from tidegate.client.credentials import Credentials
from tidegate.client.link import Link
from tidegate.wire.packets.login import Authenticate, AuthenticateResponse, Prove, ProveResponse


async def log_in(link: Link, credentials: Credentials) -> None:
    """Become a user; NotAuthenticated when the node, or we, are not satisfied."""
    login = ClientLogin(credentials.user, credentials.password)
    challenge = (await link.ask(Authenticate(login.first()))).packet
    assert isinstance(challenge, AuthenticateResponse)
    # Some milliseconds of hashing, during which the application must not stand still.
    proof = await asyncio.to_thread(login.proof, challenge.message)
    signature = (await link.ask(Prove(proof))).packet
    assert isinstance(signature, ProveResponse)
    login.check(signature.message)
