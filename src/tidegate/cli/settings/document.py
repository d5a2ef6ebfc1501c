"""The settings as sections and keys."""

from __future__ import annotations

from typing import Any

import msgspec

from tidegate.cli.settings.settings import QUEUES, SECTIONS, Settings
from tidegate.cli.settings.spark import property_shown
from tidegate.core.prefetch_words import written as goal_written
from tidegate.core.scaling_words import written


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
        document[f"{QUEUES}.{name}"] = written(scaling)
    for name, goal in settings.prefetch_goals.items():
        document.setdefault(f"{QUEUES}.{name}", {})["prefetch"] = goal_written(goal)
    return document
