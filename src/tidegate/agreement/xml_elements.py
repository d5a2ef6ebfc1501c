"""XML elements with their lines, read safely from untrusted input.

The parser is expat of the standard library. A DOCTYPE is refused: without one there are no entities
to expand ("billion laughs") and no external references to fetch. Size and depth are limited.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from xml.parsers import expat

# Far larger than any agreement written by hand, and small enough to hold in memory.
TEXT_BYTES_MAX = 1_000_000
_DEPTH_MAX = 16


@dataclass
class Element:
    """One element: its line, attributes, children and text."""

    name: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)
    text: str = ""


class XmlRefused(Exception):
    """The content is not XML, or contains XML that the reader refuses."""

    def __init__(self, reason: str, line: int | None) -> None:
        self.reason, self.line = reason, line
        super().__init__(reason)


def element_tree(content: bytes) -> Element:
    """Return the root element of a document; raise `XmlRefused` if it is invalid or refused."""
    if len(content) > TEXT_BYTES_MAX:
        raise XmlRefused(f"is larger than {TEXT_BYTES_MAX} bytes, which no agreement is", 1)
    parser = expat.ParserCreate()
    parser.buffer_text = True
    top = Element("", {}, 0)
    stack = [top]

    def begin(name: str, attributes: dict[str, str]) -> None:
        line = parser.CurrentLineNumber
        if len(stack) > _DEPTH_MAX:
            raise XmlRefused(f"is nested deeper than {_DEPTH_MAX} elements", line)
        element = Element(name, attributes, line)
        stack[-1].children.append(element)
        stack.append(element)

    def end(_name: str) -> None:
        stack.pop()

    def characters(text: str) -> None:
        stack[-1].text += text

    def refuse(*_said: Any) -> None:
        raise XmlRefused(
            "has a DOCTYPE, which may define entities without end: leave it out",
            parser.CurrentLineNumber,
        )

    parser.StartElementHandler = begin
    parser.EndElementHandler = end
    parser.CharacterDataHandler = characters
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise XmlRefused(f"is not XML: {expat.ErrorString(error.code)}", error.lineno) from error
    except (LookupError, ValueError) as error:
        raise XmlRefused(f"is not XML: {error}", None) from error
    return top.children[0]
