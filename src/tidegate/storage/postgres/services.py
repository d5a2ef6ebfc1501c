"""HTTP services in PostgreSQL: one method for each function of sql/0010_hosting.sql and later."""

from __future__ import annotations

import hashlib
import math
import re
import secrets
from abc import ABC, abstractmethod
from typing import Any

import msgspec

from tidegate.core.errors import ChangedMeanwhile, InvalidValue, TooLarge
from tidegate.core.machines import machine_detail
from tidegate.core.services import (
    NO_OVERRIDE,
    DoorSample,
    Instance,
    InstanceState,
    Service,
    ServiceOverride,
    ServiceSpec,
)


class PostgresHosting(ABC):
    """The part of a PostgreSQL store that manages services."""

    @abstractmethod
    async def _call(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Call a function on the catalogue connection."""

    @abstractmethod
    async def _read(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Call a function that may take longer, on a connection beside the catalogue's."""

    async def deploy(self, spec: ServiceSpec) -> Service:
        check_spec(spec)
        rows = await self._call(
            "select * from deploy_service(%s, %s::jsonb, %s, %s::text[], %s::float8)",
            spec.name,
            msgspec.json.encode(spec).decode(),
            new_secret(),
            list(KEYS_OF_VERSION),
            PACKAGE_KEPT_S,
        )
        return _service(rows[0])

    async def undeploy(self, name: str) -> bool:
        return bool((await self._call("select undeploy_service(%s)", name))[0][0])

    async def services(self) -> list[Service]:
        return [_service(row) for row in await self._call("select * from services(null)")]

    async def steer_service(
        self, name: str, by_hand: ServiceOverride, before: ServiceOverride
    ) -> bool:
        rows = await self._call("select by_hand::text from service where name = %s", name)
        if not rows:
            return False
        # Compared first as parsed here, then as stored: another version may have written the same
        # override in a different text.
        (stands_there,) = rows[0]
        if _by_hand(stands_there) == before:
            query = "select steer_service(%s, %s::jsonb, %s::jsonb)"
            wanted = msgspec.json.encode(by_hand).decode()
            if (await self._call(query, name, wanted, stands_there))[0][0]:
                return True
        raise override_changed_meanwhile(name)

    async def spec_of(self, service: str, version: int) -> ServiceSpec | None:
        query = "select spec from service_version where service = %s and version = %s::int"
        rows = await self._call(query, service, version)
        return msgspec.convert(rows[0][0], ServiceSpec) if rows else None

    async def set_service_detail(self, name: str, detail: str, leader_epoch: int) -> None:
        query = "select set_service_detail(%s, %s, %s)"
        await self._call(query, name, machine_detail(detail), leader_epoch)

    async def add_instance(self, service: str, weight: float, leader_epoch: int) -> Instance:
        check_weight(weight)
        query = "select * from add_instance(%s, %s::float8, %s)"
        rows = await self._call(query, service, weight, leader_epoch)
        if not rows:
            raise no_such_service(service)
        return _instance(rows[0])

    async def assign_instance(self, instance_id: int, machine_id: int, leader_epoch: int) -> bool:
        query = "select assign_instance(%s::int, %s::int, %s)"
        return bool((await self._call(query, instance_id, machine_id, leader_epoch))[0][0])

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
    ) -> bool:
        if weight is not None:
            check_weight(weight)
        rows = await self._call(
            "select set_instance(%s::int, %s, %s, %s::float8, %s::int, %s, %s::float8)",
            instance_id,
            leader_epoch,
            None if state is None else str(state),
            weight,
            concurrency,
            None if detail is None else machine_detail(detail),
            sessions_until,
        )
        return bool(rows[0][0])

    async def remove_instance(self, instance_id: int, leader_epoch: int) -> bool:
        query = "select remove_instance(%s::int, %s)"
        return bool((await self._call(query, instance_id, leader_epoch))[0][0])

    async def instances(self, service: str | None = None) -> list[Instance]:
        rows = await self._call("select * from instances(%s, null)", service)
        return [_instance(row) for row in rows]

    async def report_instance(
        self,
        instance_id: int,
        machine_id: int,
        state: InstanceState,
        address: str | None,
        free_memory_bytes: float | None,
        detail: str,
        resident_bytes: float | None = None,
    ) -> bool:
        rows = await self._call(
            "select report_instance(%s::int, %s::int, %s, %s, %s::float8, %s, %s::float8)",
            instance_id,
            machine_id,
            str(state),
            address,
            free_memory_bytes,
            machine_detail(detail),
            resident_bytes,
        )
        return bool(rows[0][0])

    async def report_door(self, sample: DoorSample) -> None:
        query = "select report_door(%s, %s, %s::bytea, %s::float8)"
        document = msgspec.msgpack.encode(sample)
        await self._call(query, sample.service, sample.door, document, DOOR_FRESH_S)

    async def door_samples(self, service: str) -> list[DoorSample]:
        rows = await self._call("select door_samples(%s, %s::float8)", service, DOOR_FRESH_S)
        return [msgspec.msgpack.decode(row[0], type=DoorSample) for row in rows]

    async def set_admission(
        self, service: str, in_flight_max: int | None, leader_epoch: int
    ) -> None:
        query = "select set_service_admission(%s, %s::int, %s)"
        await self._call(query, service, in_flight_max, leader_epoch)

    async def admission(self, service: str) -> int | None:
        rows = await self._call("select in_flight_max from service where name = %s", service)
        return rows[0][0] if rows else None

    async def keep_configuration(self, service: str, document: bytes, leader_epoch: int) -> None:
        query = "select keep_configuration(%s, %s::bytea, %s)"
        await self._call(query, service, document, leader_epoch)

    async def kept_configuration(self, service: str) -> bytes | None:
        rows = await self._call("select configuration from service where name = %s", service)
        return bytes(rows[0][0]) if rows and rows[0][0] is not None else None

    async def put_package(self, content: bytes) -> str:
        digest = package_digest(content)
        await self._read("select put_package(%s, %b::bytea)", digest, content)
        return digest

    async def package(self, digest: str) -> bytes | None:
        rows = await self._read("select content from package where digest = %s", digest)
        return bytes(rows[0][0]) if rows else None

    async def keep_standing(self, agreement: str, document: bytes, leader_epoch: int) -> None:
        query = "select keep_standing(%s, %s::bytea, %s)"
        await self._call(query, agreement, document, leader_epoch)

    async def standings(self) -> dict[str, bytes]:
        rows = await self._call("select agreement, document from standing order by agreement")
        return {agreement: bytes(document) for agreement, document in rows}


