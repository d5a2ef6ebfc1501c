"""What has to be ordered so that a running HAProxy has the servers that are wanted.

New servers come in maintenance, get their cookie and then their traffic. Who drains has no weight,
and gets what belongs to its sessions while it keeps them. Then, or when it is no longer wanted, it
goes into maintenance: it answers what it has, and its sessions are elected anew. It can be deleted
when its last connection has gone, which is tried again until it works.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.adapters.haproxy.configuration import BACKEND
from tidegate.adapters.haproxy.runtime_socket import Rows, RuntimeSocket
from tidegate.adapters.haproxy.server_line import new_server, rests, weight_of
from tidegate.core.errors import IoFailure
from tidegate.core.hosting import Backend

_MAINTENANCE = "MAINT"
# One line to its socket must fit into one of its buffers.
_COMMANDS_AT_ONCE = 40


class Orders:
    """What one running HAProxy was told; it begins with what its configuration says."""

    def __init__(
        self, runtime: RuntimeSocket, configured: Sequence[Backend], *, sticky: bool
    ) -> None:
        self._runtime = runtime
        self._sticky = sticky
        # As they were ordered, with the weight that HAProxy was told.
        self._known = {one.name: (one, weight_of(one, configured)) for one in configured}
        self.leaving: set[str] = set()

    async def carry_out(self, wanted: Sequence[Backend]) -> None:
        """These and no others; IoFailure with HAProxy's words if it does not have them then."""
        commands: list[str] = []
        for one in wanted:
            commands += self._changes(one, weight_of(one, wanted), wanted)
        unwanted = self._known.keys() - {one.name for one in wanted}
        commands += [f"set server {BACKEND}/{name} state maint" for name in unwanted - self.leaving]
        if not commands:
            return
        said = ""
        rows: Rows = {}
        for i in range(0, len(commands), _COMMANDS_AT_ONCE):
            words, rows = await self._runtime.order_and_look(
                commands[i : i + _COMMANDS_AT_ONCE], (BACKEND,)
            )
            said = f"{said} {words}".strip()
        self._verify(rows, wanted, unwanted, said)
        self._known |= {one.name: (one, weight_of(one, wanted)) for one in wanted}
        self.leaving = unwanted

    def _changes(self, one: Backend, weight: int, among: Sequence[Backend]) -> list[str]:
        server = f"{BACKEND}/{one.name}"
        state = f"set server {server} state {'maint' if rests(one) else 'ready'}"
        if one.name not in self._known:
            commands = [f"add server {BACKEND}/{new_server(one, among)}"]
            if self._sticky:
                # Gives one to every server that has none yet.
                commands.append(f"enable dynamic-cookie backend {BACKEND}")
            return [*commands, f"enable health {server}", state]
        before, weight_before = self._known[one.name]
        commands = []
        if (one.host, one.port) != (before.host, before.port):
            commands.append(f"set server {server} addr {one.host} port {one.port}")
        if weight != weight_before:
            commands.append(f"set server {server} weight {weight}")
        if one.concurrency != before.concurrency:
            commands.append(f"set maxconn server {server} {one.concurrency}")
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
        """Who had no connection left, and is no more."""
        commands = [f"del server {BACKEND}/{name}" for name in self.leaving]
        _, rows = await self._runtime.order_and_look(commands, (BACKEND,))
        deleted = [name for name in self.leaving if name not in rows]
        for name in deleted:
            self.leaving.discard(name)
            del self._known[name]
        return deleted
