"""The settings: one TOML file, overridden by environment variables.

    [node]                       TIDEGATE_NODE__PORT=7412
    port = 7411                  TIDEGATE_STORE__URLS=postgresql://a/x,postgresql://b/x
    lease = "3s"

    [queues.orders]              TIDEGATE_QUEUES__ORDERS__MAX_LOAD=200
    max_load = 100

Each section is a Struct in a module of its name. Each field is a key, and its annotation says which
values are allowed. The other modules derive everything from these Structs:

    settings        all sections together
    field           the unit and the allowed values of a key
    queue_sections  [queues.NAME]
    reader          reads file and environment, and reports problems
    document        the settings as TOML-like sections and keys
"""

from __future__ import annotations

import json as standard_json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import typer

from tidegate.agreements.document import agreement_of_file, with_agreement
from tidegate.broker.handlers import check_queue_name
from tidegate.cli.options import ConfigOption
from tidegate.cli.output import JsonOption, Output
from tidegate.cli.settings_sections import (
    AlertSettings,
    ConsoleSettings,
    Field,
    FleetSettings,
    LogSettings,
    MetricsSettings,
    NodeSettings,
    PipelineSettings,
    SparkSettings,
    StoreSettings,
    TelemetrySettings,
    TlsSettings,
    alerts_problems,
    fields_of,
    fleet_problems,
    properties,
    property_shown,
    property_text,
    store_problems,
    tls_problems,
)
from tidegate.core.errors import InvalidValue, TidegateError
from tidegate.core.prefetch import PrefetchGoal, parse_goal
from tidegate.core.prefetch import format_goal_keys as goal_written
from tidegate.core.runtime import NodeLimits
from tidegate.core.text import DURATION_IS, redacted_value, suggestion_for
from tidegate.core.topology import (
    DEFAULT_SCALING,
    KEYS,
    Provisioning,
    Scaling,
    format_scaling_keys,
    with_scaling_keys,
)

# The settings as sections and keys.


