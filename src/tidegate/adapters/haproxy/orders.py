"""What has to be ordered so that a running HAProxy has the servers that are wanted.

New servers come in maintenance, get their cookie and then their traffic. Who drains has no weight,
and gets what belongs to its sessions while it keeps them. Then, or when it is no longer wanted, it
goes into maintenance: it answers what it has, and its sessions are elected anew. It can be deleted
when its last connection has gone, which is tried again until it works. A spare has no weight
either, and is told apart by its name in a variable, by which it stands in when nobody else is up.

Only differences are ordered, as long as all that was ordered is seen to be so. An order that was
given up, or whose answer was lost, may have been carried out in whole, in part or not at all: then
nothing is believed. Who is there is looked up, and everybody who is wanted is told everything.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.adapters.haproxy.configuration import BACKEND, STAND_IN
from tidegate.adapters.haproxy.runtime_socket import Rows, RuntimeSocket
from tidegate.adapters.haproxy.server_line import new_server, rests, stand_in, weight_of
from tidegate.core.errors import IoFailure
from tidegate.core.hosting import Backend

_MAINTENANCE = "MAINT"
# The row of all servers together.
_TOTAL = "BACKEND"
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
        # None: that is not known.
        self._stand_in: str | None = stand_in(configured)
        # In maintenance until they can be deleted; of some no more is known than their names.
        self.leaving: set[str] = set()
        # Whether it may have been told something else than is known.
        self._doubted = False

    async def carry_out(self, wanted: Sequence[Backend]) -> None:
        """These and no others; IoFailure with HAProxy's words if it does not have them then."""
        there = self._known.keys() | self.leaving
        if self._doubted:
            there = await self._look_anew()
        commands: list[str] = []
        if (spare := stand_in(wanted)) != self._stand_in:
            # First: whoever drains from now on is none that stands in.
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
        """Forget what was ordered; the names of those that are there."""
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
            # It may be there all the same, otherwise than it is wanted: then it is not added.
            commands = [f"add server {BACKEND}/{new_server(one, among)}", place, concurrency]
            if self._sticky:
                # Gives one to every server that has none yet.
                commands.append(f"enable dynamic-cookie backend {BACKEND}")
            # The weight last: to have none it must be one that serves (server_line.py).
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
        """Who had no connection left, and is no more."""
        commands = [f"del server {BACKEND}/{name}" for name in self.leaving]
        doubted, self._doubted = self._doubted, True
        _, rows = await self._runtime.order_and_look(commands, (BACKEND,))
        self._doubted = doubted
        deleted = [name for name in self.leaving if name not in rows]
        for name in deleted:
            self.leaving.discard(name)
            self._known.pop(name, None)
        return deleted
