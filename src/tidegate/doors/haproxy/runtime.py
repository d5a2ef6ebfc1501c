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

from tidegate.core.errors import IoFailure, Unavailable
from tidegate.core.services import Backend
from tidegate.doors.haproxy.configuration import (
    BACKEND,
    BACKUP_VARIABLE,
    backup_server_name,
    is_in_maintenance,
    new_server,
    weight_of,
)

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
_NUMBER_LINE = re.compile(
    rf"^([FBS]\.\d+\.\d+)\.\d+\.({'|'.join(_FIELDS)})\.\d+:[^:]*:(\w+):(.*)$".encode(), re.M
)
# `38.DroppedLogs.1:MCP:u32:0`: position, field, process.
_INFO = re.compile(rb"^\d+\.(\w+)\.\d+:[^:]*:(\w+):(.*)$", re.M)
# `proc.probes: type=sint value=<7>`, the answer to `get var`.
_VARIABLE = re.compile(rb"^(proc\.\w+): type=sint value=<(-?\d+)>$", re.M)
_NO_TEXT = re.compile(rb"^([FBS]\.\d+\.\d+\.|\d+\.\w+\.\d+:)")

Value = int | str
Row = dict[str, Value]
# Fields by name, for each of "FRONTEND", "BACKEND" and the servers' names.
Rows = dict[str, Row]


def counter_value(row: Row, field: str) -> int:
    """Return the number in a field; 0 if the field is missing or not numeric."""
    value = row.get(field, 0)
    return value if isinstance(value, int) else 0


def _value(kind: bytes, value: bytes) -> Value | None:
    if kind in _NUMBERS:
        return int(value) if value.lstrip(b"-").isdigit() else None
    return value.decode(errors="replace")


def parse_rows(answer: bytes, proxies: Sequence[str]) -> Rows:
    """Parse the answer to `show stat typed`; keep the rows of these proxies."""
    tables: dict[bytes, Row] = {}
    for about, field, kind, value in _NUMBER_LINE.findall(answer):
        if (read := _value(kind, value)) is not None:
            tables.setdefault(about, {})[field.decode()] = read
    ours = [row for row in tables.values() if row.get("pxname") in proxies]
    return {str(row["svname"]): row for row in ours if "svname" in row}


def parse_info(answer: bytes) -> Row:
    """Parse the answer to `show info typed`."""
    found = {field.decode(): _value(kind, value) for field, kind, value in _INFO.findall(answer)}
    return {field: value for field, value in found.items() if value is not None}


def parse_variables(answer: bytes, names: Sequence[str]) -> Row:
    """Parse answers to `get var`; raise Unavailable if a name has no number."""
    found: Row = {name.decode(): int(value) for name, value in _VARIABLE.findall(answer)}
    if missing := [name for name in names if name not in found]:
        said = parse_texts(answer)[:_SAID_MAX] or "nothing"
        raise Unavailable(
            f"what HAProxy says of {', '.join(missing)} cannot be read, and nothing is counted by "
            f"it: {said}"
        )
    return {name: found[name] for name in names}


def parse_texts(answer: bytes) -> str:
    """Return the lines of an answer that are no figures, for people."""
    lines = (line.strip() for line in answer.splitlines() if not _NO_TEXT.match(line))
    return " ".join(line.decode(errors="replace") for line in lines if line)


class RuntimeSocket:
    """Sends commands to one HAProxy; each call opens a connection of its own."""

    def __init__(self, path: str) -> None:
        self.path = path
        # Consecutive commands that HAProxy accepted and did not answer in time.
        self.unanswered = 0

    async def order(self, *commands: str) -> str:
        """Execute commands in order, and return their answers as text for people."""
        return parse_texts(await self._asked("; ".join(commands)))

    async def execute_and_read(
        self, commands: Sequence[str], proxies: Sequence[str]
    ) -> tuple[str, Rows]:
        """Execute commands in order; return their answers, and these proxies' rows after them."""
        answer = await self._asked("; ".join((*commands, _SHOW_STAT)))
        return parse_texts(answer), parse_rows(answer, proxies)

    async def figures(
        self, proxies: Sequence[str], variables: Sequence[str] = ()
    ) -> tuple[Rows, Row]:
        """Return the rows of these proxies and their servers, and the figures of the process.

        The second dictionary also contains the given process variables. They are read just before
        the rows, so the rows include everything that the variables count.
        """
        commands = (*(f"get var {name}" for name in variables), _SHOW_STAT, _SHOW_INFO)
        answer = await self._asked("; ".join(commands))
        return parse_rows(answer, proxies), parse_info(answer) | parse_variables(answer, variables)

    async def info(self) -> Row:
        """Return the figures of the process."""
        return parse_info(await self._asked(_SHOW_INFO))

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


# Commands that bring the servers of a running HAProxy to the wanted state.
#
# Theory of operation.
#
# A server in HAProxy passes through these states:
#
#     added      in maintenance; it then gets its cookie, its health check, its state and its weight
#     serving    ready, with a weight above 0
#     spare      ready, with weight 0; serves if `proc.stand_in` names it and no other server is up
#     draining   ready, with weight 0; gets only the requests of its sessions, while it keeps them
#     leaving    in maintenance; finishes its requests, and its sessions go to other servers
#     deleted    after its last connection has closed; the door retries the deletion until then
#
# `RuntimeCommands` remembers the settings that it has ordered (`_known`) and sends only
# differences.
# That is valid as long as the figures after each command confirm the change.
#
# A command that was cancelled, or whose answer was lost, may have been executed in whole, in part
# or not at all. `_doubted` records this. The next call then asks HAProxy which servers exist, and
# sends all settings of all wanted servers.


