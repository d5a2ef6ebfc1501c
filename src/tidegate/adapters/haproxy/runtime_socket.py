"""HAProxy's runtime socket: a command, and what it has to say to it.

Figures come in its typed format, a line for each: what it is about, its name, its type, its value.
Its JSON is not to be had: 2.6 breaks off a row in the middle of a server's fields, and goes on with
the next server's, while a check of the first is without words ("output buffer too short"). A
process variable is in no typed answer: its one line of `get var` is read, and what is not exactly
that line is an error, since a count that was taken for 0 would be believed. Of other answers none
is understood: whether an order was carried out is seen in the figures that follow.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from tidegate.core.errors import Unavailable

_ANSWER_S = 5.0
_ANSWER_BYTES_MAX = 64 << 20
# So much of an answer that cannot be read is repeated.
_SAID_MAX = 200
_NUMBERS = frozenset((b"s32", b"u32", b"s64", b"u64"))
_SHOW_STAT = "show stat typed"
_SHOW_INFO = "show info typed"
# Of some hundred fields these are ever looked at: to read all of each server's would take the
# processor from whoever answers requests.
_FIELDS = (
    *("pxname", "svname", "status", "check_status", "last_chk", "scur", "qcur", "stot", "req_tot"),
    *("hrsp_1xx", "hrsp_2xx", "hrsp_3xx", "hrsp_4xx", "hrsp_5xx", "hrsp_other"),
    *("econ", "eresp", "srv_abrt", "cli_abrt", "dreq"),
)
# `S.3.1.36.check_status.1:MOP:str:L4OK`: object, proxy, server, place, field, process; nature,
# type and value.
_FIGURE = re.compile(
    rf"^([FBS]\.\d+\.\d+)\.\d+\.({'|'.join(_FIELDS)})\.\d+:[^:]*:(\w+):(.*)$".encode(), re.M
)
# `38.DroppedLogs.1:MCP:u32:0`: place, field, process.
_INFO = re.compile(rb"^\d+\.(\w+)\.\d+:[^:]*:(\w+):(.*)$", re.M)
# `proc.probes: type=sint value=<7>`, of `get var`.
_VARIABLE = re.compile(rb"^(proc\.\w+): type=sint value=<(-?\d+)>$", re.M)
_NO_WORDS = re.compile(rb"^([FBS]\.\d+\.\d+\.|\d+\.\w+\.\d+:)")

Value = int | str
Row = dict[str, Value]
# By "FRONTEND", "BACKEND" or a server's name, the fields by name.
Rows = dict[str, Row]


def number(row: Row, field: str) -> int:
    """What it counts; 0 if it is not there or no number."""
    value = row.get(field, 0)
    return value if isinstance(value, int) else 0


def _value(kind: bytes, value: bytes) -> Value | None:
    if kind in _NUMBERS:
        return int(value) if value.lstrip(b"-").isdigit() else None
    return value.decode(errors="replace")


def rows_in(answer: bytes, proxies: Sequence[str]) -> Rows:
    """Of an answer to `show stat typed`."""
    tables: dict[bytes, Row] = {}
    for about, field, kind, value in _FIGURE.findall(answer):
        if (read := _value(kind, value)) is not None:
            tables.setdefault(about, {})[field.decode()] = read
    ours = [row for row in tables.values() if row.get("pxname") in proxies]
    return {str(row["svname"]): row for row in ours if "svname" in row}


def info_in(answer: bytes) -> Row:
    """Of an answer to `show info typed`."""
    found = {field.decode(): _value(kind, value) for field, kind, value in _INFO.findall(answer)}
    return {field: value for field, value in found.items() if value is not None}


def variables_in(answer: bytes, names: Sequence[str]) -> Row:
    """Of answers to `get var`, a number for each name; Unavailable if one cannot be read."""
    found: Row = {name.decode(): int(value) for name, value in _VARIABLE.findall(answer)}
    if missing := [name for name in names if name not in found]:
        said = words_in(answer)[:_SAID_MAX] or "nothing"
        raise Unavailable(
            f"what HAProxy says of {', '.join(missing)} cannot be read, and nothing is counted by "
            f"it: {said}"
        )
    return {name: found[name] for name in names}


def words_in(answer: bytes) -> str:
    """What is no figure, for people."""
    lines = (line.strip() for line in answer.splitlines() if not _NO_WORDS.match(line))
    return " ".join(line.decode(errors="replace") for line in lines if line)


class RuntimeSocket:
    """Each order is a connection of its own, which ends with its answer."""

    def __init__(self, path: str) -> None:
        self.path = path
        # Orders in a row that somebody took and did not answer in time.
        self.unanswered = 0

    async def order(self, *commands: str) -> str:
        """Carry out commands, in order; its answers as they came, for people."""
        return words_in(await self._asked("; ".join(commands)))

    async def order_and_look(
        self, commands: Sequence[str], proxies: Sequence[str]
    ) -> tuple[str, Rows]:
        """The same, and what it shows of these proxies after them."""
        answer = await self._asked("; ".join((*commands, _SHOW_STAT)))
        return words_in(answer), rows_in(answer, proxies)

    async def figures(
        self, proxies: Sequence[str], variables: Sequence[str] = ()
    ) -> tuple[Rows, Row]:
        """Of these proxies a row each, and one for each server; and about the process.

        With its variables, as they were just before: what they count is in the rows already.
        """
        commands = (*(f"get var {name}" for name in variables), _SHOW_STAT, _SHOW_INFO)
        answer = await self._asked("; ".join(commands))
        return rows_in(answer, proxies), info_in(answer) | variables_in(answer, variables)

    async def info(self) -> Row:
        """About the process."""
        return info_in(await self._asked(_SHOW_INFO))

    async def _asked(self, command: str) -> bytes:
        try:
            async with asyncio.timeout(_ANSWER_S):
                reader, writer = await asyncio.open_unix_connection(
                    self.path, limit=_ANSWER_BYTES_MAX
                )
                try:
                    writer.write(command.encode() + b"\n")
                    answer = await reader.read()
                    self.unanswered = 0
                    return answer
                finally:
                    writer.close()
        except TimeoutError:
            self.unanswered += 1
            raise Unavailable(f"HAProxy did not answer within {_ANSWER_S:g} s") from None
        except OSError as failure:
            # Nobody is there, which is another matter than to be silent.
            self.unanswered = 0
            raise Unavailable(f"HAProxy does not answer: {failure}; it is started again") from None