def _service(row: tuple[Any, ...]) -> Service:
    """Return the service of a row of the type service_row."""
    spec, version, detail, secret, by_hand = row
    return Service(
        spec=msgspec.convert(spec, ServiceSpec),
        version=version,
        detail=detail,
        secret=secret,
        by_hand=NO_OVERRIDE if by_hand is None else msgspec.convert(by_hand, ServiceOverride),
    )


def _by_hand(text: str | None) -> ServiceOverride:
    return NO_OVERRIDE if text is None else msgspec.json.decode(text, type=ServiceOverride)


def _instance(row: tuple[Any, ...]) -> Instance:
    """Return the instance of a row of the type instance_row, whose columns match the fields."""
    return msgspec.convert(dict(zip(Instance.__struct_fields__, row, strict=True)), Instance)


# Rules for services that all stores share: versions, checks and how long data is kept.


# A change of any of these makes a new version, whose instances are started again.
KEYS_OF_VERSION = ("target", "environment", "package", "folder", "revision")
# Doors report every second. Samples older than this are ignored.
DOOR_FRESH_S = 5.0
# How long a package is kept that no service deploys.
PACKAGE_KEPT_S = 86_400.0
PACKAGE_BYTES_MAX = 256 * 1024 * 1024
NAME_CHARACTERS_MAX = 200

_DIGEST = re.compile(r"[0-9a-f]{64}")
# The path is written into requests unchanged: no blank, line end or fragment may end it there.
_PATH = re.compile(r"/[!-\"$-~]*")
_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def check_spec(spec: ServiceSpec) -> None:
    """Raise `InvalidValue` for a service that can never be hosted."""
    if not spec.name.strip() or len(spec.name) > NAME_CHARACTERS_MAX or "\0" in spec.name:
        raise InvalidValue(f"a service has a name of 1 to {NAME_CHARACTERS_MAX} characters")
    if not _TARGET.fullmatch(spec.target):
        raise InvalidValue(
            f"{spec.target!r} names no application: write module:attribute, as in shop.web:app"
        )
    if spec.package is not None and not _DIGEST.fullmatch(spec.package):
        raise InvalidValue(f"{spec.package!r} is no SHA-256: use what put_package has answered")
    if not _PATH.fullmatch(spec.health_path):
        raise InvalidValue(
            f"{spec.health_path!r} is no path to ask for health: begin it with /, percent-encoded"
        )
    for name, value, low in (
        ("concurrency", spec.concurrency, 1),
        ("spares", spec.spares, 0),
        ("slots_per_machine", spec.slots_per_machine, 1),
    ):
        if value < low:
            raise InvalidValue(f"{name} of service {spec.name!r} is {low} or more, not {value}")
    if not (math.isfinite(spec.session_grace_s) and spec.session_grace_s >= 0.0):
        raise InvalidValue(
            f"session_grace_s of service {spec.name!r} is 0 or more, not {spec.session_grace_s}"
        )
    for name, time_s in (
        ("deadline_s", spec.deadline_s),
        ("answer_timeout_s", spec.answer_timeout_s),
    ):
        if time_s is not None and not (math.isfinite(time_s) and time_s > 0.0):
            raise InvalidValue(f"{name} of service {spec.name!r} is above 0, not {time_s}")
    if spec.body_bytes_max is not None and spec.body_bytes_max < 0:
        raise InvalidValue(
            f"body_bytes_max of service {spec.name!r} is 0 or more, not {spec.body_bytes_max}"
        )
    for name, text in spec.environment.items():
        if not name or "=" in name or "\0" in name + text:
            raise InvalidValue(f"{name!r} cannot be set in an environment")


def check_weight(weight: float) -> None:
    if not (math.isfinite(weight) and weight >= 0.0):
        raise InvalidValue(f"the weight of an instance is 0 or more, not {weight}")


def package_digest(content: bytes) -> str:
    """Return the SHA-256 under which the code is stored.

    Raises `TooLarge` if the code exceeds the limit.
    """
    if len(content) > PACKAGE_BYTES_MAX:
        raise TooLarge(
            f"the code has {len(content)} bytes, {PACKAGE_BYTES_MAX} are allowed: "
            "leave data and virtual environments out of the folder"
        )
    return hashlib.sha256(content).hexdigest()


def new_secret() -> str:
    """Return a new secret for the session cookies of a service."""
    return secrets.token_urlsafe(32)


def no_such_service(name: str) -> InvalidValue:
    return InvalidValue(f"there is no service {name!r}: deploy it first")


def override_changed_meanwhile(name: str) -> ChangedMeanwhile:
    return ChangedMeanwhile(
        f"somebody else has changed service {name!r} meanwhile: look at it, and say it again"
    )
