"""HTTP applications: services, their instances, and the doors before them.

    Service    one application under one agreement, in a version
    Instance   one process of it, in a slot of a machine
    Door       accepts requests and distributes them over the instances: embedded, or HAProxy

Services and instances are rows in the store. The leader changes the rows, machines start and stop
processes accordingly, and doors follow. Each of them may fail: the wanted state is in the store, so
its successor continues from there.
"""

from __future__ import annotations

import enum
import hmac
from collections.abc import Sequence
from hashlib import sha256
from typing import Protocol, runtime_checkable

import msgspec

from tidegate.core.topology import REPLICAS_MAX

# The override of an HTTP service: settings by a human, which take precedence over the scaling law.
#
#     instances        the number of serving instances                 None: the law decides
#     least, most      bounds for the law                              None: those of the agreement
#     concurrency      requests that each instance has at a time       None: as deployed or adapted
#     in_flight_max    requests that all doors have at a time          None: as the law limits them
#
# An override does not change the law's own results, so removing it restores them.


# The limit of `deploy --concurrency`.
REQUESTS_MAX = 100_000


class ServiceOverride(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An override of one service; `None` means no override of that setting."""

    instances: int | None = None
    least: int | None = None
    most: int | None = None
    concurrency: int | None = None
    in_flight_max: int | None = None

    def bounds(self, agreed_least: int, agreed_most: int | None) -> tuple[int, int]:
        """Return the least and most instances, at least 1.

        If only one bound is overridden and contradicts the agreed one, it replaces the agreed one.
        """
        least = agreed_least if self.least is None else self.least
        most = agreed_most if self.most is None else self.most
        most = REPLICAS_MAX if most is None else most
        if least > most:
            least, most = (least, least) if self.most is None else (most, most)
        return max(least, 1), max(most, 1)


NO_OVERRIDE = ServiceOverride()

_FIELD_TEXTS = {
    "instances": ("instances", "automatic"),
    "least": ("at least", "as agreed"),
    "most": ("at most", "as agreed"),
    "concurrency": ("requests of an instance at a time", "automatic"),
    "in_flight_max": ("requests let in at a time", "automatic"),
}


def override_problems(
    by_hand: ServiceOverride, agreed_least: int = 1, agreed_most: int | None = None
) -> list[str]:
    """Return the problems of an override; an empty list means that it is usable."""
    found = []
    for field, value in msgspec.structs.asdict(by_hand).items():
        highest = REPLICAS_MAX if field in ("instances", "least", "most") else REQUESTS_MAX
        if value is not None and not 1 <= value <= highest:
            found.append(f"{_FIELD_TEXTS[field][0]} {value}: must be between 1 and {highest}")
    least, most = by_hand.bounds(agreed_least, agreed_most)
    if by_hand.least is not None and by_hand.most is not None and by_hand.least > by_hand.most:
        found.append(f"at least {by_hand.least}, at most {by_hand.most}: must be the other way")
    elif by_hand.instances is not None and not least <= by_hand.instances <= most:
        found.append(
            f"instances {by_hand.instances}: must be {least} to {most}, as is agreed unless other "
            "bounds are said"
        )
    return found


def describe_override_change(before: ServiceOverride, after: ServiceOverride) -> str:
    """Return the changes between two overrides as a sentence; empty if there are none."""
    changes = []
    for field, (name, nothing) in _FIELD_TEXTS.items():
        old, new = getattr(before, field), getattr(after, field)
        if old != new:
            words = [nothing if value is None else str(value) for value in (old, new)]
            changes.append(f"{name} {words[0]} → {words[1]}")
    return f"{', '.join(changes)}." if changes else ""


# A histogram of request durations: the upper bound of a bucket in seconds, and its count.
Durations = list[tuple[float, int]]


def decision_subject(service: str) -> str:
    """Return the key of decisions about a service; no queue can have this name."""
    return f"#http/{service}"


class Engine(enum.StrEnum):
    """The program that is the door."""

    GATEWAY = "gateway"
    HAPROXY = "haproxy"


class ServiceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A service as it was deployed."""

    # The name in the agreement's `http = …`.
    name: str
    # module:attribute of an ASGI application.
    target: str
    # The agreement as TOML; it may change without a new version.
    agreement: str
    # The most requests that one instance gets at a time.
    concurrency: int = 100
    # The number of spare instances, which run without requests until they are needed.
    spares: int = 0
    engine: Engine = Engine.GATEWAY
    # The name of a policy, or module:Class, which gateway doors import.
    balancing: str = "better-of-two"
    sticky: bool = False
    # How long a draining instance still gets requests of its sessions, in seconds.
    session_grace_s: float = 60.0
    # The path for health checks and the probe.
    health_path: str = "/"
    # From the head of a request to the end of its response, retries included; `None` means no
    # limit.
    deadline_s: float | None = None
    # How long an instance may send nothing, before and within its response.
    answer_timeout_s: float = 60.0
    # The largest request body; `None` means no limit, since bodies are streamed.
    body_bytes_max: int | None = None
    # The environment of the instances; never shown.
    environment: dict[str, str] = {}
    # SHA-256 of the code package that machines receive; `None` means that they have the code.
    package: str | None = None
    # The working folder on machines that have the code; `None` means that of the machine's process.
    folder: str | None = None
    # A hash of the code at deployment; another one makes the instances restart.
    revision: str = ""
    # The slots of a machine that is booted for the service.
    slots_per_machine: int = 4


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A service as the store keeps it."""

    spec: ServiceSpec
    # Grows with every change that requires a restart of the instances.
    version: int
    # The problem of the latest reconfiguration, for people; empty means none.
    detail: str = ""
    # Signs the session cookies. Made at the first deployment, and the same for all doors and
    # versions. Never shown.
    secret: str = ""
    # The override; later deployments keep it until it is removed.
    by_hand: ServiceOverride = NO_OVERRIDE

    def held(self, instances: Sequence[Instance]) -> Sequence[Instance]:
        """Return the instances with the concurrency of the override, if there is one."""
        concurrency = self.by_hand.concurrency
        if concurrency is None:
            return instances
        return [msgspec.structs.replace(one, concurrency=concurrency) for one in instances]


class InstanceState(enum.StrEnum):
    """The state of an instance."""

    ORDERED = "ordered"  # it has no slot, or its machine has not started it
    STARTING = "starting"
    READY = "ready"  # answers, and gets requests by its weight
    # Doors send nothing new, except requests of its sessions for a while. It runs until the leader
    # removes it, when door samples show no outstanding requests or when it takes too long. Then its
    # machine stops the process.
    DRAINING = "draining"
    # Does not start, died, or does not answer; the leader replaces it. Until it is removed its
    # machine tries again, so it may recover, unless the leader set this state.
    FAILED = "failed"


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One instance of a service."""

    instance_id: int
    service: str
    version: int
    state: InstanceState
    machine_id: int | None = None
    # host:port, once it answers.
    address: str | None = None
    # The weight by which doors send it requests; 0 means a spare.
    weight: float = 1.0
    # The most requests at a time, as the leader set it last; `None` means that of the service.
    concurrency: int | None = None
    # The memory that it may still take, measured by its machine; `None` means not yet measured.
    free_memory_bytes: float | None = None
    # Seconds since 1970; set again when it is moved from a lost machine.
    ordered_at: float = 0.0
    ready_at: float | None = None
    detail: str = ""
    # Its resident memory; `None` means not yet measured.
    resident_bytes: float | None = None
    # Until when it gets requests of its sessions while it drains, in seconds since 1970; `None`
    # means not at all.
    sessions_until: float | None = None

    @property
    def is_spare(self) -> bool:
        return self.weight == 0.0


class InstanceSample(msgspec.Struct, frozen=True, kw_only=True):
    """What a door has measured of one instance; counts are totals since the door began."""

    instance_id: int
    outstanding: int = 0
    sent: int = 0
    answered: int = 0
    # Responses with status 500 and above, and requests without a complete response.
    server_errors: int = 0
    failed: int = 0
    # Of responses: from sending the request to the end of the response.
    response: Durations = []
    # Why the door sends it nothing for now; `None` means that it does.
    ejected: str | None = None


class DoorSample(msgspec.Struct, frozen=True, kw_only=True):
    """What one door has measured of its service; counts are totals since the door began."""

    service: str
    # Identifies the running process: a restart changes it, so that totals never decrease.
    door: str
    # Seconds since 1970.
    at: float
    address: str
    # Requests received; complete responses of instances; and requests without one, since the door
    # refused them (502, 503, 504 …) or the response was cut off.
    accepted: int = 0
    answered: int = 0
    refused: int = 0
    # Responses to clients by class of status, such as "2xx", those of the door included. Empty
    # means that the door does not count them.
    by_class: dict[str, int] = {}
    # Requests that wait in the door for an instance, and all that the door has.
    waiting: int = 0
    in_flight: int = 0
    # Of these, requests without a first byte of response, by the least time they have waited.
    # Probes are excluded.
    unanswered: Durations = []
    # As clients see it, waiting in the door included.
    response: Durations = []
    instances: list[InstanceSample] = []
    # Why the door cannot serve now; empty means that it can.
    trouble: str = ""
    # Whether it has ever had an instance. Before that, the service has not begun and refused
    # requests break no promise.
    has_begun: bool = True
    # When its totals were 0, in seconds since 1970; `None` means just before the first sample.
    began_at: float | None = None
    # Instances that clients without a session may get, spares included; `None` means not known.
    gives_to: list[int] | None = None


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """An instance, as a door needs it."""

    instance_id: int
    host: str
    port: int
    weight: float = 1.0
    # The most requests at a time.
    concurrency: int = 100
    draining: bool = False
    # Until when it gets requests of its sessions while it drains, in seconds since 1970; `None`
    # means not at all.
    sessions_until: float | None = None

    @property
    def name(self) -> str:
        return f"i{self.instance_id}"


def instance_of_backend(backend_name: str) -> int | None:
    """Return the instance id for the name of a backend; `None` for another name."""
    number = backend_name.removeprefix("i")
    return int(number) if number != backend_name and number.isdecimal() else None


class Door(Protocol):
    """A door before the instances of one service.

    Changes never interrupt a running request. A door process that dies is started again.
    """

    engine: Engine

    # Raises Unavailable, with advice, if its address is in use or its program is missing.
    async def start(self) -> None: ...
    # Returns the number of connections that were cut off.
    async def stop(self, timeout_s: float = 30.0) -> int: ...
    @property
    def address(self) -> str: ...
    # Replaces all backends. A backend that is missing or draining still answers its requests.
    async def set_backends(self, backends: Sequence[Backend]) -> None: ...
    # The most requests in the door; it refuses all others at once. `None` means no limit.
    async def set_admission(self, in_flight_max: int | None) -> None: ...
    async def sample(self) -> DoorSample: ...


@runtime_checkable
class MemoryWeighing(Protocol):
    """A door whose balancing policies use the free memory of instances."""

    # For an instance that was passed to `set_backends`.
    def report_free_memory(self, instance_id: int, free_memory_bytes: float) -> None: ...


class HostingStore(Protocol):
    """The part of a store that keeps services.

    Changes with an epoch that is not the leader's raise `StaleEpoch`.
    """

    # Needs no epoch. The version grows if instances must be restarted.
    async def deploy(self, spec: ServiceSpec) -> Service: ...
    # `False` means that there is no service of that name. Its instances are deleted, too.
    async def undeploy(self, name: str) -> bool: ...
    async def services(self) -> list[Service]: ...
    # Set the override if it equals `before`, else raise ChangedMeanwhile. `False` means that there
    # is no such service.
    async def steer_service(
        self, name: str, by_hand: ServiceOverride, before: ServiceOverride
    ) -> bool: ...
    # The deployment of a version; `None` if it is no longer kept. It is kept while there are
    # instances of that version, which may have to be restarted.
    async def spec_of(self, service: str, version: int) -> ServiceSpec | None: ...
    async def set_service_detail(self, name: str, detail: str, leader_epoch: int) -> None: ...
    # Called by the leader. Raises InvalidValue if there is no such service.
    async def add_instance(self, service: str, weight: float, leader_epoch: int) -> Instance: ...
    # Another machine than before resets the instance to ORDERED. `False` means that it does not
    # exist or is draining, or that there is no such machine.
    async def assign_instance(
        self, instance_id: int, machine_id: int, leader_epoch: int
    ) -> bool: ...
    # DRAINING and FAILED stay, regardless of its machine's reports, until this method sets another
    # state. ORDERED takes it from its machine. `sessions_until` belongs to DRAINING.
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
    # Called by its machine, without the leader. `False` means that it is to be stopped there.
    # DRAINING as `state` means that its machine stops it and its sessions end.
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
    # Called by doors; the latest sample of each is kept while it is recent.
    async def report_door(self, sample: DoorSample) -> None: ...
    async def door_samples(self, service: str) -> list[DoorSample]: ...
    # The most requests in all doors of a service; `None` means no limit.
    async def set_admission(
        self, service: str, in_flight_max: int | None, leader_epoch: int
    ) -> None: ...
    async def admission(self, service: str) -> int | None: ...
    # The leader's state of a service as JSON, for the next leader; `None` if there is none. Deleted
    # with the service.
    async def keep_configuration(
        self, service: str, document: bytes, leader_epoch: int
    ) -> None: ...
    async def kept_configuration(self, service: str) -> bytes | None: ...
    # Code packages by SHA-256; storing one twice has no effect.
    async def put_package(self, content: bytes) -> str: ...
    async def package(self, digest: str) -> bytes | None: ...
    # The status of an agreement as JSON, for the next leader.
    async def keep_standing(self, agreement: str, document: bytes, leader_epoch: int) -> None: ...
    async def standings(self) -> dict[str, bytes]: ...


# What a door measured between two samples.
#
# A door's totals count from its start, so a lost sample loses nothing. Evaluation and recording
# need the difference between two samples. The difference is counted from zero for a restarted door,
# a new instance, or a total that decreased. Requests before a door's first instance are not
# counted.


def sample_delta(before: DoorSample | None, after: DoorSample) -> DoorSample:
    """Return the sample with counts since the sample before."""
    if not after.has_begun:
        return msgspec.structs.replace(after, accepted=0, answered=0, refused=0, by_class={})
    if before is None or before.door != after.door:
        return after
    known = {one.instance_id: one for one in before.instances}
    return msgspec.structs.replace(
        after,
        accepted=_grown(before.accepted, after.accepted),
        answered=_grown(before.answered, after.answered),
        refused=_grown(before.refused, after.refused),
        by_class={
            name: _grown(before.by_class.get(name, 0), count)
            for name, count in after.by_class.items()
        },
        response=_added(before.response, after.response),
        instances=[_of_instance(known.get(one.instance_id), one) for one in after.instances],
    )


def _of_instance(before: InstanceSample | None, after: InstanceSample) -> InstanceSample:
    if before is None:
        return after
    return msgspec.structs.replace(
        after,
        sent=_grown(before.sent, after.sent),
        answered=_grown(before.answered, after.answered),
        server_errors=_grown(before.server_errors, after.server_errors),
        failed=_grown(before.failed, after.failed),
        response=_added(before.response, after.response),
    )


def _grown(before: int, after: int) -> int:
    return after - before if after >= before else after


def _added(before: Durations, after: Durations) -> Durations:
    counts = dict(before)
    added = [(bound_s, _grown(counts.get(bound_s, 0), count)) for bound_s, count in after]
    return [(bound_s, count) for bound_s, count in added if count]


# How long an instance may take to answer a health check.
#
# Machines, doors and the probe use the same limit. A door with a shorter limit would never send
# requests to an instance that its machine reports as ready. The default health path is a page of
# the application, which its own event loop answers.


HEALTH_ANSWER_S = 2.0


# The mark by which a door recognises the leader's probe and leaves it out of its counts.
#
# A window in which only the probe asks must count as having no data, and fast answers to the probe
# must not improve the measured response times. The mark is derived from the service's secret, which
# only its doors and the leader know. So no client can exclude its requests from the counts. Doors
# never pass the mark on.


PROBE_HEADER = "Tidegate-Probe"


def probe_mark(secret: str) -> str:
    """Return the value of the probe's header; empty if the service has no secret."""
    return hmac.new(secret.encode(), b"tidegate probe", sha256).hexdigest() if secret else ""
