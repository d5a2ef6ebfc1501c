"""YAML documents as plain values with the line of every key, read safely from untrusted input.

The reader uses PyYAML's safe loader and refuses aliases, because nested aliases can expand a small
file to any size. It limits size and depth, and refuses a repeated key, which YAML would overwrite
silently.

PyYAML and ruamel.yaml both read safely and report lines. ruamel.yaml can also keep comments, which
an import does not need. PyYAML has type stubs and more maintainers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from tidegate.agreement.lines import Key

TEXT_LETTERS_MAX = 1_000_000
_DEPTH_MAX = 32
# Besides its own errors, the loader leaks errors of its constructors. `!!int ""` raises IndexError,
# `!!bool maybe` raises KeyError, and `!!timestamp soon` raises AttributeError.
_NOT_YAML = (yaml.YAMLError, ValueError, OverflowError, LookupError, AttributeError, TypeError)


class YamlRefused(Exception):
    """The text is not YAML, or contains YAML that the reader refuses."""

    def __init__(self, reason: str, line: int | None) -> None:
        self.reason, self.line = reason, line
        super().__init__(reason)


@dataclass(frozen=True)
class YamlDocument:
    """One document of a YAML text."""

    value: Any
    # Keys are paths; the index of a list item is one step of a path.
    lines: dict[Key, int]


def yaml_documents(text: str) -> list[YamlDocument]:
    """Return all documents of a text; raise `YamlRefused` if it is invalid or refused."""
    if len(text) > TEXT_LETTERS_MAX:
        raise YamlRefused(f"is longer than {TEXT_LETTERS_MAX} letters, which no agreement is", 1)
    try:
        _refuse_growth(text)
        return list(_documents(text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + 1
        raise YamlRefused(f"is not YAML: {error.problem or error.context}", line) from error
    except _NOT_YAML as error:
        raise YamlRefused(f"is not YAML: {error}".replace("\n", " "), None) from error


def _refuse_growth(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise YamlRefused("repeats a part by an alias (*): write it out", line)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEPTH_MAX:
                raise YamlRefused(f"is nested deeper than {_DEPTH_MAX}", line)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _documents(text: str) -> Iterator[YamlDocument]:
    loader = yaml.SafeLoader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None, "there is one, it was asked for"
            lines = dict(_lines(node, ()))
            yield YamlDocument(loader.construct_document(node), lines)
    finally:
        loader.dispose()


def _lines(node: yaml.Node, way: Key) -> Iterator[tuple[Key, int]]:
    yield way, node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        for index, one in enumerate(node.value):
            yield from _lines(one, (*way, str(index)))
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for name, value in node.value:
            line = name.start_mark.line + 1
            if not isinstance(name, yaml.ScalarNode) or name.tag != "tag:yaml.org,2002:str":
                raise YamlRefused("has a key that is no text", line)
            if name.value in seen:
                raise YamlRefused(f"has the key {name.value} twice: leave one out", line)
            seen.add(name.value)
            yield from ((key, where) for key, where in _lines(value, (*way, name.value)) if key)
            # A problem refers to the line of the key, even if the value begins on the next line.
            yield (*way, name.value), line
