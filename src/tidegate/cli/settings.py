"""Reads the settings from a file and from the environment.

The reader reports all problems at once. Each problem names the source, the key, the value and the
allowed values.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from tidegate.cli.settings.alerts import alerts_complaints
from tidegate.cli.settings.fleet import fleet_complaints
from tidegate.cli.settings.queue_sections import QueueSections
from tidegate.cli.settings.settings import QUEUES, SECTIONS, Settings
from tidegate.cli.settings.spark import properties, property_text
from tidegate.cli.settings.store import store_complaints
from tidegate.cli.settings.tls import tls_complaints
from tidegate.core.complaint import meant, shown
from tidegate.core.errors import InvalidValue, TidegateError

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
        # Keys that were set, with a valid or an invalid value.
        self._written: dict[str, set[str]] = {section: set() for section in SECTIONS}
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
                    f"{file}: {section} = {shown(keys)}: must be a section, written [{section}]"
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
        self._complaints += [
            *store_complaints(self._values["store"]),
            *tls_complaints(self._values["tls"]),
            *fleet_complaints(self._values["fleet"], self._written["fleet"]),
            *alerts_complaints(self._values["alerts"]),
        ]
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
            f"{source}: {section}: there is no such section{meant(section, [*SECTIONS, QUEUES])}"
        )
        return False

    def _take(
        self, source: str, section: str, key: str, value: Any, *, is_text: bool = False
    ) -> None:
        if section == "spark" and key.partition(".")[0] == "spark":
            self._take_properties(source, key, value)
            return
        self._written[section].add(key)
        fields = SECTIONS[section]
        if key not in fields:
            self._complaints.append(
                f"{source}: {section}.{key}: there is no such key{meant(key, fields)}"
            )
            return
        try:
            converted = fields[key].from_text(value) if is_text else fields[key].convert(value)
        except (InvalidValue, msgspec.ValidationError) as wrong:
            why = fields[key].why(wrong)
            self._complaints.append(f"{source}: {section}.{key} = {shown(value)}: {why}")
            return
        self._values[section][key] = converted

    def _take_queue_text(self, source: str, path: str, text: str) -> None:
        """Take a key from a variable such as TIDEGATE_QUEUES__ORDERS__MAX_LOAD.

        TIDEGATE_QUEUES__ORDERS__MAX sets the upper bound of `replicas`.
        """
        name, _, key = path.rpartition("__")
        if name:
            self._queues.take_text(name, key.lower(), text)
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
                    f"{source}: spark.{name} = {shown(one)}: must be a text, a number, "
                    "true or false"
                )
