"""Packets about clients: to become one, to find one, to delete one."""

from __future__ import annotations

from tidegate.core.model import ClientInfo, Mode
from tidegate.wire.packet import Answer, Request, Success


class RegisterClientResponse(Answer):
    """The new client; the connection now speaks for it."""

    method = 0x12
    client: ClientInfo


class RegisterClient(Request):
    """Create a client of a unique name."""

    method = 0x11
    answer = RegisterClientResponse
    right = None
    before_identification = True
    name: str
    mode_wanted: Mode = Mode.READ_WRITE
    # The client is deleted when the connection ends.
    ephemeral: bool = False


class IdentifyClientResponse(Answer):
    """Who the connection speaks for."""

    method = 0x14
    client: ClientInfo


class IdentifyClient(Request):
    """Speak for an existing client, by id or by name."""

    method = 0x13
    answer = IdentifyClientResponse
    right = None
    before_identification = True
    client_id: int | None = None
    name: str | None = None
    # As in RegisterClient: it came back before it was forgotten.
    ephemeral: bool = False


class DeleteClient(Request):
    """Delete a client: oneself, or as admin anyone."""

    method = 0x15
    answer = Success
    right = None
    client_id: int


class FindClientResponse(Answer):
    """The id that goes with the name."""

    method = 0x18
    client_id: int


class FindClient(Request):
    """The id of a client by name; a name nobody has yet is reserved, so it can be addressed."""

    method = 0x17
    answer = FindClientResponse
    right = None
    name: str
