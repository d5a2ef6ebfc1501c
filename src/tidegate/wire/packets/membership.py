"""Packets for clients of a logical queue: to come, to go, to be sent from replica to replica."""

from __future__ import annotations

from tidegate.core.model import Mode
from tidegate.core.replication import Role, Topology
from tidegate.core.users import Right
from tidegate.wire.packet import Answer, Claim, Push, Request, Success


class JoinResponse(Answer):
    """Where its messages are, and the replica that the client was elected onto; 0: all of them."""

    method = 0x82
    topology: Topology
    replica_id: int = 0


class Join(Request):
    """Come to a logical queue as a producer or a consumer; changes of its topology are pushed."""

    method = 0x81
    answer = JoinResponse
    right = Right.SEE
    queue_id: int
    role: Role
    # Tells the comings of one connection apart: the consumer's number, or 0 for its producer.
    member: int = 0
    # The replica that it wants to be at, by number, if it can.
    wanted: int | None = None
    # There or nowhere: workers live with theirs.
    bound: bool = False

    def claims(self) -> list[Claim]:
        right = Right.WRITE if self.role is Role.PRODUCER else Right.READ
        return [(right, self.queue_id)]


class Leave(Request):
    """Go from a logical queue; the end of a connection says the same."""

    method = 0x83
    answer = Success
    right = Right.SEE
    queue_id: int
    role: Role
    member: int = 0


class JoinAgain(Push):
    """Whoever knew this connection at an alias does so no longer: somebody else owns it."""

    method = 0x8C
    queue_id: int


class Migrated(Push):
    """The client is to go over to another replica; what it holds, it settles where it was."""

    method = 0x88
    queue_id: int
    role: Role
    member: int
    replica_id: int


class MigrateClients(Request):
    """As a loop: have clients of one replica go over to another; asked of the alias's owner."""

    method = 0x91
    answer = Success
    right = Right.ADMIN
    mode = Mode.ADMIN
    queue_id: int
    role: Role
    source_id: int
    target_id: int
    count: int = 1
