"""HTTP applications: what is hosted, its replicas in slots, the doors before them.

    Service    one application under one agreement, in a version
    Instance   one replica of it: a process in a slot of a machine
    Door       who takes requests and balances them over the instances: embedded, or HAProxy

A service is a row, so is each of its instances; the leader orders, machines carry out, doors
follow. Each of them may die: what is wanted stands in the store, and the next one goes on.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from tidegate.core.by_hand import NOTHING_SAID, ByHand

# Durations of requests: the upper bound of a bucket in seconds, and how many were in it.
Durations = list[tuple[float, int]]


def decided_about(service: str) -> str:
    """What decisions about a service are kept under; no queue can be called so."""
    return f"#http/{service}"


class Engine(enum.StrEnum):
    """What stands before the instances."""

    GATEWAY = "gateway"
    HAPROXY = "haproxy"


class ServiceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants to be hosted."""

    # As its agreement says in `http = …`.
    name: str
    # module:attribute of an ASGI application.
    target: str
    # The agreement as it was written (TOML); it may change without a new version.
    agreement: str
    # Requests that one instance may have at a time; the door holds no more than that.
    concurrency: int = 100
    # Instances that are started and get nothing until they are needed.
    spares: int = 0
    engine: Engine = Engine.GATEWAY
    # A policy by its name; or module:Class, which doors of the gateway import where they run.
    balancing: str = "better-of-two"
    sticky: bool = False
    # How long an instance that drains keeps its sessions; new ones go elsewhere at once.
    session_grace_s: float = 60.0
    # Asked for health, and by the probe.
    health_path: str = "/"
    # From a request's head to the end of its answer, trying again included; None: no bound.
    deadline_s: float | None = None
    # How long an instance may be silent before its answer begins, and in the middle of it.
    answer_timeout_s: float = 60.0
    # Longer bodies of requests are refused; None: any length, since they are streamed.
    body_bytes_max: int | None = None
    # Environment of the instances; never shown.
    environment: dict[str, str] = {}
    # SHA-256 of the code that machines are sent; None: they have it.
    package: str | None = None
    # Where instances run on machines that have the code; None: where their machine does.
    folder: str | None = None
    # What that code was when it was deployed: another one, and instances are started anew.
    revision: str = ""
    # Slots of a machine that is booted for it.
    slots_per_machine: int = 4


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A service as the store knows it."""

    spec: ServiceSpec
    # Counts up with everything that instances must be started anew for.
    version: int
    # What has become of the last reconfiguration, for people; "": nothing is wrong.
    detail: str = ""
    # Signs the cookies of its sessions: made with the first deploy, the same for all its doors and
    # versions. Never shown.
    secret: str = ""
    # What a person has said; it stays with every deploy, until it is given back.
    by_hand: ByHand = NOTHING_SAID

    def held(self, instances: Sequence[Instance]) -> Sequence[Instance]:
        """Instances with the requests at a time that a person has said, if anybody has."""
        concurrency = self.by_hand.concurrency
        if concurrency is None:
            return instances
        return [msgspec.structs.replace(one, concurrency=concurrency) for one in instances]


class InstanceState(enum.StrEnum):
    """The life of an instance."""

    ORDERED = "ordered"  # it has no slot, or its machine has not begun yet
    STARTING = "starting"
    READY = "ready"  # answers, and gets what its weight says
    # Doors send nothing new, and for a while what belongs to its sessions. It runs until the leader
    # removes it, who knows from their samples that nothing is outstanding (or that it has lasted
    # too long); then its machine ends it.
    DRAINING = "draining"
    # Does not start, died, or does not answer; the leader replaces it. Its machine tries again
    # until it is removed, so it may come back by itself, unless the leader has said it.
    FAILED = "failed"


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One replica of a service."""

    instance_id: int
    service: str
    version: int
    state: InstanceState
    machine_id: int | None = None
    # host:port, as soon as it answers.
    address: str | None = None
    # What doors give it beside the others; 0: a spare.
    weight: float = 1.0
    # Requests at a time, as the leader has set it last; None: as the service says.
    concurrency: int | None = None
    # What it may still take, as its machine measures it; None: not yet.
    free_memory_bytes: float | None = None
    # Seconds since 1970; ordered anew when its machine was lost.
    ordered_at: float = 0.0
    ready_at: float | None = None
    detail: str = ""
    # What it has of its machine's memory now; None: not yet.
    resident_bytes: float | None = None
    # While it drains, its sessions still go there until then, in seconds since 1970; None: not.
    sessions_until: float | None = None

    @property
    def is_spare(self) -> bool:
        return self.weight == 0.0


