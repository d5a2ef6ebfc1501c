"""Conversion between payloads and values: bytes, text, or JSON of a type.

Each type gets a decoder when its worker is declared, so a type that cannot be decoded fails there.
msgspec handles JSON of dataclasses, Structs, TypedDicts, lists and so on. A type that contains a
pydantic model is handled by pydantic. This module never imports pydantic, since an application with
such a type has imported it.
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
    """A payload with its content type."""

    payload: bytes
    content_type: str | None


class Undecodable(Exception):
    """The payload is not of the wanted type, so a retry would fail, too."""


def encoded(value: object) -> Encoded:
    """Encode a value: bytes unchanged, text as UTF-8, anything else as JSON.

    A value that JSON cannot represent raises `InvalidValue`.
    """
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
    """Convert a pydantic model inside another value."""
    kind: Any = type(value)
    if _is_pydantic(kind):
        return _pydantic_adapter(kind).dump_python(value, mode="json")
    raise TypeError(f"nobody knows how {kind.__name__} is written")


def decoder_of(wanted: Any) -> Decode:
    """Return a function that decodes payloads to a type; `InvalidValue` if impossible."""
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
        # msgspec itself would fail only when a message is decoded.
        raise InvalidValue(
            f"JSON does not become a {name}, for nobody knows how {unknown.pop()} is written: use "
            "dataclasses, TypedDicts, msgspec or pydantic models, lists, dicts and the like"
        )

    def from_json(payload: bytes) -> Any:
        try:
            return decode(payload)
        except Exception as failure:  # the checks of a model may raise any exception
            raise Undecodable(f"the payload is no {name}: {failure}") from failure

    return from_json


def _unknown_in(info: object, seen: set[int]) -> set[str]:
    """Return the names of types within a type that JSON cannot represent."""
    if id(info) in seen:
        return set()  # a recursive type
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
    """Return whether a type is or contains a pydantic model."""
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
            # pydantic's own text quotes the payload, which must not get into logs.
            found = failure.errors(include_url=False, include_input=False, include_context=False)
            faults = "; ".join(
                f"{one['msg']} at {'.'.join(map(str, one['loc'])) or 'the top'}" for one in found
            )
            raise Undecodable(f"the payload is no {name}: {faults}") from None

    return from_json
