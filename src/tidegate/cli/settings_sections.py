"""A key of a section: its unit and its allowed values, from the annotation of the field."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from tidegate.core.errors import InvalidValue
from tidegate.core.text import (
    DURATION_IS,
    SIZE_IS,
    format_duration,
    format_size,
    parse_duration_s,
    parse_size_bytes,
    redact_secrets,
    redacted_value,
)


class Quantity:
    """The unit of a field, which decides how its text is parsed and formatted."""


class DurationS(Quantity):
    """A duration, written `30s` and stored in seconds."""


class SizeBytes(Quantity):
    """A size, written `16MiB` and stored in bytes."""


class CommandText:
    """A command with placeholders."""


Duration = Annotated[float, DurationS]
Size = Annotated[int, SizeBytes]


class Field:
    """The allowed values of one key, from the annotation of its field."""

    def __init__(self, annotation: Any) -> None:
        # An optional field may be absent, but it cannot be set to None.
        if get_origin(annotation) in (Union, UnionType):
            (annotation,) = (part for part in get_args(annotation) if part is not NoneType)
        self._type: Any = annotation
        is_noted = get_origin(annotation) is Annotated
        self._kind, *notes = get_args(annotation) if is_noted else [annotation]
        self._quantity = next((note for note in notes if isinstance(note, type)), None)
        self._bounds = next((note for note in notes if isinstance(note, Meta)), None)

    def convert(self, value: Any) -> Any:
        """Return the value of a TOML key in the field's type; raise an error if it is not allowed.

        The error is `InvalidValue` or `msgspec.ValidationError`.
        """
        if self._quantity is DurationS:
            value = parse_duration_s(msgspec.convert(value, str))
        elif self._quantity is SizeBytes:
            value = parse_size_bytes(msgspec.convert(value, str | int))
        value = msgspec.convert(value, self._type)
        if self._quantity is CommandText:
            # Imported here: each command reads settings, and few of them have commands.
            from tidegate.fleet.providers import CommandTemplate

            CommandTemplate(value)
        return value

    def from_text(self, text: str) -> Any:
        """Return an environment variable's value in the field's type; lists use commas."""
        if get_origin(self._kind) is list:
            return self.convert([part.strip() for part in text.split(",") if part.strip()])
        if self._quantity is None and self._kind in (int, float, bool):
            return self.convert(msgspec.convert(text, self._kind, strict=False))
        return self.convert(text)

    def written(self, value: Any) -> Any:
        """Return a value as written in a settings file, without secrets."""
        if self._quantity is DurationS:
            return format_duration(value)
        if self._quantity is SizeBytes:
            return format_size(value)
        if isinstance(value, list):
            return [redact_secrets(one) for one in value]
        return redact_secrets(value) if isinstance(value, str) else value

    def why(self, wrong: Exception) -> str:
        """Return the reason why a value is refused."""
        if self._quantity is CommandText and isinstance(wrong, InvalidValue):
            return str(wrong)
        return f"must be {self.allowed}"

    @property
    def allowed(self) -> str:
        """The allowed values, as text."""
        if get_origin(self._kind) is Literal:
            return "one of " + ", ".join(get_args(self._kind))
        if self._quantity is DurationS:
            return DURATION_IS + self._range(format_duration)
        if self._quantity is SizeBytes:
            return SIZE_IS + self._range(lambda size: format_size(int(size)))
        if self._kind is int:
            return "a whole number" + self._range(lambda number: f"{number:.0f}")
        if self._kind is float:
            return "a number" + self._range(lambda number: f"{number:g}")
        if self._kind is bool:
            return "true or false"
        return "a list of texts" if get_origin(self._kind) is list else "a text"

    def _range(self, show: Any) -> str:
        if self._bounds is None:
            return ""
        return f", from {show(self._bounds.ge)} to {show(self._bounds.le)}"


def fields_of(section: type[msgspec.Struct]) -> dict[str, Field]:
    """Return the keys of a section with their fields."""
    hints = get_type_hints(section, include_extras=True)
    return {
        field.encode_name: Field(hints[field.name]) for field in msgspec.structs.fields(section)
    }


# The section [alerts], with a check of the webhook's address.


class AlertSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where alerts go when an agreement is breached; with neither target, only to the log."""

    # A program and its arguments; it receives the alert as JSON on stdin.
    command: list[str] = []
    # Receives the alert as a POST request.
    webhook: str | None = None
    # Whether to send warnings, and their end, as well as breaches.
    warnings: bool = False
    timeout_s: Annotated[Duration, Meta(ge=0.1, le=600.0)] = msgspec.field(
        default=10.0, name="timeout"
    )
    attempts: Annotated[int, Meta(ge=1, le=20)] = 3


