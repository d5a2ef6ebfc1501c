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
import contextlib
import fcntl
import os
import shlex
import signal
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from tidegate.core.errors import InvalidValue, Unavailable
from tidegate.core.machines import Machine
from tidegate.core.text import (
    escape_control_characters,
    format_duration,
    redact_secrets,
    redacted_value,
    suggestion_for,
)
from tidegate.fleet.process import (
    ProcessIdentity,
    ProcessTree,
    process_identity,
    with_stores,
)

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
            f"the list command printed {redacted_value(line)[:200]}, which is no machine: each "
            f"line is "
            f'{{"id": 7, "state": "running", "host": "blue"}} or `7 running blue` ({known})'
        ) from None


# Provider `process`: a machine is a tree of processes on this computer.
#
#     <folder>/7.json       the order, written before the machine runs: slots, host, time of boot
#     <folder>/7.words      why it ended, if one of our errors ended it
#     <folder>/lock         held while a machine is booted, because two leaders may boot at once
#
# Nothing important is kept in memory. After a kill, the folder and the marks of the processes
# (`ProcessTree`) show what runs. With `boot_s` a machine waits this many seconds before it begins,
# which simulates the boot time of a cloud.


MARK_VARIABLE = "TIDEGATE_MACHINE_MARK"
EXIT_REASON_VARIABLE = "TIDEGATE_LAST_WORDS"
RUNNING = ("booting", "running")
_LOCK_S = 10.0
_POLL_S = 0.02
_WORDS_MAX = 2000


class _Order(msgspec.Struct, kw_only=True):
    """A machine that was ordered."""

    machine_id: int
    slots: int
    host: str | None = None
    # Seconds since 1970 when its boot ends.
    booted_at: float = 0.0
    # Pid and start time of its supervisor; None if the leader died before it could write them.
    process: tuple[int, int] | None = None
    # Ended together with `tidegate up`, and not by a failure.
    stopped: bool = False


