"""Provider `command`: the user's own commands boot, halt and list machines.

    boot = "ssh {host} systemd-run --unit tidegate-{id} tidegate machine --id {id} --slots {slots}"
    halt = "ssh {host} systemctl stop tidegate-{id}"
    list = "inventory --tag {fleet}"

`list` prints one machine per line, as JSON (`{"id": 7, "state": "running", "host": "blue"}`) or as
words (`7 running blue`), or all of them as one JSON list. Any other output is an error and not an
empty list: otherwise running machines would look lost.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from tidegate.core.complaint import shown
from tidegate.core.errors import Unavailable
from tidegate.core.fleet import Machine
from tidegate.fleet.bounded_command import run_command
from tidegate.fleet.command_template import CommandTemplate

# Our states, and the words that clouds use for them.
STATES = {
    "booting": ("booting", "pending", "starting", "provisioning", "creating", "staging"),
    "running": ("running", "up", "active", "ready"),
    "halted": (
        *("halted", "halting", "stopped", "stopping", "terminated", "terminating"),
        *("shutting-down", "deleted", "exited", "succeeded", "failed", "inactive"),
    ),
}
# How command lines print a missing host.
_NO_HOST = ("", "-", "<none>", "none", "null")
_STATE_OF = {word: state for state, words in STATES.items() for word in words}


class CommandProvider:
    """Machines that the user's commands create."""

    name = "command"

    def __init__(
        self,
        boot: CommandTemplate,
        halt: CommandTemplate,
        listing: CommandTemplate,
        *,
        fleet: str = "tidegate",
        store_urls: Sequence[str] = (),
        folder: Path | None = None,
        boot_deadline_s: float = 120.0,
        halt_deadline_s: float = 60.0,
        list_deadline_s: float = 15.0,
    ) -> None:
        self._boot = boot
        self._halt = halt
        self._list = listing
        self._fleet = fleet
        self._deadlines_s = {
            "boot": boot_deadline_s,
            "halt": halt_deadline_s,
            "list": list_deadline_s,
        }
        self._store_urls = store_urls
        self._folder = folder
        self._store_url_file: Path | None = None
        # One command per machine at a time: two boots at once would create two machines. A lock
        # exists as long as a task holds it or waits for it.
        self._locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        # The host of each machine, for `halt`.
        self._hosts: dict[int, str] = {}

    def _lock(self, machine_id: int) -> asyncio.Lock:
        return self._locks.setdefault(machine_id, asyncio.Lock())

    async def boot(self, machine_id: int, slots: int, host: str | None) -> Machine:
        async with self._lock(machine_id):
            # An earlier boot may have worked although its answer was lost, also one of another
            # leader.
            for machine in await self.list():
                if machine.machine_id == machine_id and machine.state != "halted":
                    return machine
            if host is not None:
                self._hosts[machine_id] = host
            said = await self._run("boot", self._boot, machine_id, slots=slots, host=host)
        detail = said.strip().rpartition("\n")[2][:200]
        return Machine(machine_id=machine_id, host=host, state="booting", detail=detail)

    async def halt(self, machine_id: int) -> None:
        async with self._lock(machine_id):
            if "host" in self._halt.placeholders and machine_id not in self._hosts:
                await self.list()
            host = self._hosts.get(machine_id)
            await self._run("halt", self._halt, machine_id, host=host)
            self._hosts.pop(machine_id, None)

    async def list(self) -> list[Machine]:
        machines = parse_machines(await self._run("list", self._list))
        for machine in machines:
            if machine.host is not None:
                self._hosts[machine.machine_id] = machine.host
        return machines

    async def close(self) -> None:
        if self._store_url_file is not None:
            self._store_url_file.unlink(missing_ok=True)
            self._store_url_file = None

    async def _run(
        self,
        name: str,
        template: CommandTemplate,
        machine_id: int | None = None,
        *,
        slots: int | None = None,
        host: str | None = None,
    ) -> str:
        values: dict[str, Any] = {"fleet": self._fleet}
        values |= {"id": machine_id, "slots": slots, "host": host}
        if "store_url_file" in template.placeholders:
            values["store_url_file"] = self._written_url()
        missing = [one for one in sorted(template.placeholders) if values.get(one) is None]
        if missing:
            raise Unavailable(
                f"the {name} command asks for {{{missing[0]}}}, which is not known"
                f"{_hint(name, missing[0], machine_id)}"
            )
        texts: Mapping[str, str] = {key: str(value) for key, value in values.items()}
        return await run_command(name, template.words(texts), self._deadlines_s[name])

    def _written_url(self) -> Path:
        """Return the file with the store's URLs; create it at the first call."""
        if not self._store_urls:
            raise Unavailable("there is no URL of a store for {store_url_file}: set store.url")
        if self._store_url_file is None:
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
            # mkstemp creates it with mode 0600: the URL may contain a password.
            handle, path = tempfile.mkstemp(prefix="store-url-", dir=self._folder)
            with os.fdopen(handle, "w") as file:
                file.writelines(f"{url}\n" for url in self._store_urls)
            self._store_url_file = Path(path)
        return self._store_url_file


def _hint(command: str, placeholder: str, machine_id: int | None) -> str:
    if placeholder == "host":
        return (
            f" for machine {machine_id}: name hosts in fleet.hosts"
            if command == "boot"
            else f" for machine {machine_id}: have the list command print it"
        )
    return f": {command} has none"


def parse_machines(text: str) -> list[Machine]:
    """Parse the output of `list`; raise `Unavailable` with the line that cannot be read."""
    machines: dict[int, Machine] = {}
    for line in _lines(text):
        machine = _machine(line)
        before = machines.get(machine.machine_id)
        if before is None or before.state == "halted":
            machines[machine.machine_id] = machine
        elif machine.state != "halted":
            raise Unavailable(f"the list command names machine {machine.machine_id} twice")
    return list(machines.values())


def _lines(text: str) -> list[Any]:
    stripped = text.strip()
    if stripped.startswith("["):
        try:
            return msgspec.json.decode(stripped, type=list[Any])
        except msgspec.DecodeError as failure:
            raise Unavailable(f"the list command printed no JSON list: {failure}") from None
    return [line.strip() for line in stripped.splitlines() if line.strip()]


def _machine(line: Any) -> Machine:
    try:
        if isinstance(line, str) and line.startswith("{"):
            line = msgspec.json.decode(line, type=dict[str, Any])
        if isinstance(line, dict):
            number, state, host = line["id"], line.get("state", "running"), line.get("host")
        else:
            number, state, *rest = line.split(None, 2)
            host = rest[0] if rest else None
        machine_id = msgspec.convert(number, int, strict=False)
        host = msgspec.convert(host, str | None)
        return Machine(
            machine_id=machine_id,
            host=None if host is None or host.lower() in _NO_HOST else host,
            state=_STATE_OF[str(state).lower()],
        )
    except (KeyError, ValueError, AttributeError):
        known = "; ".join(f"{state}: {', '.join(words)}" for state, words in STATES.items())
        raise Unavailable(
            f"the list command printed {shown(line)[:200]}, which is no machine: each line is "
            f'{{"id": 7, "state": "running", "host": "blue"}} or `7 running blue` ({known})'
        ) from None
