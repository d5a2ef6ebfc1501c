"""Packets for members of a logical queue: join, leave, and move to another replica."""

from __future__ import annotations

from tidegate.core.model import Mode
from tidegate.core.replication import Role, Topology
from tidegate.core.users import Right
from tidegate.wire.packet import Answer, Claim, Push, Request, Success


class JoinResponse(Answer):
    """The topology and the assigned replica; 0 means all replicas."""

    method = 0x82
    topology: Topology
    replica_id: int = 0


class Join(Request):
    """Join a logical queue as a producer or consumer; changes of its topology are pushed."""

    method = 0x81
    answer = JoinResponse
    right = Right.SEE
    queue_id: int
    role: Role
    # Distinguishes the members of one connection: the consumer's number, or 0 for the producer.
    member: int = 0
    # The number of the preferred replica.
    wanted: int | None = None
    # Whether only that replica will do, as for workers that run beside it.
    bound: bool = False

    def claims(self) -> list[Claim]:
        right = Right.WRITE if self.role is Role.PRODUCER else Right.READ
        return [(right, self.queue_id)]


class Leave(Request):
    """Leave a logical queue; the end of the connection has the same effect."""

    method = 0x83
    answer = Success
    right = Right.SEE
    queue_id: int
    role: Role
    member: int = 0


class JoinAgain(Push):
    """The alias has a new owner, which does not know the members of this connection: join again."""

    method = 0x8C
    queue_id: int


class Migrated(Push):
    """Another replica is assigned; messages held are settled at the former one."""

    method = 0x88
    queue_id: int
    role: Role
    member: int
    replica_id: int


class MigrateClients(Request):
    """Sent by a control loop to the alias's owner: move clients from one replica to another."""

    method = 0x91
    answer = Success
    right = Right.ADMIN
    mode = Mode.ADMIN
    queue_id: int
    role: Role
    source_id: int
    target_id: int
    count: int = 1