def alerts_problems(alerts: dict[str, Any]) -> list[str]:
    """Return the problems of the section as a whole."""
    if (webhook := alerts.get("webhook")) is None:
        return []
    # Imported here: each command reads settings, and few of them have a webhook.
    from tidegate.control.services.measurement import checked_url

    try:
        checked_url(webhook)
    except InvalidValue as wrong:
        return [f"alerts.webhook: {redact_secrets(str(wrong))}"]
    return []


# Larger than METRICS_PORT_OFFSET plus the consecutive ports that `up` uses, so that ranges are
# disjoint.
CONSOLE_PORT_OFFSET = 1500


class ConsoleSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where `up` serves the console. A non-loopback address needs TLS and users."""

    enabled: bool = True
    host: str = "127.0.0.1"
    # None means CONSOLE_PORT_OFFSET above the first node's port, or a free port if that is in use.
    # 0 means a free port.
    port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    # Further names under which browsers reach it, such as that of a proxy: host, or host:port.
    names: list[str] = []


# The section [fleet], with a check of the commands it needs.


_COMMANDS_DO = {
    "boot": "boots machine {id}",
    "halt": "ends machine {id}",
    "list": "prints the machines that there are",
}


class FleetSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The provider of machines, and its time limits."""

    # "process" runs machines as processes on this computer; "command" runs the commands below.
    provider: Literal["none", "process", "command"] = "none"
    # Distinguishes fleets of one cloud; available as {fleet} in the commands.
    name: str = "tidegate"
    boot: Annotated[str, CommandText] | None = None
    halt: Annotated[str, CommandText] | None = None
    listing: Annotated[str, CommandText] | None = msgspec.field(default=None, name="list")
    # Time limits of a boot or halt command, and of a list command.
    command_deadline_s: Annotated[Duration, Meta(ge=0.1, le=3600.0)] = msgspec.field(
        default=120.0, name="command_deadline"
    )
    list_deadline_s: Annotated[Duration, Meta(ge=0.1, le=600.0)] = msgspec.field(
        default=15.0, name="list_deadline"
    )
    list_interval_s: Annotated[Duration, Meta(ge=0.1, le=600.0)] = msgspec.field(
        default=2.0, name="list_interval"
    )
    # Attempts of one boot or halt; the wait between them doubles.
    tries: Annotated[int, Meta(ge=1, le=20)] = 4
    backoff_s: Annotated[Duration, Meta(ge=0.01, le=60.0)] = msgspec.field(
        default=1.0, name="backoff"
    )
    # From the order of a machine until its node joins.
    boot_deadline_s: Annotated[Duration, Meta(ge=0.5, le=86_400.0)] = msgspec.field(
        default=300.0, name="boot_deadline"
    )
    # How long a machine may be without a live node before it is treated as lost.
    lost_s: Annotated[Duration, Meta(ge=0.1, le=3600.0)] = msgspec.field(default=3.0, name="lost")
    # How long a worker may take to finish the messages it has begun.
    drain_s: Annotated[Duration, Meta(ge=0.0, le=86_400.0)] = msgspec.field(
        default=30.0, name="drain"
    )
    # The provider "process" waits this long, to simulate the boot time of a cloud machine.
    boot_s: Annotated[float, Meta(ge=0.0, le=86_400.0)] = 0.0
    # Slots per machine, unless the queue sets its own number.
    slots: Annotated[int, Meta(ge=1, le=1000)] = 1
    # The hosts for machines, if the commands contain {host}.
    hosts: list[str] = []
    # The limit per host; 0 means no limit.
    machines_per_host: Annotated[int, Meta(ge=0, le=10_000)] = 0
    machines_max: Annotated[int, Meta(ge=1, le=10_000)] = 64
    # Booted machines kept without work, unless a queue sets its own number; None means the learned
    # number.
    warm: Annotated[int, Meta(ge=0, le=1000)] | None = None
    provisioning: Literal["energy", "performance"] = "energy"


