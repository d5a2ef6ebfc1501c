"""Output of commands: rich tables for terminals, plain lines for pipes, JSON for programs.

A command passes columns and typed cells. On a terminal each column formats its own cells. In a pipe
a table is one line per row with cells separated by tabs, below a line of column names; numbers are
not formatted. JSON is made from the values and never from formatted text.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Self, TextIO, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidegate.cli.command_line import FAILED
from tidegate.core.errors import TidegateError
from tidegate.core.text import escape_control_characters, redact_secrets

if TYPE_CHECKING:
    from tidegate.client.message import Message


_CELL_PADDING = 2
Cell = str | int | float | bool | None
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True)
class Column:
    """A column of a table: its name, and how a terminal shows its cells."""

    name: str
    shown: Callable[[Any], str] = str
    right: bool = False
    style: str = ""
    # The column may be dropped if the terminal is too narrow.
    spare: bool = False

    def on_terminal(self, cell: Cell) -> Text:
        # Use Text instead of markup, because a queue may be called [red].
        return Text(
            "–" if cell is None else escape_control_characters(self.shown(cell)), style=self.style
        )


class Output:
    """The output of one command."""

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self.console = Console()
        self.on_terminal = self.console.is_terminal and not as_json

    def json(self, value: Any, *, one_line: bool = False) -> None:
        """Print one JSON document."""
        encoded = msgspec.json.encode(value)
        self.line((encoded if one_line else msgspec.json.format(encoded, indent=2)).decode())

    def line(self, text: str, style: str = "", *, wrap: bool = False) -> None:
        """Print one line of text.

        Set `wrap` for text of our own, which may be wrapped between words on a terminal. Text from
        users is never wrapped.
        """
        if self.on_terminal:
            self.console.print(Text(text, style=style), soft_wrap=not wrap)
        else:
            print(text, flush=True)

    def report_console(self) -> Console:
        """Return a console for reports; outside a terminal it prints tables without boxes."""
        return self.console if self.on_terminal else _PlainConsole()

    def table(
        self, columns: Sequence[Column], rows: Iterable[Sequence[Cell]], title: str = ""
    ) -> None:
        """Print a table; outside a terminal as lines with tabs."""
        if self.on_terminal:
            self.console.print(terminal_table(columns, rows, title, width=self.console.width))
            return
        print("\t".join(column.name for column in columns))
        for row in rows:
            print("\t".join(_plain(cell) for cell in row))
        sys.stdout.flush()


class _PlainConsole(Console):
    """A console that prints rich tables as lines with tabs."""

    def __init__(self) -> None:
        super().__init__(no_color=True, highlight=False, width=10_000)

    def print(self, *objects: Any, **options: Any) -> None:
        for one in objects:
            if not isinstance(one, Table):
                super().print(one, **(options | {"soft_wrap": True}))
                continue
            if one.title:
                super().print(one.title, soft_wrap=True)
            columns = [list(column.cells) for column in one.columns]
            names = [column.header for column in one.columns]
            for row in [names, *zip(*columns, strict=True)]:
                cells = (self.render_str(c).plain if isinstance(c, str) else str(c) for c in row)
                # Rich consoles convert tabs to spaces, so print directly.
                print("\t".join(cells), file=self.file)


def terminal_table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[Cell]],
    title: str = "",
    *,
    width: int,
) -> Table:
    """Return a rich table, for callers that draw it themselves, such as a live view."""
    texts = [
        [column.on_terminal(cell) for column, cell in zip(columns, row, strict=True)]
        for row in rows
    ]
    chosen = _fitting(columns, texts, width)
    table = Table(
        title=title or None, title_justify="left", title_style="bold", header_style="dim", box=None
    )
    for index in chosen:
        column = columns[index]
        table.add_column(
            column.name, justify="right" if column.right else "left", no_wrap=True, min_width=3
        )
    for row in texts:
        table.add_row(*(row[index] for index in chosen))
    return table


def _fitting(columns: Sequence[Column], rows: Sequence[Sequence[Text]], width: int) -> list[int]:
    """Return the indices of the columns that fit; drop spare columns from the right."""
    widths = [
        max(len(column.name), 3, *(row[index].cell_len for row in rows)) + _CELL_PADDING
        for index, column in enumerate(columns)
    ]
    chosen = list(range(len(columns)))
    for index in reversed(range(len(columns))):
        if sum(widths[one] for one in chosen) <= width:
            break
        if columns[index].spare:
            chosen.remove(index)
    return chosen


def _plain(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:.3f}"
    # Escape tabs and newlines, so that a cell cannot break the table.
    return escape_control_characters(str(cell))


# Message payloads in output: UTF-8 text as text, other bytes as hex or base64.


_PREVIEW_CHARACTERS = 60


def message_json(message: Message) -> dict[str, Any]:
    """Return all fields of a message as JSON values.

    A payload that is not UTF-8 is in `payload_base64` instead of `payload`.
    """
    arrived_at = datetime.fromtimestamp(message.arrived_at, UTC)
    known: dict[str, Any] = {
        "message_id": message.message_id,
        "queue": message.queue,
        "sender": message.sender,
        "receiver": message.receiver,
        "context": message.context,
        "priority": message.priority,
        "arrived_at": arrived_at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "content_type": message.content_type,
        "headers": message.headers,
        "redelivered": message.redelivered,
        "delivery_count": message.delivery_count,
    }
    try:
        known["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        known["payload_base64"] = base64.b64encode(message.payload).decode()
    return known


def preview(payload: bytes, characters_max: int | None = _PREVIEW_CHARACTERS) -> str:
    """Return a payload as safe text for a terminal: control characters escaped, bytes as hex.

    None for `characters_max` returns the whole payload and keeps newlines and tabs.
    """
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        shown = payload if characters_max is None else payload[:characters_max]
        text = f"<{len(payload)} bytes: {shown.hex(' ')}>"
    else:
        keep = "\n\t" if characters_max is None else ""
        text = "".join(c if c.isprintable() or c in keep else _escaped(c) for c in text)
    if characters_max is not None and len(text) > characters_max:
        text = text[: characters_max - 1] + "…"
    return text


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def write(payload: bytes, *, newline: bool) -> None:
    """Write the payload itself to stdout and flush, so that it may then be acknowledged."""
    left = memoryview(payload + b"\n" if newline else payload)
    # With PYTHONUNBUFFERED a write larger than the pipe's capacity may be partial. A message must
    # be written completely before it is acknowledged.
    while left:
        left = left[sys.stdout.buffer.write(left) :]
    sys.stdout.buffer.flush()


# Log output that programs can parse: logfmt or JSON, one line per event.
#
# Code logs an event with its fields through the standard library:
#
#     log.info("replica claimed", extra={"queue": "orders", "epoch": 7})
#
# Passwords are removed from every text. Fields with secret-like names are replaced by `***`. Bytes
# are shown as their length only, so that no payload reaches the log by accident.


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
    text = redact_secrets(str(value))
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


# Handling of SIGINT and SIGTERM: both have the same effect, and do not interrupt cleanup.


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C in this context, so that cleanup runs."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(*_: object) -> None:
    # A shell starts background processes with SIGINT ignored, so raise the exception directly.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM in this context, for cleanup that has its own time limit."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


# Lines of stdin for asyncio, from a file, a pipe or a terminal.
#
# A thread reads stdin, because asyncio cannot read regular files. It is a daemon thread and reads
# the file descriptor directly. The process can therefore exit while the thread still waits for
# input.


_CHUNK_BYTES = 256 * 1024
_LINES_MAX = 1000


async def stdin_lines() -> AsyncIterator[list[bytes]]:
    """Yield lists of lines without newlines, as many lines as are available at once."""
    rest: list[bytes] = []
    while chunk := await _read_chunk(sys.stdin.fileno()):
        first, *others = chunk.split(b"\n")
        rest.append(first)
        if not others:
            continue
        lines = [b"".join(rest), *others[:-1]]
        rest = [others[-1]]
        for start in range(0, len(lines), _LINES_MAX):
            yield lines[start : start + _LINES_MAX]
    if last := b"".join(rest):
        yield [last]


async def _read_chunk(descriptor: int) -> bytes:
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[bytes] = loop.create_future()

    def hand_over(chunk: bytes) -> None:
        if not arrived.cancelled():
            arrived.set_result(chunk)

    def read() -> None:
        chunk = os.read(descriptor, _CHUNK_BYTES)
        loop.call_soon_threadsafe(hand_over, chunk)

    threading.Thread(target=read, daemon=True).start()
    return await arrived


# Helpers for commands that measure.
#
# Progress goes to stderr and the report to stdout. Packages that only measurements need are
# imported when a command needs them. If a package of the `lab` extra is missing, the command names
# it.


QuickOption = Annotated[
    bool,
    typer.Option(
        "--quick",
        help="Run briefly to show that the command works; its figures are not measurements.",
    ),
]


class Report(Protocol):
    """The result of a measurement."""

    def as_json(self) -> Any: ...


class QuickOptions(Protocol):
    """Options of a measurement that also has a quick variant."""

    def __init__(self) -> None: ...

    @classmethod
    def quick(cls) -> Self: ...


Options = TypeVar("Options", bound=QuickOptions)
Measurement = TypeVar("Measurement", bound=Report)


class MeasurementFailed(TidegateError):
    """A measurement failed; the text may have several lines."""

    name = "MEASUREMENT_FAILED"


def print_progress(line: str) -> None:
    """Print a line of progress to stderr."""
    print(line, file=sys.stderr, flush=True)


def names_in(text: str) -> list[str]:
    """Return the names in a comma-separated option."""
    return [name.strip() for name in text.split(",") if name.strip()]


def with_options(options: Any, **given: Any) -> Any:
    """Return the options, with the values from the command line that are not None."""
    import msgspec

    return msgspec.structs.replace(
        options, **{name: value for name, value in given.items() if value is not None}
    )


def run_measurement(
    run: Callable[[Options, Callable[[str], None]], Measurement],
    kind: type[Options],
    *,
    quick: bool,
    **given: Any,
) -> Measurement:
    """Run a measurement with its default or quick options, changed by the given values."""
    options = kind.quick() if quick else kind()
    return run(with_options(options, **given), print_progress)


def print_report(
    report: Report, render: Callable[[Any, Console], None], *, as_json: bool, good: bool
) -> None:
    """Print the report; exit with FAILED if the result is not `good`."""
    output = Output(as_json)
    if as_json:
        output.json(report.as_json())
    else:
        render(report, output.report_console())
    if not good:
        raise typer.Exit(FAILED)
