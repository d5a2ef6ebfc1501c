"""The settings: one TOML file, with the environment above it.

    [node]                       TIDEGATE_NODE__PORT=7412
    port = 7411                  TIDEGATE_STORE__URLS=postgresql://a/x,postgresql://b/x
    lease = "3s"

Each section is a Struct, each key a field, each field says what it allows; everything else here
is derived from that. All complaints come at once, each with where it was read, the key, the value
and what is allowed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import msgspec

from tidegate.core.complaint import meant, shown
from tidegate.core.errors import InvalidValue, TidegateError
from tidegate.core.quantities import (
    DURATION_IS,
    SIZE_IS,
    format_duration,
    format_size,
    parse_duration_s,
    parse_size_bytes,
)
from tidegate.core.secrecy import without_secrets

ENVIRONMENT_PREFIX = "TIDEGATE_"
DEFAULT_FILE = Path("tidegate.toml")
# More than nodes that `up` starts on consecutive ports.
METRICS_PORT_OFFSET = 1000


class Quantity:
    """What a field measures: how its text is read, and how it is shown."""


class DurationS(Quantity):
    """Written `30s`, kept as seconds."""


class SizeBytes(Quantity):
    """Written `16MiB`, kept as bytes."""


@dataclass(frozen=True)
class Between:
    """The least and the most that a field allows."""

    low: float
    high: float


Duration = Annotated[float, DurationS]
Size = Annotated[int, SizeBytes]

# What Spark itself hides.
_SECRET_PROPERTY = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)

_KIB = 1024
_MIB = 1024 * _KIB
_GIB = 1024 * _MIB


class StoreSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where messages are kept: PostgreSQL servers of yours, or else an embedded one."""

    url: str | None = None
    urls: list[str] = []
    data: str = "tidegate-data"
    # Connections of a node that write messages; 0 for as many as it has writers.
    connections: Annotated[int, Between(0, 64)] = 0

    @property
    def all_urls(self) -> list[str]:
        """Every store that is named; none means the embedded one."""
        return self.urls or ([self.url] if self.url else [])

    @property
    def data_folder(self) -> Path:
        """The data folder of the embedded PostgreSQL."""
        return Path(self.data).expanduser()


class NodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a node serves, and its bounds."""

    host: str = "127.0.0.1"
    # The host under which other machines reach the node; needed when it is not what it listens on.
    advertise: str | None = None
    port: Annotated[int, Between(0, 65535)] = 7411
    memory_bytes_max: Annotated[Size, Between(16 * _MIB, 1024 * _GIB)] = msgspec.field(
        default=512 * _MIB, name="memory"
    )
    lease_s: Annotated[Duration, Between(0.2, 3600.0)] = msgspec.field(default=3.0, name="lease")
    heartbeat_s: Annotated[Duration, Between(0.1, 3600.0)] = msgspec.field(
        default=10.0, name="heartbeat"
    )
    handshake_s: Annotated[Duration, Between(0.1, 600.0)] = msgspec.field(
        default=10.0, name="handshake"
    )
    message_bytes_max: Annotated[Size, Between(1, 16 * _MIB)] = 16 * _MIB
    frame_before_login_bytes_max: Annotated[Size, Between(256, _MIB)] = msgspec.field(
        default=8 * _KIB, name="frame_before_login"
    )
    connections_max: Annotated[int, Between(1, 1_000_000)] = 5000
    connections_per_address_max: Annotated[int, Between(1, 1_000_000)] = 5000
    connections_per_user_max: Annotated[int, Between(1, 1_000_000)] = 2000
    # A connection that reads nothing for so long, while there is something for it, is ended.
    slow_reader_s: Annotated[Duration, Between(1.0, 3600.0)] = msgspec.field(
        default=30.0, name="slow_reader"
    )
    # Who needs no login. auto: clients on this machine, until the first user is made.
    login: Literal["auto", "always"] = "auto"
    # How long a consumer may hold a message without a sign of life.
    delivery_lease_s: Annotated[Duration, Between(0.1, 86400.0)] = msgspec.field(
        default=60.0, name="delivery_lease"
    )
    # Connections that write to the store, one commit at a time each.
    writers: Annotated[int, Between(1, 64)] = 1
    # How long acknowledgements that nobody waits for are gathered.
    settle_linger_s: Annotated[Duration, Between(0.0, 1.0)] = msgspec.field(
        default=0.05, name="settle_linger"
    )


class TlsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The files, in PEM, with which a node speaks TLS."""

    certificate: str | None = None
    key: str | None = None
    # Who has signed the other nodes' certificates; default: whom the machine trusts.
    authority: str | None = None


class MetricsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a node shows /metrics, /healthz and /readyz; whoever gets there may read."""

    enabled: bool = True
    host: str = "127.0.0.1"
    # Not set: METRICS_PORT_OFFSET above the node's own, or any free one. 0: any free one.
    port: Annotated[int | None, Between(0, 65535)] = None
    # Queues that are shown; the others are counted.
    queues_max: Annotated[int, Between(1, 100_000)] = 500


class SparkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which Spark learns; any `"spark.…" = …` stands beside these."""

    master: str = "local[*]"
    properties: dict[str, str] = {}


class PipelineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is learned from, and where to."""

    # Not set: `knowledge` in the store's data folder.
    knowledge: str | None = None
    # Agreements: files, or folders of them.
    agreements: list[str] = []

    @property
    def agreement_places(self) -> list[Path]:
        return [Path(place).expanduser() for place in self.agreements]


class TelemetrySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is recorded, and where to: history, from which `learn` and `report` are made."""

    enabled: bool = True
    # A folder, or an address that Arrow knows such as s3://bucket/lake. Not set: `lake` in
    # store.data.
    lake: str | None = None
    # Between samples; each queue and each consumer is a row.
    interval_s: Annotated[Duration, Between(0.1, 60.0)] = msgspec.field(
        default=1.0, name="interval"
    )
    # Between files: so much of the past a kill may cost.
    flush_s: Annotated[Duration, Between(0.2, 600.0)] = msgspec.field(default=5.0, name="flush")
    # Older hours are deleted; 0s keeps them for ever.
    retention_s: Annotated[Duration, Between(0.0, 36_500 * 86_400.0)] = msgspec.field(
        default=30 * 86_400.0, name="retention"
    )
    # About so many single requests and messages a second and node are recorded; 0: none.
    requests_per_s: Annotated[int, Between(0, 10_000)] = 50
    lifecycles_per_s: Annotated[int, Between(0, 10_000)] = 50


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is logged, and how."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that can be set."""

    store: StoreSettings = StoreSettings()
    node: NodeSettings = NodeSettings()
    tls: TlsSettings = TlsSettings()
    metrics: MetricsSettings = MetricsSettings()
    spark: SparkSettings = SparkSettings()
    pipeline: PipelineSettings = PipelineSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    log: LogSettings = LogSettings()

    @property
    def knowledge_folder(self) -> Path:
        """Where what was learned is kept."""
        if self.pipeline.knowledge is not None:
            return Path(self.pipeline.knowledge).expanduser()
        return self.store.data_folder / "knowledge"

    @property
    def lake(self) -> str:
        """Where telemetry is recorded."""
        return self.telemetry.lake or str(self.store.data_folder / "lake")

    def with_data(self, folder: Path | None) -> Settings:
        """The same over another data folder, as `up --data` has it; None changes nothing."""
        if folder is None:
            return self
        store = msgspec.structs.replace(self.store, data=str(folder))
        return msgspec.structs.replace(self, store=store)


class SettingsInvalid(TidegateError):
    """Settings that cannot be used; each line says where, which key, and what is allowed."""

    name: ClassVar[str] = "SETTINGS_INVALID"

    def __init__(self, complaints: list[str]) -> None:
        self.complaints = complaints
        super().__init__("\n".join(complaints))