_MAINTENANCE = "MAINT"
# The row with the totals of all servers.
_TOTAL = "BACKEND"
# One line to the runtime socket must fit into one of HAProxy's buffers.
_COMMANDS_AT_ONCE = 40


class RuntimeCommands:
    """The commands to one running HAProxy; it starts from the servers of its configuration."""

    def __init__(
        self, runtime: RuntimeSocket, configured: Sequence[Backend], *, sticky: bool
    ) -> None:
        self._runtime = runtime
        self._sticky = sticky
        # The last commanded settings and HAProxy weight, by name of the server.
        self._known = {one.name: (one, weight_of(one, configured)) for one in configured}
        # None means that the value is unknown.
        self._stand_in: str | None = backup_server_name(configured)
        # In maintenance until they can be deleted. Some may be known by name only.
        self.leaving: set[str] = set()
        # Whether a command may have changed HAProxy without being recorded.
        self._doubted = False

    async def execute(self, wanted: Sequence[Backend]) -> None:
        """Give HAProxy exactly the `wanted` servers.

        Raises IoFailure, with HAProxy's text, if it does not show them afterwards.
        """
        there = self._known.keys() | self.leaving
        if self._doubted:
            there = await self._reset()
        commands: list[str] = []
        if (spare := backup_server_name(wanted)) != self._stand_in:
            # First the backup: a server that is about to drain must not remain the backup.
            commands += ["experimental-mode on", f"set var {BACKUP_VARIABLE} str({spare})"]
        for one in wanted:
            commands += self._changes(one, weight_of(one, wanted), wanted)
        unwanted = there - {one.name for one in wanted}
        commands += [f"set server {BACKEND}/{name} state maint" for name in unwanted - self.leaving]
        if not commands:
            self._doubted = False
            return
        self._doubted = True
        said = ""
        rows: Rows = {}
        for i in range(0, len(commands), _COMMANDS_AT_ONCE):
            words, rows = await self._runtime.execute_and_read(
                commands[i : i + _COMMANDS_AT_ONCE], (BACKEND,)
            )
            said = f"{said} {words}".strip()
        self._verify(rows, wanted, unwanted, said)
        self._known |= {one.name: (one, weight_of(one, wanted)) for one in wanted}
        self._stand_in = spare
        self.leaving = unwanted
        self._doubted = False

    async def _reset(self) -> set[str]:
        """Discard the recorded settings, and return the names of the existing servers."""
        _, rows = await self._runtime.execute_and_read((), (BACKEND,))
        self._known.clear()
        self._stand_in = None
        self.leaving.clear()
        return rows.keys() - {_TOTAL}

    def _changes(self, one: Backend, weight: int, among: Sequence[Backend]) -> list[str]:
        server = f"{BACKEND}/{one.name}"
        state = f"set server {server} state {'maint' if is_in_maintenance(one) else 'ready'}"
        place = f"set server {server} addr {one.host} port {one.port}"
        share = f"set server {server} weight {weight}"
        concurrency = f"set maxconn server {server} {one.concurrency}"
        if one.name not in self._known:
            # The server may exist with other settings; then `add server` fails, and the other
            # commands set them.
            commands = [f"add server {BACKEND}/{new_server(one, among)}", place, concurrency]
            if self._sticky:
                # Gives a cookie to every server that has none yet.
                commands.append(f"enable dynamic-cookie backend {BACKEND}")
            # The weight comes last: the server must be ready before its weight may become 0
            # (`new_server`).
            return [*commands, f"enable health {server}", state, share]
        before, weight_before = self._known[one.name]
        commands = []
        if (one.host, one.port) != (before.host, before.port):
            commands.append(place)
        if weight != weight_before:
            commands.append(share)
        if one.concurrency != before.concurrency:
            commands.append(concurrency)
        if is_in_maintenance(one) != is_in_maintenance(before) or one.name in self.leaving:
            commands.append(state)
        return commands

    def _verify(self, rows: Rows, wanted: Sequence[Backend], unwanted: set[str], said: str) -> None:
        resting = {one.name: is_in_maintenance(one) for one in wanted} | dict.fromkeys(
            unwanted, True
        )
        for name, is_resting in resting.items():
            status = rows.get(name, {}).get("status")
            if status is None or (status == _MAINTENANCE) != is_resting:
                now = "is missing" if status is None else f"is {status}"
                raise IoFailure(f"HAProxy's server {name} {now}; HAProxy said: {said or 'nothing'}")

    async def delete_leaving(self) -> list[str]:
        """Delete servers in maintenance that have no connection left; return their names."""
        commands = [f"del server {BACKEND}/{name}" for name in self.leaving]
        doubted, self._doubted = self._doubted, True
        _, rows = await self._runtime.execute_and_read(commands, (BACKEND,))
        self._doubted = doubted
        deleted = [name for name in self.leaving if name not in rows]
        for name in deleted:
            self.leaving.discard(name)
            self._known.pop(name, None)
        return deleted
