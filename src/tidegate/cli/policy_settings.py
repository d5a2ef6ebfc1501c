"""Policies as text: `lease=30s`, `bytes_max=64MiB`, `ttl=none`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from tidegate.core.complaint import allowed, shown
from tidegate.core.errors import InvalidValue
from tidegate.core.model import Overflow, QueuePolicy
from tidegate.core.prefetch_words import goal_of
from tidegate.core.quantities import DURATION_IS, parse_duration_s, parse_size_bytes

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Of its policy, such as lease=30s, deliveries_max=5, length_max=10000, "
        "overflow=refuse; may be repeated. `tidegate policy QUEUE` lists all.",
    ),
]


def parse_policy(settings: list[str]) -> dict[str, Any]:
    """Return the policy fields in `NAME=VALUE` texts, converted to their types."""
    changes: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        field = _field_called(name.strip())
        if not equals:
            raise InvalidValue(f"{setting!r} is no setting: write {name}=VALUE")
        changes[field] = _value(field, text.strip())
    return changes


def policy_keys() -> set[str]:
    """Return all names of policy keys, with and without the suffix `_s`."""
    fields = QueuePolicy.__struct_fields__
    return {*fields, *(field.removesuffix("_s") for field in fields)}


def _field_called(name: str) -> str:
    for field in QueuePolicy.__struct_fields__:
        if name.replace("-", "_") in (field, field.removesuffix("_s")):
            return field
    known = ", ".join(field.removesuffix("_s") for field in QueuePolicy.__struct_fields__)
    raise InvalidValue(f"a policy has no {name!r}; it has {known}")


def _value(field: str, text: str) -> Any:
    if text.lower() == "none" and field in ("lease_s", "ttl_s", "length_max", "bytes_max"):
        return None
    if field == "prefetch":
        return goal_of(text)
    if field == "dead_letter":
        # An empty text disables dead letters; `default` means the queue's name with a suffix.
        return None if text.lower() == "default" else text
    if field == "bytes_max":
        return parse_size_bytes(text)
    if field.endswith("_s"):
        return _duration_s(field, text)
    if field == "overflow" and text not in list(Overflow):
        raise InvalidValue(f"overflow is one of {', '.join(Overflow)}, not {text!r}")
    try:
        return msgspec.convert(text, _types()[field], strict=False)
    except msgspec.ValidationError:
        must = allowed(_types()[field])
        raise InvalidValue(f"{field} = {shown(text)}: must be {must}") from None


def _duration_s(field: str, text: str) -> float:
    try:
        return parse_duration_s(text)
    except InvalidValue:
        key = field.removesuffix("_s")
        raise InvalidValue(f"{key} = {shown(text)}: must be {DURATION_IS}") from None


def _types() -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(QueuePolicy)}