def load_settings(file: Path | None, environment: Mapping[str, str]) -> Settings:
    """The settings of a file (or `tidegate.toml` here, if there is one) and the environment."""
    if file is None and (named := environment.get("TIDEGATE_CONFIG")):
        file = Path(named)
    if file is None and DEFAULT_FILE.exists():
        file = DEFAULT_FILE
    reader = _Reader()
    if file is not None:
        reader.read_file(file)
    reader.read_environment(environment)
    return reader.settings()


def as_document(settings: Settings) -> dict[str, dict[str, Any]]:
    """Sections and keys as one would write them, without secrets; None is not set."""
    document: dict[str, dict[str, Any]] = {}
    for section, fields in _SECTIONS.items():
        chosen = getattr(settings, section)
        attributes = {field.encode_name: field.name for field in msgspec.structs.fields(chosen)}
        document[section] = {
            key: field.written(getattr(chosen, attributes[key])) for key, field in fields.items()
        }
    for key, value in settings.spark.properties.items():
        hidden = _SECRET_PROPERTY.search(key) is not None
        document["spark"][key] = "***" if hidden else without_secrets(value)
    return document


class _Reader:
    """Gathers values and complaints from one source after the other; later ones win."""

    def __init__(self) -> None:
        self._complaints: list[str] = []
        self._values: dict[str, dict[str, Any]] = {}

    def read_file(self, file: Path) -> None:
        try:
            document = tomllib.loads(file.read_text())
        except OSError as error:
            raise SettingsInvalid([f"{file}: cannot be read: {error.strerror}"]) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SettingsInvalid([f"{file}: is not TOML: {error}"]) from error
        for section, keys in document.items():
            if section in _SECTIONS and not isinstance(keys, dict):
                self._complaints.append(
                    f"{file}: {section} = {shown(keys)}: must be a section, written [{section}]"
                )
            elif self._knows_section(str(file), section):
                for key, value in keys.items():
                    self._take(str(file), section, key, value)

    def read_environment(self, environment: Mapping[str, str]) -> None:
        for variable, text in sorted(environment.items()):
            path = variable.removeprefix(ENVIRONMENT_PREFIX)
            # Names without a double underscore are not about settings: TIDEGATE_CONFIG is one.
            if path == variable or "__" not in path:
                continue
            section, _, key = path.lower().partition("__")
            source = f"environment {variable}"
            if self._knows_section(source, section):
                self._take(source, section, key, text, is_text=True)

    def settings(self) -> Settings:
        store = self._values.get("store", {})
        if store.get("url") and store.get("urls"):
            self._complaints.append("store.url and store.urls are both set: use one of them")
        tls = self._values.get("tls", {})
        if bool(tls.get("certificate")) != bool(tls.get("key")):
            self._complaints.append("tls.certificate and tls.key go together: set both of them")
        if self._complaints:
            raise SettingsInvalid(self._complaints)
        return msgspec.convert(self._values, Settings)

    def _knows_section(self, source: str, section: str) -> bool:
        if section in _SECTIONS:
            return True
        self._complaints.append(
            f"{source}: {section}: there is no such section{meant(section, _SECTIONS)}"
        )
        return False

    def _take(
        self, source: str, section: str, key: str, value: Any, *, is_text: bool = False
    ) -> None:
        if section == "spark" and key.partition(".")[0] == "spark":
            self._take_property(source, key, value)
            return
        fields = _SECTIONS[section]
        if key not in fields:
            self._complaints.append(
                f"{source}: {section}.{key}: there is no such key{meant(key, fields)}"
            )
            return
        try:
            converted = fields[key].from_text(value) if is_text else fields[key].convert(value)
        except (InvalidValue, msgspec.ValidationError):
            self._complaints.append(
                f"{source}: {section}.{key} = {shown(value)}: must be {fields[key].allowed}"
            )
            return
        self._values.setdefault(section, {})[key] = converted

    def _take_property(self, source: str, key: str, value: Any) -> None:
        """One of Spark's own; written without quotes its dots make TOML tables."""
        if isinstance(value, dict):
            for part, inner in value.items():
                self._take_property(source, f"{key}.{part}", inner)
        elif isinstance(value, str | int | float):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            spark = self._values.setdefault("spark", {})
            spark.setdefault("properties", {})[key] = text
        else:
            self._complaints.append(
                f"{source}: spark.{key} = {shown(value)}: must be a text, a number, true or false"
            )