class InstanceSample(msgspec.Struct, frozen=True, kw_only=True):
    """What a door has seen of one instance; counts are totals since the door began."""

    instance_id: int
    outstanding: int = 0
    sent: int = 0
    answered: int = 0
    # Answers of 500 and above; and requests without a whole answer.
    server_errors: int = 0
    failed: int = 0
    # Of answers, from sending the request to the end of the answer.
    response: Durations = []
    # Out of the balancing for now, and why.
    ejected: str | None = None


class DoorSample(msgspec.Struct, frozen=True, kw_only=True):
    """What one door has seen of its service so far; counts are totals since it began."""

    service: str
    # One running door: another after a restart, so that totals never run backwards.
    door: str
    # Seconds since 1970.
    at: float
    address: str
    # Came; whole answers of instances that went to clients; and requests whose client got none:
    # turned away by the door itself (503, 504, 502 …), or cut off in the middle of the answer.
    accepted: int = 0
    answered: int = 0
    refused: int = 0
    # Answers that clients got by the class of their status, "2xx" and so on, those of the door
    # itself too; empty: it does not count them.
    by_class: dict[str, int] = {}
    # Requests that wait in the door for an instance, and all that it has in hand.
    waiting: int = 0
    in_flight: int = 0
    # Of these, requests that no byte of an answer has come to, by how long they have waited at
    # least; the probe's are not among them.
    unanswered: Durations = []
    # As clients see it, waiting in the door included.
    response: Durations = []
    instances: list[InstanceSample] = []
    # What the door cannot do now; "": it can.
    trouble: str = ""
    # Whether it has ever had an instance. Before that the service has not begun: what is refused
    # then, by whoever waits for it, breaks no promise.
    has_begun: bool = True
    # When its totals were 0, in seconds since 1970; None: just before it was first seen.
    began_at: float | None = None
    # Instances that clients without a session may come to, spares included; None: it does not say,
    # or is not sure.
    gives_to: list[int] | None = None


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """An instance as a door is told of it."""

    instance_id: int
    host: str
    port: int
    weight: float = 1.0
    # Requests at a time.
    concurrency: int = 100
    draining: bool = False
    # While it drains, what belongs to its sessions still goes there until then, in seconds since
    # 1970; None: nothing does.
    sessions_until: float | None = None

    @property
    def name(self) -> str:
        return f"i{self.instance_id}"


def instance_of(backend_name: str) -> int | None:
    """Whose backend it is, by its name; None: that is none of ours."""
    number = backend_name.removeprefix("i")
    return int(number) if number != backend_name and number.isdecimal() else None


class Door(Protocol):
    """Whoever stands before the instances of one service (adapters/gateway, adapters/haproxy).

    Changes never break a request that is under way. A door that dies is started again by itself.
    """

    engine: Engine

    # Unavailable, with what to do, when its address is taken or its program is missing.
    async def start(self) -> None: ...
    # How many connections were cut off.
    async def stop(self, timeout_s: float = 30.0) -> int: ...
    @property
    def address(self) -> str: ...
    # These and no others from now on; who is missing or drains answers what it has.
    async def set_backends(self, backends: Sequence[Backend]) -> None: ...
    # Admission: requests in hand at most, all others are refused at once; None: no bound.
    async def set_admission(self, in_flight_max: int | None) -> None: ...
    async def sample(self) -> DoorSample: ...


