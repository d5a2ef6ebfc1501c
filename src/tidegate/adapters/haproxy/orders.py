"""Commands that bring the servers of a running HAProxy to the wanted state.

Theory of operation.

A server in HAProxy passes through these states:

    added      in maintenance; it then gets its cookie, its health check, its state and its weight
    serving    ready, with a weight above 0
    spare      ready, with weight 0; serves if `proc.stand_in` names it and no other server is up
    draining   ready, with weight 0; gets only the requests of its sessions, while it keeps them
    leaving    in maintenance; finishes its requests, and its sessions go to other servers
    deleted    after its last connection has closed; the door retries the deletion until then

`RuntimeCommands` remembers the settings that it has ordered (`_known`) and sends only differences.
That is valid as long as the figures after each command confirm the change.

A command that was cancelled, or whose answer was lost, may have been executed in whole, in part or
not at all. `_doubted` records this. The next call then asks HAProxy which servers exist, and sends
all settings of all wanted servers.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.adapters.haproxy.configuration import BACKEND, STAND_IN
from tidegate.adapters.haproxy.runtime_socket import Rows, RuntimeSocket
from tidegate.adapters.haproxy.server_line import new_server, rests, stand_in, weight_of
from tidegate.core.errors import IoFailure
from tidegate.core.hosting import Backend

_MAINTENANCE = "MAINT"
# The row with the totals of all servers.
_TOTAL = "BACKEND"
# One line to the runtime socket must fit into one of HAProxy's buffers.
_COMMANDS_AT_ONCE = 40


class Orders:
    """The commands to one running HAProxy; it starts from the servers of its configuration."""

    def __init__(
        self, runtime: RuntimeSocket, configured: Sequence[Backend], *, sticky: bool
    ) -> None:
        self._runtime = runtime
        self._sticky = sticky
        # The last commanded settings and HAProxy weight, by name of the server.
        self._known = {one.name: (one, weight_of(one, configured)) for one in configured}
        # None means that the value is unknown.
        self._stand_in: str | None = stand_in(configured)
        # In maintenance until they can be deleted. Some may be known by name only.
        self.leaving: set[str] = set()
        # Whether a command may have changed HAProxy without being recorded.
        self._doubted = False

    async def carry_out(self, wanted: Sequence[Backend]) -> None:
        """Give HAProxy exactly the `wanted` servers.

        Raises IoFailure, with HAProxy's text, if it does not show them afterwards.
        """
        there = self._known.keys() | self.leaving
        if self._doubted:
            there = await self._look_anew()
        commands: list[str] = []
        if (spare := stand_in(wanted)) != self._stand_in:
            # First the backup: a server that is about to drain must not remain the backup.
            commands += ["experimental-mode on", f"set var {STAND_IN} str({spare})"]
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
            words, rows = await self._runtime.order_and_look(
                commands[i : i + _COMMANDS_AT_ONCE], (BACKEND,)
            )
            said = f"{said} {words}".strip()
        self._verify(rows, wanted, unwanted, said)
        self._known |= {one.name: (one, weight_of(one, wanted)) for one in wanted}
        self._stand_in = spare
        self.leaving = unwanted
        self._doubted = False

    async def _look_anew(self) -> set[str]:
        """Discard the recorded settings, and return the names of the existing servers."""
        _, rows = await self._runtime.order_and_look((), (BACKEND,))
        self._known.clear()
        self._stand_in = None
        self.leaving.clear()
        return rows.keys() - {_TOTAL}

    def _changes(self, one: Backend, weight: int, among: Sequence[Backend]) -> list[str]:
        server = f"{BACKEND}/{one.name}"
        state = f"set server {server} state {'maint' if rests(one) else 'ready'}"
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
        if rests(one) != rests(before) or one.name in self.leaving:
            commands.append(state)
        return commands

    def _verify(self, rows: Rows, wanted: Sequence[Backend], unwanted: set[str], said: str) -> None:
        resting = {one.name: rests(one) for one in wanted} | dict.fromkeys(unwanted, True)
        for name, is_resting in resting.items():
            status = rows.get(name, {}).get("status")
            if status is None or (status == _MAINTENANCE) != is_resting:
                now = "is missing" if status is None else f"is {status}"
                raise IoFailure(f"HAProxy's server {name} {now}; HAProxy said: {said or 'nothing'}")

    async def delete_leaving(self) -> list[str]:
        """Delete servers in maintenance that have no connection left; return their names."""
        commands = [f"del server {BACKEND}/{name}" for name in self.leaving]
        doubted, self._doubted = self._doubted, True
        _, rows = await self._runtime.order_and_look(commands, (BACKEND,))
        self._doubted = doubted
        deleted = [name for name in self.leaving if name not in rows]
        for name in deleted:
            self.leaving.discard(name)
            self._known.pop(name, None)
        return deleted