class _Field:
    """What one key allows, read off its annotation."""

    def __init__(self, annotation: Any) -> None:
        kind, *notes = get_args(annotation) if get_origin(annotation) is Annotated else [annotation]
        # What may be left unset is never set to nothing.
        if get_origin(kind) is UnionType:
            (kind,) = (part for part in get_args(kind) if part is not NoneType)
        self._kind: Any = kind
        self._quantity = next((note for note in notes if isinstance(note, type)), None)
        self._between = next((note for note in notes if isinstance(note, Between)), None)

    def convert(self, value: Any) -> Any:
        """The value, if it is one that the field allows."""
        if self._quantity is DurationS:
            value = parse_duration_s(msgspec.convert(value, str))
        elif self._quantity is SizeBytes:
            value = parse_size_bytes(msgspec.convert(value, str | int))
        value = msgspec.convert(value, self._kind)
        if self._between and not self._between.low <= value <= self._between.high:
            raise InvalidValue("out of bounds")
        return value

    def from_text(self, text: str) -> Any:
        """The same for a value of the environment, where everything is text."""
        if get_origin(self._kind) is list:
            return self.convert([part.strip() for part in text.split(",") if part.strip()])
        if self._quantity is None and self._kind in (int, float, bool):
            return self.convert(msgspec.convert(text, self._kind, strict=False))
        return self.convert(text)

    def written(self, value: Any) -> Any:
        """A value as it is written in a file, without secrets."""
        if self._quantity is DurationS:
            return format_duration(value)
        if self._quantity is SizeBytes:
            return format_size(value)
        if isinstance(value, list):
            return [without_secrets(one) for one in value]
        return without_secrets(value) if isinstance(value, str) else value

    @property
    def allowed(self) -> str:
        """What the field allows, in words."""
        if get_origin(self._kind) is Literal:
            return "one of " + ", ".join(get_args(self._kind))
        if self._quantity is DurationS:
            return DURATION_IS + self._bounds(format_duration)
        if self._quantity is SizeBytes:
            return SIZE_IS + self._bounds(lambda size: format_size(int(size)))
        if self._kind is int:
            return "a whole number" + self._bounds(lambda number: f"{number:.0f}")
        if self._kind is bool:
            return "true or false"
        return "a list of texts" if get_origin(self._kind) is list else "a text"

    def _bounds(self, show: Any) -> str:
        if self._between is None:
            return ""
        return f", from {show(self._between.low)} to {show(self._between.high)}"


def _fields_of(section: type[msgspec.Struct]) -> dict[str, _Field]:
    hints = get_type_hints(section, include_extras=True)
    return {
        field.encode_name: _Field(hints[field.name]) for field in msgspec.structs.fields(section)
    }


_SECTIONS: dict[str, dict[str, _Field]] = {
    "store": _fields_of(StoreSettings),
    "node": _fields_of(NodeSettings),
    "tls": _fields_of(TlsSettings),
    "metrics": _fields_of(MetricsSettings),
    # Its properties are whatever Spark knows.
    "spark": {k: f for k, f in _fields_of(SparkSettings).items() if k != "properties"},
    "pipeline": _fields_of(PipelineSettings),
    "telemetry": _fields_of(TelemetrySettings),
    "log": _fields_of(LogSettings),
}