def fleet_problems(fleet: dict[str, Any], written: Collection[str]) -> Iterator[str]:
    """Yield the problems of the section as a whole; `written` are its keys with any value."""
    if fleet.get("provider") == "command":
        yield from _missing(fleet, written)
    elif given := [key for key in _COMMANDS_DO if key in fleet]:
        yield f'fleet.{given[0]} is set, but nobody runs it: set fleet.provider = "command"'


def _missing(fleet: dict[str, Any], written: Collection[str]) -> Iterator[str]:
    """Yield a problem for each missing command, and for each one without {id}."""
    for key, does in _COMMANDS_DO.items():
        if key not in written:
            yield (
                f'fleet.{key} is not set: with provider = "command" it is the command that {does}'
            )
    from tidegate.fleet.providers import CommandTemplate

    for key in ("boot", "halt"):
        if key in fleet and "id" not in CommandTemplate(fleet[key]).placeholders:
            yield (
                f"fleet.{key} = {redacted_value(fleet[key])}: {{id}} is missing: without it the "
                f"command does not know which machine it {_COMMANDS_DO[key].split()[0]}"
            )


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The level and the format of the log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


# Larger than the number of consecutive ports that `up` uses for nodes, so that the ranges are
# disjoint.
METRICS_PORT_OFFSET = 1000


class MetricsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a node serves /metrics, /healthz and /readyz, which need no login."""

    enabled: bool = True
    host: str = "127.0.0.1"
    # None means METRICS_PORT_OFFSET above the node's port, or a free port if that is in use. 0
    # means a free port.
    port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    # The number of queues with metrics of their own. The node reports how many it leaves out.
    queues_max: Annotated[int, Meta(ge=1, le=100_000)] = 500


_KIB = 1024
_MIB = 1024 * _KIB
_GIB = 1024 * _MIB


class NodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The address of a node, and its limits."""

    host: str = "127.0.0.1"
    # The host name under which other machines reach the node, if it differs from the listening
    # address.
    advertise: str | None = None
    port: Annotated[int, Meta(ge=0, le=65535)] = 7411
    memory_bytes_max: Annotated[Size, Meta(ge=16 * _MIB, le=1024 * _GIB)] = msgspec.field(
        default=512 * _MIB, name="memory"
    )
    lease_s: Annotated[Duration, Meta(ge=0.2, le=3600.0)] = msgspec.field(default=3.0, name="lease")
    heartbeat_s: Annotated[Duration, Meta(ge=0.1, le=3600.0)] = msgspec.field(
        default=10.0, name="heartbeat"
    )
    handshake_s: Annotated[Duration, Meta(ge=0.1, le=600.0)] = msgspec.field(
        default=10.0, name="handshake"
    )
    message_bytes_max: Annotated[Size, Meta(ge=1, le=16 * _MIB)] = 16 * _MIB
    frame_before_login_bytes_max: Annotated[Size, Meta(ge=256, le=_MIB)] = msgspec.field(
        default=8 * _KIB, name="frame_before_login"
    )
    connections_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 5000
    connections_per_address_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 5000
    connections_per_user_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 2000
    # The node closes a connection that reads nothing for this long while data waits for it.
    slow_reader_s: Annotated[Duration, Meta(ge=1.0, le=3600.0)] = msgspec.field(
        default=30.0, name="slow_reader"
    )
    # "auto" lets clients on this machine connect without login until the first user exists.
    login: Literal["auto", "always"] = "auto"
    # How long a consumer may hold a message without renewing its lease.
    delivery_lease_s: Annotated[Duration, Meta(ge=0.1, le=86400.0)] = msgspec.field(
        default=60.0, name="delivery_lease"
    )
    # Connections that write to the store; each runs one commit at a time.
    writers: Annotated[int, Meta(ge=1, le=64)] = 1
    # How long the node collects acknowledgements for which no client waits.
    settle_linger_s: Annotated[Duration, Meta(ge=0.0, le=1.0)] = msgspec.field(
        default=0.05, name="settle_linger"
    )


class PipelineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The inputs of `learn`, and the folder of its results."""

    # None means `knowledge` in the store's data folder.
    knowledge: str | None = None
    # Files or folders of agreements.
    agreements: list[str] = []

    @property
    def agreement_places(self) -> list[Path]:
        return [Path(place).expanduser() for place in self.agreements]


# The section [spark], which may contain Spark's own properties.


# The names that Spark redacts.
_SECRET_PROPERTY = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)


class SparkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The Spark session for `learn`; keys of the form `"spark.…"` are passed to Spark."""

    master: str = "local[*]"
    properties: dict[str, str] = {}


def properties(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of one Spark property or of a table of them.

    In TOML a key without quotes becomes nested tables, because of its dots.
    """
    if isinstance(value, dict):
        for part, inner in value.items():
            yield from properties(f"{key}.{part}", inner)
    else:
        yield key, value


def property_text(value: Any) -> str | None:
    """Return a property's value as text for Spark; None if the type is not allowed."""
    if not isinstance(value, str | int | float):
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def property_shown(key: str, text: str) -> str:
    """Return a property's value without secrets."""
    return "***" if _SECRET_PROPERTY.search(key) else redact_secrets(text)


# The section [store], with a check of the keys that belong together.


class StoreSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where messages are stored: your PostgreSQL servers, or an embedded one."""

    url: str | None = None
    urls: list[str] = []
    data: str = "tidegate-data"
    # Connections per node for writing messages; 0 means as many as `node.writers`.
    connections: Annotated[int, Meta(ge=0, le=64)] = 0

    @property
    def all_urls(self) -> list[str]:
        """The URLs of all stores; empty means the embedded PostgreSQL."""
        return self.urls or ([self.url] if self.url else [])

    @property
    def data_folder(self) -> Path:
        """The data folder of the embedded PostgreSQL."""
        return Path(self.data).expanduser()


def store_problems(store: dict[str, Any]) -> list[str]:
    """Return the problems of the section as a whole."""
    if store.get("url") and store.get("urls"):
        return ["store.url and store.urls are both set: use one of them"]
    return []


class TelemetrySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is recorded and where. `learn` and `report` read the recorded history."""

    enabled: bool = True
    # A folder, or a location that Arrow supports, such as s3://bucket/lake. None means `lake` in
    # store.data.
    lake: str | None = None
    # The time between samples; each queue and each consumer is a row per sample.
    interval_s: Annotated[Duration, Meta(ge=0.1, le=60.0)] = msgspec.field(
        default=1.0, name="interval"
    )
    # The time between files. A kill of the process loses at most this much history.
    flush_s: Annotated[Duration, Meta(ge=0.2, le=600.0)] = msgspec.field(default=5.0, name="flush")
    # Older hours are deleted; 0s keeps all hours.
    retention_s: Annotated[Duration, Meta(ge=0.0, le=36_500 * 86_400.0)] = msgspec.field(
        default=30 * 86_400.0, name="retention"
    )
    # The approximate number of single requests and messages recorded per second and node; 0 records
    # none.
    requests_per_s: Annotated[int, Meta(ge=0, le=10_000)] = 50
    lifecycles_per_s: Annotated[int, Meta(ge=0, le=10_000)] = 50


# The section [tls], with a check of the keys that belong together.


class TlsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The PEM files a node needs for TLS."""

    certificate: str | None = None
    key: str | None = None
    # The CA that signed the other nodes' certificates; None means the CAs that the machine trusts.
    authority: str | None = None


def tls_problems(tls: dict[str, Any]) -> list[str]:
    """Return the problems of the section as a whole."""
    if bool(tls.get("certificate")) != bool(tls.get("key")):
        return ["tls.certificate and tls.key go together: set both of them"]
    return []
