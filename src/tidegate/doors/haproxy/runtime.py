"""The client of HAProxy's runtime socket: it sends commands and parses the answers.

Theory of operation.

Each request opens a new connection, which ends with the answer. One request may contain several
commands. A request times out after 5 seconds.

- Figures come in the typed format, one line per field. The JSON format is unusable. If a check has
  no text, HAProxy 2.6 breaks off within a server's row ("output buffer too short") and continues
  with the next server.
- A process variable has no typed format. The parser accepts only the exact line of `get var`.
  Anything else is an error, because a count that is read as 0 by mistake would be believed.
- Other answers are text for people and are not parsed. The caller verifies a command by the figures
  that follow it.

`unanswered` counts consecutive requests that HAProxy accepted and did not answer in time: the sign
of a hung process. A refused connection resets it, because then there is no process.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from tidegate.core.errors import Unavailable

_ANSWER_S = 5.0
_ANSWER_BYTES_MAX = 64 << 20
# How many characters of an unreadable answer an error repeats.
_SAID_MAX = 200
_NUMBERS = frozenset((b"s32", b"u32", b"s64", b"u64"))
_SHOW_STAT = "show stat typed"
_SHOW_INFO = "show info typed"
# The fields that the sensor uses, of about a hundred. Parsing all of them for each server would
# take processor time from the application.
_FIELDS = (
    *("pxname", "svname", "status", "check_status", "last_chk", "scur", "qcur", "stot", "req_tot"),
    *("hrsp_1xx", "hrsp_2xx", "hrsp_3xx", "hrsp_4xx", "hrsp_5xx", "hrsp_other"),
    *("econ", "eresp", "srv_abrt", "cli_abrt", "dreq"),
)
# `S.3.1.36.check_status.1:MOP:str:L4OK`: object, proxy, server, position, field, process; nature,
# type and value.
_FIGURE = re.compile(
    rf"^([FBS]\.\d+\.\d+)\.\d+\.({'|'.join(_FIELDS)})\.\d+:[^:]*:(\w+):(.*)$".encode(), re.M
)
# `38.DroppedLogs.1:MCP:u32:0`: position, field, process.
_INFO = re.compile(rb"^\d+\.(\w+)\.\d+:[^:]*:(\w+):(.*)$", re.M)
# `proc.probes: type=sint value=<7>`, the answer to `get var`.
_VARIABLE = re.compile(rb"^(proc\.\w+): type=sint value=<(-?\d+)>$", re.M)
_NO_WORDS = re.compile(rb"^([FBS]\.\d+\.\d+\.|\d+\.\w+\.\d+:)")

Value = int | str
Row = dict[str, Value]
# Fields by name, for each of "FRONTEND", "BACKEND" and the servers' names.
Rows = dict[str, Row]


def number(row: Row, field: str) -> int:
    """Return the number in a field; 0 if the field is missing or not numeric."""
    value = row.get(field, 0)
    return value if isinstance(value, int) else 0


def _value(kind: bytes, value: bytes) -> Value | None:
    if kind in _NUMBERS:
        return int(value) if value.lstrip(b"-").isdigit() else None
    return value.decode(errors="replace")


def rows_in(answer: bytes, proxies: Sequence[str]) -> Rows:
    """Parse the answer to `show stat typed`; keep the rows of these proxies."""
    tables: dict[bytes, Row] = {}
    for about, field, kind, value in _FIGURE.findall(answer):
        if (read := _value(kind, value)) is not None:
            tables.setdefault(about, {})[field.decode()] = read
    ours = [row for row in tables.values() if row.get("pxname") in proxies]
    return {str(row["svname"]): row for row in ours if "svname" in row}


def info_in(answer: bytes) -> Row:
    """Parse the answer to `show info typed`."""
    found = {field.decode(): _value(kind, value) for field, kind, value in _INFO.findall(answer)}
    return {field: value for field, value in found.items() if value is not None}


def variables_in(answer: bytes, names: Sequence[str]) -> Row:
    """Parse answers to `get var`; raise Unavailable if a name has no number."""
    found: Row = {name.decode(): int(value) for name, value in _VARIABLE.findall(answer)}
    if missing := [name for name in names if name not in found]:
        said = words_in(answer)[:_SAID_MAX] or "nothing"
        raise Unavailable(
            f"what HAProxy says of {', '.join(missing)} cannot be read, and nothing is counted by "
            f"it: {said}"
        )
    return {name: found[name] for name in names}


def words_in(answer: bytes) -> str:
    """Return the lines of an answer that are no figures, for people."""
    lines = (line.strip() for line in answer.splitlines() if not _NO_WORDS.match(line))
    return " ".join(line.decode(errors="replace") for line in lines if line)


class RuntimeSocket:
    """Sends commands to one HAProxy; each call opens a connection of its own."""

    def __init__(self, path: str) -> None:
        self.path = path
        # Consecutive commands that HAProxy accepted and did not answer in time.
        self.unanswered = 0

    async def order(self, *commands: str) -> str:
        """Execute commands in order, and return their answers as text for people."""
        return words_in(await self._asked("; ".join(commands)))

    async def order_and_look(
        self, commands: Sequence[str], proxies: Sequence[str]
    ) -> tuple[str, Rows]:
        """Execute commands in order; return their answers, and these proxies' rows after them."""
        answer = await self._asked("; ".join((*commands, _SHOW_STAT)))
        return words_in(answer), rows_in(answer, proxies)

    async def figures(
        self, proxies: Sequence[str], variables: Sequence[str] = ()
    ) -> tuple[Rows, Row]:
        """Return the rows of these proxies and their servers, and the figures of the process.

        The second dictionary also contains the given process variables. They are read just before
        the rows, so the rows include everything that the variables count.
        """
        commands = (*(f"get var {name}" for name in variables), _SHOW_STAT, _SHOW_INFO)
        answer = await self._asked("; ".join(commands))
        return rows_in(answer, proxies), info_in(answer) | variables_in(answer, variables)

    async def info(self) -> Row:
        """Return the figures of the process."""
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
            # No process accepts connections, which is not the same as a process that hangs.
            self.unanswered = 0
            raise Unavailable(f"HAProxy does not answer: {failure}; it is started again") from None
