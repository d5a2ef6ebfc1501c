"""Packets to log in with SCRAM, and to get the user's rights."""

from __future__ import annotations

from tidegate.core.users import Grant
from tidegate.wire.packet import Answer, Request, Success


class AuthenticateResponse(Answer):
    """The challenge."""

    method = 0x1A
    message: str


class Authenticate(Request):
    """Begin a login: the first message of SCRAM-SHA-256, which names the user."""

    method = 0x19
    answer = AuthenticateResponse
    right = None
    before_identification = True
    before_login = True
    message: str


class ProveResponse(Answer):
    """The login succeeded; the signature proves that the node knows the user's keys."""

    method = 0x1C
    message: str


class Prove(Request):
    """Complete a login: the proof that the client knows the password."""

    method = 0x1B
    answer = ProveResponse
    right = None
    before_identification = True
    before_login = True
    message: str


class ActFor(Request):
    """Sent between nodes: the user of the following requests; none for a client without login."""

    method = 0x1D
    answer = Success
    right = None
    before_identification = True
    user: str | None


class GetRightsResponse(Answer):
    """The user (empty: the node requires no login) and the granted roles."""

    method = 0x6E
    user: str
    grants: list[Grant]


class GetRights(Request):
    """Get the user and its roles, for example to show only actions that are allowed."""

    method = 0x6D
    answer = GetRightsResponse
    right = None
