"""The wire protocol as tables for the documentation, made from the packet classes."""

from __future__ import annotations

import msgspec

from tidegate.core.errors import BY_CODE
from tidegate.wire.connection import TRANSITIONS
from tidegate.wire.packet import Packet
from tidegate.wire.packets.registry import ANSWERS, PUSHES, REQUESTS
from tidegate.wire.packets.run import Run


def requests_table() -> str:
    """Return a table of all requests with answer, mode, right and fields."""
    names = ("method", "packet", "answer", "mode", "right", "fields", "what it asks")
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    for method, packet in sorted(REQUESTS.items()):
        mode = "any" if packet.before_identification else packet.mode.name.lower().replace("_", "-")
        answer = f"0x{packet.answer.method:02x} {packet.answer.__name__}"
        lines.append(
            f"| 0x{method:02x} | {packet.__name__} | {answer} | {mode} | {packet.right or '–'} "
            f"| {_fields(packet)} "
            f"| {_sentence(packet)} |"
        )
    return "\n".join(lines)


def answers_table() -> str:
    """Return a table of all answers and pushes with their fields."""
    lines = ["| method | packet | fields | what it says |", "|" + "---|" * 4]
    for method, packet in sorted({**ANSWERS, **PUSHES}.items()):
        lines.append(
            f"| 0x{method:02x} | {packet.__name__} | {_fields(packet)} | {_sentence(packet)} |"
        )
    return "\n".join(lines)


def run_table() -> str:
    """Return a table of the fields of a run."""
    lines = ["| # | field | type |", "|" + "---|" * 3]
    for number, field in enumerate(msgspec.structs.fields(Run)):
        lines.append(f"| {number} | {field.name} | `{_shown(field.type)}` |")
    return "\n".join(lines)


def errors_table() -> str:
    """Return a table of all error codes with class and meaning."""
    lines = ["| code | name | Python class | what it means |", "|" + "---|" * 4]
    for code, error in sorted(BY_CODE.items()):
        lines.append(f"| {code} | {error.name} | `{error.__name__}` | {_sentence(error)} |")
    return "\n".join(lines)


def states_table() -> str:
    """Return a table of the states of a connection."""
    lines = ["| state | on | becomes |", "|" + "---|" * 3]
    for state, moves in TRANSITIONS.items():
        for happening, following in moves.items():
            lines.append(f"| {state.value} | {happening.value} | {following.value} |")
    return "\n".join(lines)


def _fields(packet: type[Packet]) -> str:
    fields = msgspec.structs.fields(packet)
    return ", ".join(field.name + ("" if field.required else "?") for field in fields) or "–"


def _sentence(thing: type) -> str:
    return (thing.__doc__ or "").strip().partition("\n\n")[0].replace("\n", " ").replace("    ", "")


def _shown(annotation: object) -> str:
    text = getattr(annotation, "__name__", None) if isinstance(annotation, type) else None
    return str(text or annotation).replace("tidegate.core.model.", "").replace("|", "or")
