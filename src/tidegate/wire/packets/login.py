"""Packets to log in, as in access/scram.py, and to ask what one then may do."""

from __future__ import annotations

from tidegate.core.users import Grant
from tidegate.wire.packet import Answer, Request, Success


class AuthenticateResponse(Answer):
    """The challenge."""

    method = 0x1A
    message: str


class Authenticate(Request):
    """Begin to log in: SCRAM-SHA-256's first message, which names the user."""

    method = 0x19
    answer = AuthenticateResponse
    right = None
    before_identification = True
    before_login = True
    message: str


class ProveResponse(Answer):
    """Logged in; the node's signature proves that it knows the user's keys."""

    method = 0x1C
    message: str


class Prove(Request):
    """End the login: the proof that the password is known."""

    method = 0x1B
    answer = ProveResponse
    right = None
    before_identification = True
    before_login = True
    message: str


class ActFor(Request):
    """As a node: what follows is asked by this user, or without one by a client without login."""

    method = 0x1D
    answer = Success
    right = None
    before_identification = True
    user: str | None


class GetRightsResponse(Answer):
    """Who is logged in (empty: nobody needs to), and what was granted."""

    method = 0x6E
    user: str
    grants: list[Grant]


class GetRights(Request):
    """Ask who one is, and what one may do: for a page that shows only what can be done."""

    method = 0x6D
    answer = GetRightsResponse
    right = None
