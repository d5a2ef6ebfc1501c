"""HTTP services in PostgreSQL: one method for each function of sql/0010_hosting.sql and later."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from tidegate.core.by_hand import NOTHING_SAID, ByHand
from tidegate.core.fleet import told
from tidegate.core.hosting import DoorSample, Instance, InstanceState, Service, ServiceSpec
from tidegate.storage.hosted_service import (
    DOOR_FRESH_S,
    KEYS_OF_VERSION,
    PACKAGE_KEPT_S,
    check_spec,
    check_weight,
    new_secret,
    no_such_service,
    package_digest,
    steered_by_another,
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

    async def steer_service(self, name: str, by_hand: ByHand, before: ByHand) -> bool:
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
        raise steered_by_another(name)

    async def spec_of(self, service: str, version: int) -> ServiceSpec | None:
        query = "select spec from service_version where service = %s and version = %s::int"
        rows = await self._call(query, service, version)
        return msgspec.convert(rows[0][0], ServiceSpec) if rows else None

    async def set_service_detail(self, name: str, detail: str, leader_epoch: int) -> None:
        query = "select set_service_detail(%s, %s, %s)"
        await self._call(query, name, told(detail), leader_epoch)

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
            None if detail is None else told(detail),
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
            told(detail),
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
        by_hand=NOTHING_SAID if by_hand is None else msgspec.convert(by_hand, ByHand),
    )


def _by_hand(text: str | None) -> ByHand:
    return NOTHING_SAID if text is None else msgspec.json.decode(text, type=ByHand)


def _instance(row: tuple[Any, ...]) -> Instance:
    """Return the instance of a row of the type instance_row, whose columns match the fields."""
    return msgspec.convert(dict(zip(Instance.__struct_fields__, row, strict=True)), Instance)
