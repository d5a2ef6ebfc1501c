"""The section [spark], in which Spark's own properties may stand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from tidegate.core.secrecy import without_secrets

# What Spark itself hides.
_SECRET_PROPERTY = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)


class SparkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which Spark learns; any `"spark.…" = …` stands beside these."""

    master: str = "local[*]"
    properties: dict[str, str] = {}


def properties(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """One of Spark's own, or several: written without quotes its dots make TOML tables."""
    if isinstance(value, dict):
        for part, inner in value.items():
            yield from properties(f"{key}.{part}", inner)
    else:
        yield key, value


def property_text(value: Any) -> str | None:
    """What Spark is told; None: a property cannot be that."""
    if not isinstance(value, str | int | float):
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def property_shown(key: str, text: str) -> str:
    """A property without secrets."""
    return "***" if _SECRET_PROPERTY.search(key) else without_secrets(text)