@runtime_checkable
class MemoryWeighing(Protocol):
    """A door whose policies know memory: it is told what each instance may still take."""

    # Of one that it was told of by `set_backends`.
    def report_free_memory(self, instance_id: int, free_memory_bytes: float) -> None: ...


class HostingStore(Protocol):
    """The part of a store that knows services (the catalogue's).

    Changes under an epoch that is no longer the leader's raise StaleEpoch.
    """

    # Anybody may deploy; a version counts up if instances must be started anew for it.
    async def deploy(self, spec: ServiceSpec) -> Service: ...
    # False: there is none of that name. Its instances go, too.
    async def undeploy(self, name: str) -> bool: ...
    async def services(self) -> list[Service]: ...
    # A person's word about a service that has had `before` so far, else ChangedMeanwhile; False:
    # there is no such service.
    async def steer_service(self, name: str, by_hand: ByHand, before: ByHand) -> bool: ...
    # As it was deployed under a version; None: that one is no more. Kept while there are instances
    # of it: those that a new version has not replaced yet may have to be started again.
    async def spec_of(self, service: str, version: int) -> ServiceSpec | None: ...
    async def set_service_detail(self, name: str, detail: str, leader_epoch: int) -> None: ...
    # The leader's orders. InvalidValue: there is no such service.
    async def add_instance(self, service: str, weight: float, leader_epoch: int) -> Instance: ...
    # Another machine than before: ordered anew. False: it is gone, ends, or there is no machine.
    async def assign_instance(
        self, instance_id: int, machine_id: int, leader_epoch: int
    ) -> bool: ...
    # DRAINING and FAILED stay, whatever its machine reports, until another state is set here.
    # ORDERED takes it from its machine. `sessions_until` goes with DRAINING.
    async def set_instance(
        self,
        instance_id: int,
        leader_epoch: int,
        *,
        state: InstanceState | None = None,
        weight: float | None = None,
        concurrency: int | None = None,
        detail: str | None = None,
        sessions_until: float | None = None,
    ) -> bool: ...
    async def remove_instance(self, instance_id: int, leader_epoch: int) -> bool: ...
    # Of one service, or of all.
    async def instances(self, service: str | None = None) -> list[Instance]: ...
    # Its machine says so, whoever leads; False: nobody wants it there, it is to end. DRAINING:
    # its machine ends it, and no session goes on there.
    async def report_instance(
        self,
        instance_id: int,
        machine_id: int,
        state: InstanceState,
        address: str | None,
        free_memory_bytes: float | None,
        detail: str,
        resident_bytes: float | None = None,
    ) -> bool: ...
    # Doors say what they see; the last sample of each is kept for so long as it is fresh.
    async def report_door(self, sample: DoorSample) -> None: ...
    async def door_samples(self, service: str) -> list[DoorSample]: ...
    # How many requests all doors of a service may have in hand; None: no bound.
    async def set_admission(
        self, service: str, in_flight_max: int | None, leader_epoch: int
    ) -> None: ...
    async def admission(self, service: str) -> int | None: ...
    # What the leader has decided (control.kept_configuration, as JSON), for the next one; None:
    # nothing yet. Gone with the service.
    async def keep_configuration(
        self, service: str, document: bytes, leader_epoch: int
    ) -> None: ...
    async def kept_configuration(self, service: str) -> bytes | None: ...
    # Code by its SHA-256; put twice is there once.
    async def put_package(self, content: bytes) -> str: ...
    async def package(self, digest: str) -> bytes | None: ...
    # Where an agreement stands (agreement.history, as JSON), for the next leader.
    async def keep_standing(self, agreement: str, document: bytes, leader_epoch: int) -> None: ...
    async def standings(self) -> dict[str, bytes]: ...