def as_document(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return sections and keys as written in a file, without secrets; None means not set."""
    document: dict[str, dict[str, Any]] = {}
    for section, fields in SECTIONS.items():
        chosen = getattr(settings, section)
        attributes = {field.encode_name: field.name for field in msgspec.structs.fields(chosen)}
        document[section] = {
            key: field.written(getattr(chosen, attributes[key])) for key, field in fields.items()
        }
    for key, value in settings.spark.properties.items():
        document["spark"][key] = property_shown(key, value)
    for name, scaling in settings.queues.items():
        document[f"{QUEUES}.{name}"] = format_scaling_keys(scaling)
    for name, goal in settings.prefetch_goals.items():
        document.setdefault(f"{QUEUES}.{name}", {})["prefetch"] = goal_written(goal)
    return document


# Reads the settings from a file and from the environment.
#
# The reader reports all problems at once. Each problem names the source, the key, the value and the
# allowed values.


ENVIRONMENT_PREFIX = "TIDEGATE_"
DEFAULT_FILE = Path("tidegate.toml")


class SettingsInvalid(TidegateError):
    """The settings cannot be used; each line names a source, a key and the allowed values."""

    name: ClassVar[str] = "SETTINGS_INVALID"

    def __init__(self, complaints: list[str]) -> None:
        self.complaints = complaints
        super().__init__("\n".join(complaints))


def load_settings(file: Path | None, environment: Mapping[str, str]) -> Settings:
    """Return the settings from a file and the environment, or raise `SettingsInvalid`.

    Without a file, TIDEGATE_CONFIG names it, or `tidegate.toml` in the working directory is read if
    it exists. Environment variables override the file.
    """
    if file is None and (named := environment.get("TIDEGATE_CONFIG")):
        file = Path(named)
    if file is None and DEFAULT_FILE.exists():
        file = DEFAULT_FILE
    reader = _Reader()
    if file is not None:
        reader.read_file(file)
    reader.read_environment(environment)
    return reader.settings()


class _Reader:
    """Collects values and problems from several sources; later sources take precedence."""

    def __init__(self) -> None:
        self._complaints: list[str] = []
        self._values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
        # The sources of the keys that were set, with a valid or an invalid value.
        self._sources: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
        self._queues = QueueSections(self._complaints)

    def read_file(self, file: Path) -> None:
        try:
            document = tomllib.loads(file.read_text())
        except OSError as error:
            raise SettingsInvalid([f"{file}: cannot be read: {error.strerror}"]) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SettingsInvalid([f"{file}: is not TOML: {error}"]) from error
        for section, keys in document.items():
            if section == QUEUES:
                self._queues.take_tables(str(file), keys)
            elif section in SECTIONS and not isinstance(keys, dict):
                self._complaints.append(
                    f"{file}: {section} = {redacted_value(keys)}: must be a section, written "
                    f"[{section}]"
                )
            elif self._knows_section(str(file), section):
                for key, value in keys.items():
                    self._take(str(file), section, key, value)

    def read_environment(self, environment: Mapping[str, str]) -> None:
        for variable, text in sorted(environment.items()):
            path = variable.removeprefix(ENVIRONMENT_PREFIX)
            # Names without a double underscore are not settings keys; TIDEGATE_CONFIG is an
            # example.
            if path == variable or "__" not in path:
                continue
            section, _, key = path.lower().partition("__")
            source = f"environment {variable}"
            if section == QUEUES:
                self._take_queue_text(source, path.partition("__")[2], text)
            elif self._knows_section(source, section):
                self._take(source, section, key, text, is_text=True)
        self._settle_stores(environment)

    def _settle_stores(self, environment: Mapping[str, str]) -> None:
        """Let `store.url` or `store.urls` of the environment replace both keys of the file."""
        for key, other in (("url", "urls"), ("urls", "url")):
            names = [f"{ENVIRONMENT_PREFIX}STORE__{one.upper()}" for one in (key, other)]
            if names[0] in environment and names[1] not in environment:
                self._values["store"].pop(other, None)

    def settings(self) -> Settings:
        for section, problems in {
            "store": store_problems(self._values["store"]),
            "tls": tls_problems(self._values["tls"]),
            "fleet": fleet_problems(self._values["fleet"], self._sources["fleet"].keys()),
            "alerts": alerts_problems(self._values["alerts"]),
        }.items():
            for problem in problems:
                sources = self._sources[section]
                named = [at for key, at in sources.items() if f"{section}.{key}" in problem]
                self._complaints.append(f"{_joined(named or sources.values())}: {problem}")
        chosen = msgspec.convert(self._values, Settings)
        goals = self._queues.prefetch_goals()
        scalings = self._queues.scalings(chosen.fleet)
        if self._complaints:
            raise SettingsInvalid(self._complaints)
        return msgspec.structs.replace(chosen, queues=scalings, prefetch_goals=goals)

    def _knows_section(self, source: str, section: str) -> bool:
        if section in SECTIONS:
            return True
        self._complaints.append(
            f"{source}: {section}: there is no such "
            f"section{suggestion_for(section, [*SECTIONS, QUEUES])}"
        )
        return False

    def _take(
        self, source: str, section: str, key: str, value: Any, *, is_text: bool = False
    ) -> None:
        if section == "spark" and key.partition(".")[0] == "spark":
            self._take_properties(source, key, value)
            return
        self._sources[section][key] = source
        fields = SECTIONS[section]
        if key not in fields:
            self._complaints.append(
                f"{source}: {section}.{key}: there is no such key{suggestion_for(key, fields)}"
            )
            return
        try:
            converted = fields[key].from_text(value) if is_text else fields[key].convert(value)
        except (InvalidValue, msgspec.ValidationError) as wrong:
            why = fields[key].why(wrong)
            self._complaints.append(f"{source}: {section}.{key} = {redacted_value(value)}: {why}")
            return
        self._values[section][key] = converted

    def _take_queue_text(self, source: str, path: str, text: str) -> None:
        """Take a key from a variable such as TIDEGATE_QUEUES__ORDERS__MAX_LOAD.

        TIDEGATE_QUEUES__ORDERS__MAX sets the upper bound of `replicas`.
        """
        name, _, key = path.rpartition("__")
        if name:
            self._queues.take_text(source, name, key.lower(), text)
        else:
            self._complaints.append(
                f"{source}: names no key: write {ENVIRONMENT_PREFIX}QUEUES__NAME__KEY"
            )

    def _take_properties(self, source: str, key: str, value: Any) -> None:
        for name, one in properties(key, value):
            text = property_text(one)
            if text is not None:
                self._values["spark"].setdefault("properties", {})[name] = text
            else:
                self._complaints.append(
                    f"{source}: spark.{name} = {redacted_value(one)}: must be a text, a number, "
                    "true or false"
                )


def _joined(sources: Iterable[str]) -> str:
    """Return the sources of a problem, each once."""
    return ", ".join(dict.fromkeys(sources))


# The table [queues] has one section for each queue.
QUEUES = "queues"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of all sections."""

    store: StoreSettings = StoreSettings()
    node: NodeSettings = NodeSettings()
    tls: TlsSettings = TlsSettings()
    metrics: MetricsSettings = MetricsSettings()
    console: ConsoleSettings = ConsoleSettings()
    spark: SparkSettings = SparkSettings()
    pipeline: PipelineSettings = PipelineSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    log: LogSettings = LogSettings()
    fleet: FleetSettings = FleetSettings()
    alerts: AlertSettings = AlertSettings()
    # By queue name, from the sections [queues.NAME]. A section with only `prefetch` is not in here.
    queues: dict[str, Scaling] = {}
    # By queue name, from the same sections: the goals of automatic prefetch.
    prefetch_goals: dict[str, PrefetchGoal] = {}

    @property
    def knowledge_folder(self) -> Path:
        """The folder of learned models."""
        if self.pipeline.knowledge is not None:
            return Path(self.pipeline.knowledge).expanduser()
        return self.store.data_folder / "knowledge"

    @property
    def lake(self) -> str:
        """The location of recorded telemetry."""
        return self.telemetry.lake or str(self.store.data_folder / "lake")

    def with_data(self, folder: Path | None) -> Settings:
        """Return the settings with another data folder, for `up --data`; None changes nothing."""
        if folder is None:
            return self
        store = msgspec.structs.replace(self.store, data=str(folder))
        return msgspec.structs.replace(self, store=store)


SECTIONS: dict[str, dict[str, Field]] = {
    "store": fields_of(StoreSettings),
    "node": fields_of(NodeSettings),
    "tls": fields_of(TlsSettings),
    "metrics": fields_of(MetricsSettings),
    "console": fields_of(ConsoleSettings),
    # Properties have arbitrary names, which Spark defines.
    "spark": {k: f for k, f in fields_of(SparkSettings).items() if k != "properties"},
    "pipeline": fields_of(PipelineSettings),
    "telemetry": fields_of(TelemetrySettings),
    "log": fields_of(LogSettings),
    "fleet": fields_of(FleetSettings),
    "alerts": fields_of(AlertSettings),
}


# The command `tidegate config`.


_BARE = re.compile(r"[A-Za-z0-9_-]+")


def register(app: typer.Typer) -> None:
    app.command("config")(config)


def config(config: ConfigOption = None, json: JsonOption = False) -> None:
    """Show the settings in effect as TOML, without secrets.

    They come from the defaults, the settings file and the environment, in that order.

    Example: `TIDEGATE_NODE__PORT=7500 tidegate config`
    """
    output = Output(json)
    document = as_document(load_settings(config, os.environ))
    if json:
        output.json(document)
        return
    for number, (section, keys) in enumerate(document.items()):
        if number:
            output.line("")
        output.line(f"[{_title(section)}]", style="bold")
        for key, value in keys.items():
            if value is None:
                output.line(f"# {key} is not set", style="dim")
            else:
                # Spark's properties have dots in their names.
                output.line(f"{_toml(key) if '.' in key else key} = {_toml(value)}")


def _title(section: str) -> str:
    """Return the title of a section, with the queue name quoted where TOML needs it."""
    head, dot, name = section.partition(".")
    return f"{head}.{_toml(name)}" if dot and not _BARE.fullmatch(name) else section


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    # JSON texts, numbers and lists of texts are valid TOML, too.
    return standard_json.dumps(value, ensure_ascii=False)


# The sections [queues.NAME]: the scaling settings and the prefetch goal of each queue.


class QueueSections:
    """The values of all queue sections; it appends problems to the reader's list."""

    def __init__(self, complaints: list[str]) -> None:
        self._complaints = complaints
        self._sections: dict[str, dict[str, Any]] = {}
        self._sources: dict[str, list[str]] = {}

    def take_tables(self, source: str, tables: Any) -> None:
        """Take the sections of a file, such as [queues.orders] or [queues."orders.eu"]."""
        if not isinstance(tables, dict):
            self._complaints.append(
                f"{source}: {QUEUES} = {redacted_value(tables)}: must be sections, written "
                f"[{QUEUES}.NAME]"
            )
            return
        for name, keys in tables.items():
            if isinstance(keys, dict):
                if isinstance(keys.get("agreement"), str):
                    keys = {**keys, "agreement": str(Path(source).parent / keys["agreement"])}
                self._sections.setdefault(name, {}).update(keys)
                self._sources.setdefault(name, []).append(source)
            else:
                self._complaints.append(
                    f"{source}: {QUEUES}.{name} = {redacted_value(keys)}: must be a section, "
                    f"written "
                    f"[{QUEUES}.{name}]"
                )

    def take_text(self, source: str, name: str, key: str, text: str) -> None:
        """Take one key from the environment, where every value is text."""
        name = self._called(name)
        keys = self._sections.setdefault(name, {})
        self._sources.setdefault(name, []).append(source)
        if key in ("min", "max") and isinstance(keys.get("replicas"), dict):
            keys["replicas"] = {**keys["replicas"], key: _number_or(text)}
        else:
            keys[key] = text

    def _called(self, name: str) -> str:
        """Return the queue that a name from the environment means; queues of the file first.

        Environment variables are usually in capitals, so case is ignored.
        """
        if name in self._sections:
            return name
        lowered = name.lower()
        return next((known for known in self._sections if known.lower() == lowered), lowered)

    def prefetch_goals(self) -> dict[str, PrefetchGoal]:
        """Return the prefetch goals of the sections, by queue name."""
        goals = {
            name: self._goal(name, keys["prefetch"])
            for name, keys in self._sections.items()
            if "prefetch" in keys
        }
        return {name: goal for name, goal in goals.items() if goal is not None}

    def _goal(self, name: str, wanted: Any) -> PrefetchGoal | None:
        try:
            check_queue_name(name, NodeLimits())
            return parse_goal(wanted)
        except TidegateError as wrong:
            self._complain(name, wrong)
            return None

    def scalings(self, fleet: FleetSettings) -> dict[str, Scaling]:
        """Return the scaling settings by queue name, without sections that only set `prefetch`."""
        return {
            name: self._scaling(
                name, {key: value for key, value in keys.items() if key != "prefetch"}, fleet
            )
            for name, keys in self._sections.items()
            if set(keys) != {"prefetch"}
        }

    def _scaling(self, name: str, keys: dict[str, Any], fleet: FleetSettings) -> Scaling:
        """Return a section's scaling settings; [fleet] gives the defaults for machines."""
        of_fleet = msgspec.structs.replace(
            DEFAULT_SCALING,
            slots_per_machine=fleet.slots,
            warm=fleet.warm,
            provisioning=Provisioning(fleet.provisioning),
        )
        try:
            check_queue_name(name, NodeLimits())
            _check_durations(keys)
            if isinstance(keys.get("agreement"), str):
                of_fleet = _with_agreement(name, keys, of_fleet)
                keys = {key: value for key, value in keys.items() if key != "agreement"}
            return with_scaling_keys(of_fleet, keys)
        except TidegateError as wrong:
            self._complain(name, wrong)
            return of_fleet

    def _complain(self, name: str, wrong: TidegateError) -> None:
        sources = _joined(self._sources[name])
        self._complaints.append(f"{sources}: {QUEUES}.{name or redacted_value(name)}: {wrong}")


def _check_durations(keys: dict[str, Any]) -> None:
    """Raise `InvalidValue` for a duration without a unit, unless its key has one: `max_wait_s`."""
    for key, value in keys.items():
        named = key.replace("-", "_")
        has_unit = KEYS.get(named, named) == named
        if not has_unit and isinstance(value, int | float):
            raise InvalidValue(f"{key} = {redacted_value(value)}: must be {DURATION_IS}")


def _with_agreement(name: str, keys: dict[str, Any], before: Scaling) -> Scaling:
    """Return the scaling settings with the agreement from the file that `agreement` names."""
    agreement, text = agreement_of_file(Path(keys["agreement"]).expanduser(), name)
    return with_agreement(before, agreement, text)


def _number_or(text: str) -> int | str:
    return int(text) if text.isdigit() else text
