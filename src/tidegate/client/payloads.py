"""Payloads as values: bytes, text, or JSON in the form of a type.

Strategy: a type becomes a decoder once, when a worker is declared, so a type that cannot be
decoded is refused there. JSON is msgspec's affair (dataclass, Struct, TypedDict, list, …) unless
a pydantic model is in the type; pydantic is never imported here, for whoever has such a model has
imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, get_args

import msgspec

from tidegate.core.errors import InvalidValue

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"

Decode = Callable[[bytes], Any]


class Encoded(NamedTuple):
    """A value as it travels."""

    payload: bytes
    content_type: str | None


class Undecodable(Exception):
    """These bytes are not of the wanted type, and never will be."""


def encoded(value: object) -> Encoded:
    """Bytes as they are, text as UTF-8, anything else as JSON."""
    if isinstance(value, bytes | bytearray | memoryview):
        return Encoded(bytes(value), None)
    if isinstance(value, str):
        return Encoded(value.encode(), TEXT)
    kind: Any = type(value)
    if _is_pydantic(kind):
        return Encoded(_pydantic_adapter(kind).dump_json(value), JSON)
    try:
        return Encoded(msgspec.json.encode(value, enc_hook=_plain), JSON)
    except (TypeError, msgspec.MsgspecError) as failure:
        raise InvalidValue(
            f"a {type(value).__name__} cannot be written as JSON: {failure}. Give bytes, a string, "
            "or a value of dataclasses, msgspec or pydantic models, lists, dicts and the like"
        ) from None


def _plain(value: Any) -> Any:
    """A pydantic model inside something else."""
    kind: Any = type(value)
    if _is_pydantic(kind):
        return _pydantic_adapter(kind).dump_python(value, mode="json")
    raise TypeError(f"nobody knows how {kind.__name__} is written")


def decoder_of(wanted: Any) -> Decode:
    """How payloads become values of a type; InvalidValue when they cannot."""
    if wanted is bytes:
        return bytes
    if wanted is str:
        return _text
    name = getattr(wanted, "__name__", str(wanted))
    if _mentions_pydantic(wanted):
        return _pydantic_decoder(wanted, name)
    try:
        decode = msgspec.json.Decoder(wanted).decode
        unknown = _unknown_in(msgspec.inspect.type_info(wanted), set())
    except (TypeError, ValueError) as failure:
        raise InvalidValue(f"JSON does not become a {name}: {failure}") from None
    if unknown:
        # msgspec would find out message by message.
        raise InvalidValue(
            f"JSON does not become a {name}, for nobody knows how {unknown.pop()} is written: use "
            "dataclasses, TypedDicts, msgspec or pydantic models, lists, dicts and the like"
        )

    def from_json(payload: bytes) -> Any:
        try:
            return decode(payload)
        except Exception as failure:  # a model's own checks raise what they like
            raise Undecodable(f"the payload is no {name}: {failure}") from failure

    return from_json


def _unknown_in(info: object, seen: set[int]) -> set[str]:
    """Types within a type that JSON has no form for."""
    if id(info) in seen:
        return set()  # a type that holds itself
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.CustomType):
        return {getattr(info.cls, "__name__", str(info.cls))}
    parts: list[object] = []
    if isinstance(info, tuple | list):
        parts = list(info)
    elif isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field):
        parts = [getattr(info, name) for name in info.__struct_fields__]
    return {name for part in parts for name in _unknown_in(part, seen)}


def _text(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError as failure:
        raise Undecodable(f"the payload is no text: {failure}") from None


def _is_pydantic(wanted: Any) -> bool:
    return hasattr(wanted, "__pydantic_validator__")


def _mentions_pydantic(wanted: Any) -> bool:
    """A model, or a list, union, … of them."""
    return _is_pydantic(wanted) or any(_mentions_pydantic(part) for part in get_args(wanted))


@cache
def _pydantic_adapter(wanted: Any) -> Any:
    return sys.modules["pydantic"].TypeAdapter(wanted)


def _pydantic_decoder(wanted: Any, name: str) -> Decode:
    validate = _pydantic_adapter(wanted).validate_json
    invalid = sys.modules["pydantic"].ValidationError

    def from_json(payload: bytes) -> Any:
        try:
            return validate(payload)
        except invalid as failure:
            # Its own text quotes the payload, which has no business in logs.
            found = failure.errors(include_url=False, include_input=False, include_context=False)
            faults = "; ".join(
                f"{one['msg']} at {'.'.join(map(str, one['loc'])) or 'the top'}" for one in found
            )
            raise Undecodable(f"the payload is no {name}: {faults}") from None

    return from_json
