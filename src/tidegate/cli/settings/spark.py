"""The section [spark], which may contain Spark's own properties."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from tidegate.core.secrecy import without_secrets

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
    return "***" if _SECRET_PROPERTY.search(key) else without_secrets(text)
