"""Log output that programs can parse: logfmt or JSON, one line per event.

Code logs an event with its fields through the standard library:

    log.info("replica claimed", extra={"queue": "orders", "epoch": 7})

Passwords are removed from every text. Fields with secret-like names are replaced by `***`. Bytes
are shown as their length only, so that no payload reaches the log by accident.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import msgspec

from tidegate.core.secrecy import without_secrets

_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
_SECRET_NAME = re.compile(r"password|passwd|secret|token|credential|payload", re.IGNORECASE)
_BARE_WORD = re.compile(r"[^\s\"=\\]+")
_FIELD_CHARACTERS_MAX = 8192


def set_up_logs(
    level: str, log_format: Literal["text", "json"], stream: TextIO | None = None
) -> None:
    """Send all log records of this process to a stream, by default stderr, in the given format."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Debug records of asyncio contain buffer contents.
    logging.getLogger("asyncio").setLevel(max(logging.INFO, root.level))
    if root.level > logging.DEBUG:
        # Tidegate reports broker errors itself. These libraries would report them a second time.
        for library in ("aio_pika", "aiormq"):
            logging.getLogger(library).setLevel(logging.CRITICAL)


class TextLines(logging.Formatter):
    """The format `time=… level=info logger=… event="replica claimed" queue=orders`."""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{key}={_quoted(value)}" for key, value in _fields(record).items())


class JsonLines(logging.Formatter):
    """One JSON object per line, with the same fields as the text format."""

    def format(self, record: logging.LogRecord) -> str:
        return msgspec.json.encode(_fields(record)).decode()


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    at = datetime.fromtimestamp(record.created, UTC)
    fields: dict[str, Any] = {
        "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": _safe(record.getMessage()),
    }
    fields |= _where()
    for key, value in vars(record).items():
        if key not in _STANDARD_ATTRIBUTES:
            fields.setdefault(key, "***" if _SECRET_NAME.search(key) else _safe(value))
    if record.exc_info and record.exc_info[0] is not None:
        fields["error"] = _safe(logging.Formatter().formatException(record.exc_info))
    return fields


def _where() -> dict[str, str]:
    """Return the fields `machine` and `replica`, which the environment may contain."""
    found = {name: os.environ.get(f"TIDEGATE_{name.upper()}") for name in ("machine", "replica")}
    return {name: text for name, text in found.items() if text}


def _safe(value: Any) -> str | int | float | bool | None:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    text = without_secrets(str(value))
    if len(text) > _FIELD_CHARACTERS_MAX:
        text = text[:_FIELD_CHARACTERS_MAX] + "…"
    return text


def _quoted(value: str | int | float | bool | None) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if _BARE_WORD.fullmatch(text) and text.isprintable():
        return text
    # JSON quoting keeps each event on one line, with any text.
    return msgspec.json.encode(text).decode()
