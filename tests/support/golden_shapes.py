"""The shape of a type or of a JSON document in lines of text, without the names of classes.

    messages[].priority: int = 5
    scaling?.policy: enum(fixed, load) = load

A path says where in the document a value stands: `[]` is each element of a list, `{}` each value of
a map, `[0]` an element of a tuple or the first field of an array. `?` may be null.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
import zlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, Union

import msgspec

_PLAIN = (bool, int, float, str, bytes, bytearray, memoryview, datetime, object, type(None))
# JSON knows one kind of numbers.
_JSON_NAMES = {str: "string", bool: "bool", type(None): "null"}
_LISTS = (list, set, frozenset, tuple)


def shape(kind: Any, path: str = "", default: str = "") -> Iterator[str]:
    """Return lines about a type; a struct or dataclass has one for each field, in order."""
    yield from _shape(kind, path, default, ())


def example(kind: Any, name: str = "") -> Any:
    """A value of a type: always the same one for the same type and name of a field."""
    if hasattr(kind, "__supertype__"):
        return example(kind.__supertype__, name)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return example(arguments[0], name)
    if origin in (Union, types.UnionType):
        # Not null, where something else may stand there.
        return example(next(one for one in arguments if one is not type(None)), name)
    if origin is Literal:
        return arguments[0]
    if origin is tuple and arguments[-1] is not Ellipsis:
        return tuple(example(one, name) for one in arguments)
    if _is_list(origin):
        inner = example(arguments[0], name)
        return (inner,) if origin is tuple else [inner]
    if _is_map(origin):
        return {example(arguments[0], name): example(arguments[1], name)}
    if kind in (bool, int, float, str, bytes):
        return _plain_example(kind, name)
    if kind is datetime:
        return datetime(2026, 3, 14, tzinfo=UTC)
    if kind is Any or kind is object:
        return f"anything of {name}"
    assert isinstance(kind, type), kind
    if issubclass(kind, PurePath):
        return Path("/folder") / name
    if issubclass(kind, enum.Enum):
        return list(kind)[-1]
    if kind is msgspec.Raw:
        return msgspec.Raw(b"\x01")
    hints = typing.get_type_hints(kind, include_extras=True)
    return kind(**{one: example(hints[one], one) for one in _field_names(kind)})


def _plain_example(kind: Any, name: str) -> Any:
    number = zlib.crc32(name.encode()) % 1000
    values = {bool: True, int: number, float: number / 8, str: f"text of {name}", bytes: b"bytes"}
    return values[kind]


def value_text(value: Any) -> str:
    """Return a value as text that is the same in every run."""
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, float):
        return number_text(value)
    if isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(value):
        names = _field_names(type(value))
        return "(" + ", ".join(f"{n}={value_text(getattr(value, n))}" for n in names) + ")"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{value_text(k)}: {value_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(map(value_text, value))) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(value_text, value)) + "]"
    if isinstance(value, PurePath):
        return str(value)
    if value is None or isinstance(value, bool | int | str | bytes):
        return repr(value)
    return "*"


def number_text(value: float) -> str:
    """Return a number with nine digits: a sum in another order changes the last ones."""
    return f"{value:.9g}"


def document_shape(document: Any) -> list[str]:
    """Return lines about a JSON document: each path in it with the types that stand there."""
    found: dict[str, list[str]] = {}
    for path, kind in _walked(document, ""):
        kinds = found.setdefault(path, [])
        if kind not in kinds:
            kinds.append(kind)
    return [f"{path or '.'}: {' | '.join(sorted(kinds))}" for path, kinds in found.items()]


def printed_shapes(kinds: Mapping[str, Any]) -> list[str]:
    """Return lines about what reports of these types print for programs, by their names."""
    lines = []
    for name, kind in kinds.items():
        report = example(kind)
        printed = report.as_json() if hasattr(report, "as_json") else report
        # Some give the document as text.
        plain = msgspec.to_builtins(report if isinstance(printed, str) else printed, str_keys=True)
        lines += [f"== {name}", *document_shape(plain), ""]
    return lines


def _walked(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        if not value:
            yield path, "{}"
        for key, inner in value.items():
            # Numbers of replicas or instances are data, and no names of fields.
            name = "{number}" if str(key).isdigit() else key
            yield from _walked(inner, f"{path}.{name}".removeprefix("."))
    elif isinstance(value, list):
        if not value:
            yield f"{path}[]", "nothing"
        for inner in value:
            yield from _walked(inner, f"{path}[]")
    else:
        yield path, _JSON_NAMES.get(type(value), "number")


def _shape(kind: Any, path: str, default: str, inside: tuple[Any, ...]) -> Iterator[str]:
    kind, notes = _unwrapped(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    said = f"{path or '.'}: "
    if origin in (Union, types.UnionType):
        yield from _union(arguments, notes, path, default, inside)
    elif origin is Literal:
        yield f"{said}{' | '.join(map(repr, arguments))}{notes}{default}"
    elif origin is tuple and arguments[-1] is not Ellipsis:
        if default:
            yield f"{said}array{notes}{default}"
        for number, inner in enumerate(arguments):
            yield from _shape(inner, f"{path}[{number}]", "", inside)
    elif _is_list(origin):
        if default or notes:
            yield f"{said}array{notes}{default}"
        yield from _shape(arguments[0], f"{path}[]", "", inside)
    elif _is_map(origin):
        yield f"{said}map of {_key(arguments[0])}{notes}{default}"
        yield from _shape(arguments[1], f"{path}{{}}", "", inside)
    elif isinstance(kind, type) and issubclass(kind, enum.Enum):
        yield f"{said}enum({', '.join(value_text(one) for one in kind)}){notes}{default}"
    elif _is_record(kind):
        yield from _record(kind, path, default, inside)
    elif isinstance(kind, type) and issubclass(kind, PurePath):
        yield f"{said}path{notes}{default}"
    elif kind is Any or kind in _PLAIN:
        yield f"{said}{'any' if kind in (Any, object) else _name(kind)}{notes}{default}"
    else:
        # A class of another library, or one that is no data.
        yield f"{said}*{notes}{default}"


def _union(
    arguments: Iterable[Any], notes: str, path: str, default: str, inside: tuple[Any, ...]
) -> Iterator[str]:
    parts = [one for one in arguments if one is not type(None)]
    may = "?" if len(parts) < len(tuple(arguments)) else ""
    if len(parts) == 1:
        yield from _shape(parts[0], f"{path}{may}", f"{notes}{default}", inside)
    elif all(_unwrapped(one)[0] in _PLAIN for one in parts):
        names = " | ".join(_name(_unwrapped(one)[0]) for one in parts)
        yield f"{path or '.'}{may}: {names}{notes}{default}"
    else:
        yield f"{path or '.'}{may}: one of {len(parts)}{notes}{default}"
        for number, inner in enumerate(parts):
            tag = _tag(inner)
            yield from _shape(inner, f"{path}<{number if tag is None else tag}>", "", inside)


def _record(kind: Any, path: str, default: str, inside: tuple[Any, ...]) -> Iterator[str]:
    if kind in inside:
        yield f"{path or '.'}: as {len(inside) - inside.index(kind)} above{default}"
        return
    fields = list(_fields(kind))
    if default or not fields:
        yield f"{path or '.'}: {'fields' if fields else 'no fields'}{default}"
    is_array = getattr(getattr(kind, "__struct_config__", None), "array_like", False)
    for number, (name, inner, given) in enumerate(fields):
        place = f"{path}[{number}]{name}" if is_array else f"{path}.{name}".removeprefix(".")
        yield from _shape(inner, place, given, (*inside, kind))


def _fields(kind: Any) -> Iterator[tuple[str, Any, str]]:
    hints = typing.get_type_hints(kind, include_extras=True)
    if issubclass(kind, msgspec.Struct):
        for one in msgspec.structs.fields(kind):
            value = one.default
            if value is msgspec.NODEFAULT and one.default_factory is not msgspec.NODEFAULT:
                value = one.default_factory()
            yield one.encode_name, hints[one.name], _default(value, msgspec.NODEFAULT)
        return
    for field in dataclasses.fields(kind):
        value = field.default
        if value is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        yield field.name, hints[field.name], _default(value, dataclasses.MISSING)


def _default(value: Any, missing: Any) -> str:
    if value is missing:
        return ""
    # The fields of a record say their own defaults.
    is_usual = _is_record(type(value)) and value_text(value) == _usual(type(value))
    return " = as below" if is_usual else f" = {value_text(value)}"


def _usual(kind: Any) -> str | None:
    try:
        return value_text(kind())
    except TypeError:
        return None


def _field_names(kind: Any) -> list[str]:
    if issubclass(kind, msgspec.Struct):
        return list(kind.__struct_fields__)
    return [field.name for field in dataclasses.fields(kind)]


def _is_record(kind: Any) -> bool:
    is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return is_struct or (isinstance(kind, type) and dataclasses.is_dataclass(kind))


def _tag(kind: Any) -> Any:
    config = getattr(kind, "__struct_config__", None)
    return None if config is None else config.tag


def _unwrapped(kind: Any) -> tuple[Any, str]:
    """The type itself, and the bounds that are noted about it."""
    notes: list[str] = []
    while True:
        if typing.get_origin(kind) is Annotated:
            kind, *more = typing.get_args(kind)
            notes += [_bounds(one) for one in more if isinstance(one, msgspec.Meta)]
        elif hasattr(kind, "__supertype__"):
            kind = kind.__supertype__
        else:
            return kind, "".join(notes)


def _bounds(meta: msgspec.Meta) -> str:
    names = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length")
    given = [(name, getattr(meta, name)) for name in names]
    return "".join(f" {name} {value_text(value)}" for name, value in given if value is not None)


def _is_list(origin: Any) -> bool:
    name = getattr(origin, "__name__", "")
    return origin in _LISTS or name in ("Sequence", "Iterable", "Collection", "Set")


def _is_map(origin: Any) -> bool:
    return origin is dict or getattr(origin, "__name__", "") in ("Mapping", "MutableMapping")


def _key(kind: Any) -> str:
    kind, notes = _unwrapped(kind)
    return (_name(kind) if kind in _PLAIN else "|".join(shape(kind))) + notes


def _name(kind: Any) -> str:
    return "null" if kind is type(None) else str(kind.__name__)