class ProcessProvider:
    """Machines that are trees of processes."""

    name = "process"

    def __init__(
        self,
        folder: Path,
        *,
        boot_s: float = 0.0,
        halt_s: float = 45.0,
        store_urls: Sequence[str],
        environment: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        self._folder = folder.expanduser().resolve()
        self._boot_s = boot_s
        # Seconds that a machine may take to end before it is killed.
        self._halt_s = halt_s
        self._store_urls = store_urls
        self._environment = dict(environment or {})
        self._arguments = arguments
        # Children of this process, which must be waited for, or they stay as zombies.
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._folder.mkdir(parents=True, exist_ok=True)

    async def boot(self, machine_id: int, slots: int, host: str | None) -> Machine:
        async with self._locked():
            order = self._read(machine_id)
            if order is not None and (found := await self._seen(order)).state in RUNNING:
                return found
            await self._end(machine_id, order)
            order = _Order(
                machine_id=machine_id, slots=slots, host=host, booted_at=time.time() + self._boot_s
            )
            self._words(machine_id).unlink(missing_ok=True)
            # Write the order first, so that a running machine can always be found again.
            self._write(order)
            try:
                order.process = self._start(order)
                self._write(order)
            except Unavailable:
                # Leave no partial machine behind.
                await self._end(machine_id, None)
                self._path(machine_id).unlink(missing_ok=True)
                raise
        return await self._seen(order)

    async def halt(self, machine_id: int) -> None:
        await self._end(machine_id, self._read(machine_id))
        for path in (self._words(machine_id), self._path(machine_id)):
            path.unlink(missing_ok=True)

    async def list(self) -> list[Machine]:
        numbers = sorted(int(one.stem) for one in self._folder.glob("*.json") if one.stem.isdigit())
        orders = [order for number in numbers if (order := self._read(number)) is not None]
        return [await self._seen(order) for order in orders]

    async def stop_all(self) -> int:
        """End all machines in good order, as `tidegate up` does; return how many ran."""
        found = [self._read(one.machine_id) for one in await self.list() if one.state in RUNNING]
        orders = [order for order in found if order is not None]
        await asyncio.gather(*(self._stop(order) for order in orders))
        return len(orders)

    async def _stop(self, order: _Order) -> None:
        await self._end(order.machine_id, order)
        order.stopped = True
        self._write(order)

    async def close(self) -> None:
        """Forget the machines; they keep running."""
        self._children.clear()

    async def _seen(self, order: _Order) -> Machine:
        """Return the machine of an order in its current state."""
        if (child := self._children.get(order.machine_id)) is not None:
            child.poll()
        running = await asyncio.to_thread(self._supervisor, order) is not None
        if running:
            state = "booting" if time.time() < order.booted_at else "running"
        else:
            state = "stopped" if order.stopped else "halted"
        return Machine(
            machine_id=order.machine_id,
            host=order.host,
            state=state,
            detail="" if running else self._last_words(order.machine_id),
        )

    def _supervisor(self, order: _Order) -> ProcessIdentity | None:
        if order.process is not None:
            identity = ProcessIdentity(*order.process)
            return identity if identity.is_alive else None
        # The oldest process of the tree has started the others.
        members = self._tree(order.machine_id).members()
        return members[0] if members else None

    async def _end(self, machine_id: int, order: _Order | None) -> None:
        supervisor = None if order is None else self._supervisor(order)
        child = self._children.get(machine_id)
        ended = await self._tree(machine_id).end(self._halt_s, first=supervisor)
        if child is not None:
            child.poll()
            self._children.pop(machine_id, None)
        if not ended:
            raise Unavailable(f"machine {machine_id} has processes that SIGKILL does not end")

    def _start(self, order: _Order) -> tuple[int, int]:
        command = [sys.executable, "-m", "tidegate", "machine", "--id", str(order.machine_id)]
        command += ["--slots", str(order.slots), *self._arguments]
        if self._boot_s:
            command += ["--boot-s", f"{self._boot_s:g}"]
        environment = {
            **with_stores(os.environ, self._store_urls),
            **self._environment,
            **self._tree(order.machine_id).environment,
            EXIT_REASON_VARIABLE: str(self._words(order.machine_id)),
        }
        try:
            # A session of its own: the machine outlives us, and our Ctrl-C must not reach it.
            child = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as failure:
            raise Unavailable(f"machine {order.machine_id} cannot be started: {failure}") from None
        self._children[order.machine_id] = child
        identity = process_identity(child.pid)
        return (child.pid, 0) if identity is None else (identity.pid, identity.started)

    # The folder of orders

    def _tree(self, machine_id: int) -> ProcessTree:
        return ProcessTree(MARK_VARIABLE, f"{self._folder}/{machine_id}")

    def _path(self, machine_id: int) -> Path:
        return self._folder / f"{machine_id}.json"

    def _words(self, machine_id: int) -> Path:
        return self._folder / f"{machine_id}.words"

    def _last_words(self, machine_id: int) -> str:
        try:
            return self._words(machine_id).read_text(errors="replace")[:_WORDS_MAX].strip()
        except OSError:
            return "it ended without a word"

    def _read(self, machine_id: int) -> _Order | None:
        try:
            return msgspec.json.decode(self._path(machine_id).read_bytes(), type=_Order)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as failure:
            raise Unavailable(f"{self._path(machine_id)} cannot be read: {failure}") from None

    def _write(self, order: _Order) -> None:
        path = self._path(order.machine_id)
        draft = path.with_suffix(f".{os.getpid()}")
        try:
            draft.write_bytes(msgspec.json.encode(order))
            draft.replace(path)
        except OSError as failure:
            draft.unlink(missing_ok=True)
            raise Unavailable(f"{path} cannot be written: {failure}") from None

    @contextlib.asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        deadline = time.monotonic() + _LOCK_S
        path = self._folder / "lock"
        try:
            file = path.open("wb")
        except OSError as failure:
            raise Unavailable(f"{path} cannot be written: {failure}") from None
        with file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise Unavailable(f"{path} is held by another leader") from None
                    await asyncio.sleep(_POLL_S)
            yield


# One command of the user with limits for its time and its output.
#
# It runs without a shell in its own process group; at the deadline the whole group is killed. We
# wait for the command and not for the end of its output: background processes that it leaves may
# keep the pipe open.


OUTPUT_BYTES_MAX = 1 << 20
# Characters of its output in an error.
_TOLD_MAX = 800
# Seconds to read the rest of the pipe after the end; later output is of other processes.
_REST_S = 0.2
_READ_BYTES = 1 << 16


# Seconds between two checks for the end of a process whose pipes others hold open.
_CHILD_POLL_S = 0.05


async def _exit_code_of(process: asyncio.subprocess.Process) -> int:
    """Return the exit code as soon as the process ends.

    asyncio's `wait` also waits for the end of its pipes, which others may hold open.
    """
    waiting = asyncio.ensure_future(process.wait())
    try:
        while process.returncode is None:
            await asyncio.wait({waiting}, timeout=_CHILD_POLL_S)
        return process.returncode
    finally:
        waiting.cancel()


async def run_command(
    name: str,
    words: Sequence[str],
    deadline_s: float,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run the command and return its standard output.

    Raises `Unavailable` if it cannot be started, fails, prints too much, or exceeds `deadline_s`.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    except (OSError, ValueError) as failure:
        raise Unavailable(
            f"the {name} command cannot be run: {failure} ({shlex.join(words)})"
        ) from None
    assert process.stdout is not None
    assert process.stderr is not None
    output, complaints = _Reading(process.stdout), _Reading(process.stderr)
    try:
        async with asyncio.timeout(deadline_s):
            code = await _exit_code_of(process)
        await asyncio.wait((output.task, complaints.task), timeout=_REST_S)
    except TimeoutError:
        raise Unavailable(
            f"the {name} command did not end within {format_duration(deadline_s)} and was killed"
            f"{_output_end(complaints, output)}"
        ) from None
    finally:
        if process.returncode is None:
            # The group is its own, and its pid is not reused until we have waited for it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await _exit_code_of(process)
        output.task.cancel()
        complaints.task.cancel()
    if code != 0:
        how = f"was ended by signal {-code}" if code < 0 else f"failed with exit code {code}"
        raise Unavailable(f"the {name} command {how}{_output_end(complaints, output)}")
    if output.is_cut:
        raise Unavailable(f"the {name} command printed more than {OUTPUT_BYTES_MAX} bytes")
    return output.text


class _Reading:
    """Keeps a limited part of a stream and discards the rest, so that the writer never blocks."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._kept = bytearray()
        self._stream = stream
        self.is_cut = False
        self.task = asyncio.create_task(self._read())

    @property
    def text(self) -> str:
        return self._kept.decode(errors="replace")

    async def _read(self) -> None:
        while chunk := await self._stream.read(_READ_BYTES):
            room = OUTPUT_BYTES_MAX - len(self._kept)
            self._kept += chunk[:room]
            self.is_cut = self.is_cut or len(chunk) > room


def _output_end(*readings: _Reading) -> str:
    """Return the end of the output as one line for an error."""
    text = " | ".join(
        line.strip() for reading in readings for line in reading.text.splitlines() if line.strip()
    )
    if not text:
        return "; it said nothing"
    if len(text) > _TOLD_MAX:
        text = "…" + text[-_TOLD_MAX:]
    return f"; it said: {escape_control_characters(redact_secrets(text))}"


# A command with placeholders, as the user writes it: `ssh {host} systemctl stop tidegate@{id}`.
#
# It is split into words as in a shell, and then the placeholders are replaced. A value therefore
# never spreads over several words. There is no shell; users who need one write `sh -c '…'`.
# Passwords are never among the values, because every user of a computer can read command lines.


PLACEHOLDERS = {
    "id": "the number of the machine",
    "slots": "how many replicas it takes",
    "host": "the host that it is to be on",
    "fleet": "the name of the fleet (fleet.name)",
    "store_url_file": "a file that only this user can read, with the store's URL, or one a line",
}


class CommandTemplate:
    """A command with valid placeholders."""

    def __init__(self, text: str) -> None:
        """Parse the text; raise `InvalidValue` with the reason if it is no valid command."""
        try:
            self._words = shlex.split(text)
        except ValueError as failure:
            raise InvalidValue(f"{text!r} is no command: {failure}") from None
        if not self._words:
            raise InvalidValue("an empty text is no command")
        self.placeholders = {name for word in self._words for name in _names(word)}

    def words(self, values: Mapping[str, str]) -> list[str]:
        """Return the words of the command with these values."""
        return [word.format_map(values) for word in self._words]


def _names(word: str) -> list[str]:
    try:
        parts = list(string.Formatter().parse(word))
    except ValueError as failure:
        raise InvalidValue(
            f"{word!r}: {failure}. A brace that stands for itself is written twice"
        ) from None
    names = []
    for _, name, form, conversion in parts:
        if name is None:
            continue
        if name not in PLACEHOLDERS or form or conversion:
            raise InvalidValue(
                f"{{{name}}} is no placeholder{suggestion_for(name, PLACEHOLDERS)} (a brace "
                f"that stands "
                "for itself is written twice)"
            )
        names.append(name)
    return names
