"""Packets about nodes, the owners of queues, and machines."""

from __future__ import annotations

import msgspec

from tidegate.core.model import ClientMode, Right
from tidegate.core.services import ServiceOverride
from tidegate.core.topology import MemberRole, Scaling, Topology
from tidegate.protocol.packet import Answer, Claim, Push, Request, Success


class Member(msgspec.Struct, array_like=True):
    """A node of the cluster."""

    member_id: int
    name: str
    address: str
    alive: bool
    queues: int


class GetMembersResponse(Answer):
    """The nodes of the cluster."""

    method = 0x68
    members: list[Member]


class GetMembers(Request):
    """List the nodes of the cluster."""

    method = 0x67
    answer = GetMembersResponse
    right = None


class SetOwner(Request):
    """Move a queue to another node; needs admin mode."""

    method = 0x65
    answer = Success
    right = Right.ADMIN
    mode = ClientMode.ADMIN
    queue_id: int
    member_id: int


class GetFleetResponse(Answer):
    """Leader, machines, slots and warm machines; JSON in the body."""

    method = 0x96


class GetFleet(Request):
    """List the machines."""

    method = 0x95
    answer = GetFleetResponse
    right = None


# Packets for members of a logical queue: join, leave, and move to another replica.


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
    role: MemberRole
    # Distinguishes the members of one connection: the consumer's number, or 0 for the producer.
    member: int = 0
    # The number of the preferred replica.
    wanted: int | None = None
    # Whether only that replica will do, as for workers that run beside it.
    bound: bool = False

    def claims(self) -> list[Claim]:
        right = Right.WRITE if self.role is MemberRole.PRODUCER else Right.READ
        return [(right, self.queue_id)]


class Leave(Request):
    """Leave a logical queue; the end of the connection has the same effect."""

    method = 0x83
    answer = Success
    right = Right.SEE
    queue_id: int
    role: MemberRole
    member: int = 0


class JoinAgain(Push):
    """The alias has a new owner, which does not know the members of this connection: join again."""

    method = 0x8C
    queue_id: int


class Migrated(Push):
    """Another replica is assigned; messages held are settled at the former one."""

    method = 0x88
    queue_id: int
    role: MemberRole
    member: int
    replica_id: int


class MigrateClients(Request):
    """Sent by a control loop to the alias's owner: move clients from one replica to another."""

    method = 0x91
    answer = Success
    right = Right.ADMIN
    mode = ClientMode.ADMIN
    queue_id: int
    role: MemberRole
    source_id: int
    target_id: int
    count: int = 1


# Packets about the replicas of logical queues.


class TopologyChanged(Push):
    """The topology has changed: shares, or replicas."""

    method = 0x86
    topology: Topology


class GetTopologyResponse(Answer):
    """The topology of a logical queue."""

    method = 0x8A
    topology: Topology


class GetTopology(Request):
    """Get the topology of a logical queue without joining it."""

    method = 0x89
    answer = GetTopologyResponse
    right = Right.SEE
    queue_id: int


class GetTopologiesResponse(Answer):
    """All visible logical queues, without assignments; `None` if nothing has changed."""

    method = 0x9A
    version: int
    topologies: list[Topology] | None


class GetTopologies(Request):
    """Get the topologies of all logical queues, if any has changed since a version."""

    method = 0x99
    answer = GetTopologiesResponse
    right = Right.SEE
    version: int = -1


# Packets to move waiting messages between replicas of a logical queue.


class PullResponse(Answer):
    """The number of messages moved."""

    method = 0x8E
    count: int


class Pull(Request):
    """Sent by a control loop: take waiting messages from another replica into this one."""

    method = 0x8D
    answer = PullResponse
    right = Right.ADMIN
    mode = ClientMode.ADMIN
    queue_id: int
    source: int
    count: int
    # Move only messages assigned to this replica; otherwise only messages without an assignment.
    homed: bool = False


class GiveAwayResponse(Answer):
    """The first id and count of each segment that now belongs to the other queue."""

    method = 0x90
    segments: list[tuple[int, int]]
    # First ids of segments that were never delivered.
    untouched: list[int] = msgspec.field(default_factory=list)
    # The number of ids that the first segment would have needed; 0 means that there is no segment
    # to give.
    ids_needed: int = 0


class GiveAway(Request):
    """Sent between nodes: move whole segments to a queue of the sender.

    The sender has reserved the ids for them.
    """

    method = 0x8F
    answer = GiveAwayResponse
    right = Right.ADMIN
    mode = ClientMode.ADMIN
    queue_id: int
    target: int
    target_epoch: int
    # The reserved ids start at `first_id`.
    first_id: int
    id_count: int
    # About this many messages.
    count: int
    move_id: str
    # Move only messages assigned to the sender's queue; otherwise only messages without an
    # assignment.
    homed: bool = False


# Packets to change scaling settings and overrides, and to get decisions.


class SetScaling(Request):
    """Set how a queue scales; `None` makes it a plain queue, if it has no replicas."""

    method = 0x8B
    answer = Success
    right = Right.CONFIGURE
    mode = ClientMode.READ_WRITE
    queue_id: int
    scaling: Scaling | None
    # Change it only if it equals `before` (`None`: plain), else answer ChangedMeanwhile.
    is_compared: bool = False
    before: Scaling | None = None


class SteerService(Request):
    """Set the override of an HTTP service, if it equals `before` until now."""

    method = 0x9B
    answer = Success
    right = Right.CONFIGURE
    mode = ClientMode.READ_WRITE
    service: str
    by_hand: ServiceOverride
    before: ServiceOverride

    def claims(self) -> list[Claim]:
        return [(Right.CONFIGURE, self.service)]


class ExplainResponse(Answer):
    """Decisions, the newest first; JSON in the body, one per line."""

    method = 0x94


class Explain(Request):
    """Get decisions about a queue, or with `None` about machines."""

    method = 0x93
    answer = ExplainResponse
    right = Right.SEE
    queue_id: int | None = None
    count: int = 20


class ExplainServiceResponse(Answer):
    """Decisions, as in ExplainResponse."""

    method = 0x9E


class ExplainService(Request):
    """Get decisions about an HTTP service."""

    method = 0x9D
    answer = ExplainServiceResponse
    right = Right.SEE
    service: str
    count: int = 20

    def claims(self) -> list[Claim]:
        return [(Right.SEE, self.service)]


# Packets to ask for live stats.


class StatsResponse(Answer):
    """Live stats as JSON in the body."""

    method = 0x62


class Stats(Request):
    """Get live stats of one queue, or of all; `cluster` includes the other nodes."""

    method = 0x61
    answer = StatsResponse
    right = Right.SEE
    queue_id: int | None = None
    cluster: bool = True
    # How many of the latest control steps to include per consumer with a controlled prefetch.
    steps: int = 1
    # False leaves out the consumers.
    consumers: bool = True
    # False leaves out histograms, and stats for control loops. This takes a tenth of the work, for
    # clients that poll all queues.
    durations: bool = True
