"""Packets to register, identify, find and delete clients."""

from __future__ import annotations

from tidegate.core.model import ClientInfo, Mode
from tidegate.wire.packet import Answer, Request, Success


class RegisterClientResponse(Answer):
    """The new client; the connection now belongs to it."""

    method = 0x12
    client: ClientInfo


class RegisterClient(Request):
    """Create a client with a unique name."""

    method = 0x11
    answer = RegisterClientResponse
    right = None
    before_identification = True
    name: str
    mode_wanted: Mode = Mode.READ_WRITE
    # Delete the client when the connection ends.
    ephemeral: bool = False


class IdentifyClientResponse(Answer):
    """The client; the connection now belongs to it."""

    method = 0x14
    client: ClientInfo


class IdentifyClient(Request):
    """Identify as an existing client, by id or name."""

    method = 0x13
    answer = IdentifyClientResponse
    right = None
    before_identification = True
    client_id: int | None = None
    name: str | None = None
    # As in RegisterClient, for a client that reconnects before it was deleted.
    ephemeral: bool = False


class DeleteClient(Request):
    """Delete this client; in admin mode, any client."""

    method = 0x15
    answer = Success
    right = None
    client_id: int


class FindClientResponse(Answer):
    """The id of the client."""

    method = 0x18
    client_id: int


class FindClient(Request):
    """Find the id of a client by name; an unused name is reserved, so that it can be a receiver."""

    method = 0x17
    answer = FindClientResponse
    right = None
    name: str
