"""A key of a section: its unit and its allowed values, from the annotation of the field."""

from __future__ import annotations

from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from tidegate.core.errors import InvalidValue
from tidegate.core.quantities import (
    DURATION_IS,
    SIZE_IS,
    format_duration,
    format_size,
    parse_duration_s,
    parse_size_bytes,
)
from tidegate.core.secrecy import without_secrets


class Quantity:
    """The unit of a field, which decides how its text is parsed and formatted."""


class DurationS(Quantity):
    """A duration, written `30s` and stored in seconds."""


class SizeBytes(Quantity):
    """A size, written `16MiB` and stored in bytes."""


class CommandText:
    """A command with placeholders."""


@dataclass(frozen=True)
class Between:
    """The smallest and the largest allowed value."""

    low: float
    high: float


Duration = Annotated[float, DurationS]
Size = Annotated[int, SizeBytes]


class Field:
    """The allowed values of one key, from the annotation of its field."""

    def __init__(self, annotation: Any) -> None:
        kind, *notes = get_args(annotation) if get_origin(annotation) is Annotated else [annotation]
        # An optional field may be absent, but it cannot be set to None.
        if get_origin(kind) is UnionType:
            (kind,) = (part for part in get_args(kind) if part is not NoneType)
        self._kind: Any = kind
        self._quantity = next((note for note in notes if isinstance(note, type)), None)
        self._between = next((note for note in notes if isinstance(note, Between)), None)

    def convert(self, value: Any) -> Any:
        """Return the value of a TOML key in the field's type; raise an error if it is not allowed.

        The error is `InvalidValue` or `msgspec.ValidationError`.
        """
        if self._quantity is DurationS:
            value = parse_duration_s(msgspec.convert(value, str))
        elif self._quantity is SizeBytes:
            value = parse_size_bytes(msgspec.convert(value, str | int))
        value = msgspec.convert(value, self._kind)
        if self._quantity is CommandText:
            # Imported here: each command reads settings, and few of them have commands.
            from tidegate.fleet.command_template import CommandTemplate

            CommandTemplate(value)
        if self._between and not self._between.low <= value <= self._between.high:
            raise InvalidValue("out of bounds")
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
            return [without_secrets(one) for one in value]
        return without_secrets(value) if isinstance(value, str) else value

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
            return DURATION_IS + self._bounds(format_duration)
        if self._quantity is SizeBytes:
            return SIZE_IS + self._bounds(lambda size: format_size(int(size)))
        if self._kind is int:
            return "a whole number" + self._bounds(lambda number: f"{number:.0f}")
        if self._kind is float:
            return "a number" + self._bounds(lambda number: f"{number:g}")
        if self._kind is bool:
            return "true or false"
        return "a list of texts" if get_origin(self._kind) is list else "a text"

    def _bounds(self, show: Any) -> str:
        if self._between is None:
            return ""
        return f", from {show(self._between.low)} to {show(self._between.high)}"


def fields_of(section: type[msgspec.Struct]) -> dict[str, Field]:
    """Return the keys of a section with their fields."""
    hints = get_type_hints(section, include_extras=True)
    return {
        field.encode_name: Field(hints[field.name]) for field in msgspec.structs.fields(section)
    }
