"""An OpenAPI description in lines of text: paths, parameters and schemas, without words.

Schemas are told in place, so that the names of their classes do not matter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

_METHODS = ("get", "put", "post", "patch", "delete", "head", "options")
_BOUNDS = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "format"),
    *("minLength", "maxLength", "pattern", "minItems", "maxItems", "uniqueItems"),
)


class OpenApi:
    """What a client of the API can rely on."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def lines(self) -> Iterator[str]:
        """Every call, by path."""
        for path, item in sorted(self._document["paths"].items()):
            for method in _METHODS:
                if method in item:
                    yield f"{method.upper()} {path}"
                    yield from (f"    {line}" for line in self._call(item[method]))
                    yield ""

    def _call(self, call: Mapping[str, Any]) -> Iterator[str]:
        for one in call.get("parameters") or ():
            place = f"{one['in']} {one['name']}{'' if one.get('required') else '?'}"
            yield from self._schema(one.get("schema", {}), place, ())
        yield from self._contents("body", call.get("requestBody") or {})
        for code, response in sorted(call["responses"].items()):
            yield from self._contents(code, response)

    def _contents(self, place: str, holder: Mapping[str, Any]) -> Iterator[str]:
        contents = holder.get("content") or {}
        if not contents and place != "body":
            yield f"{place}: no body"
        for media, content in sorted(contents.items()):
            yield from self._schema(content.get("schema") or {}, f"{place} {media} ", ())

    def _schema(self, schema: Any, path: str, inside: tuple[str, ...]) -> Iterator[str]:
        schema = {} if schema is True else schema
        reference = schema.get("$ref")
        if reference in inside:
            yield f"{path}: as {len(inside) - inside.index(reference)} above"
            return
        if reference is not None:
            schema = {**self._found(reference), **schema}
            inside = (*inside, reference)
        choices = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
        if choices:
            yield from self._choices(choices, path, inside, _marks(schema))
            return
        kind = schema.get("type", "any")
        kinds = kind if isinstance(kind, list) else [kind]
        yield f"{path}: {' | '.join(kinds)}{_marks(schema)}"
        required = schema.get("required", ())
        for name, inner in (schema.get("properties") or {}).items():
            yield from self._schema(
                inner, f"{path}.{name}{'' if name in required else '?'}", inside
            )
        if isinstance(schema.get("items"), Mapping):
            yield from self._schema(schema["items"], f"{path}[]", inside)
        for number, inner in enumerate(schema.get("prefixItems") or ()):
            yield from self._schema(inner, f"{path}[{number}]", inside)
        more = schema.get("additionalProperties")
        if isinstance(more, Mapping):
            yield from self._schema(more, f"{path}{{}}", inside)
        elif more is False:
            yield f"{path}: and nothing else"

    def _choices(
        self, choices: list[Any], path: str, inside: tuple[str, ...], marks: str
    ) -> Iterator[str]:
        others = [one for one in choices if one.get("type") != "null"]
        null = " | null" if len(others) < len(choices) else ""
        if len(others) == 1:
            first, *rest = self._schema(others[0], path, inside)
            yield f"{first}{null}{marks}"
            yield from rest
            return
        yield f"{path}: one of {len(others)}{null}{marks}"
        for number, inner in enumerate(others):
            yield from self._schema(inner, f"{path}<{number}>", inside)

    def _found(self, reference: str) -> Mapping[str, Any]:
        found: Any = self._document
        for name in reference.removeprefix("#/").split("/"):
            found = found[name.replace("~1", "/").replace("~0", "~")]
        return dict(found)


def _marks(schema: Mapping[str, Any]) -> str:
    marks = [f"{name} {schema[name]}" for name in _BOUNDS if schema.get(name) is not None]
    if "enum" in schema:
        marks.append(f"of {json.dumps(schema['enum'])}")
    if "const" in schema:
        marks.append(f"is {json.dumps(schema['const'])}")
    if "default" in schema:
        marks.append(f"= {json.dumps(schema['default'])}")
    return "".join(f" {mark}" for mark in marks)
