"""One instance of a service on its machine: keeps its process running and reports its state.

Theory of operation
-------------------

    code fetched → process started → probed until it answers → probed every second
          └──────── any step failed, or it died or hangs: again after a backoff

An `AppInstance` owns one task for its whole life. The task fetches the code, starts an `AppProcess`
and probes its health path. If anything fails, the state becomes FAILED with the reason, and the
task tries again after a backoff. After a failure the state stays FAILED until the instance answers.

    STARTING   until the first response; with a detail after _LATE_S, FAILED after _TOO_LATE_S
    READY      it answers
    FAILED     it could not start, died, or hangs

An instance that listens and does not answer for _HANGS_S is killed, because it would not react to a
request to end. A slow instance is not killed: its load would only move to the other instances.

`HostedInstances` creates one `AppInstance` for each instance assigned to the machine, reports the
states to the store, and drops instances that have ended. When an instance is to end, it finishes
its requests and is killed only after its drain time.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from tidegate.client.connect import URL_VARIABLE
from tidegate.core.errors import TidegateError, Unavailable
from tidegate.core.runtime import crash_point
from tidegate.core.services import (
    HEALTH_ANSWER_S,
    HostingStore,
    Instance,
    InstanceState,
    ServiceSpec,
)
from tidegate.core.text import format_duration
from tidegate.fleet.packages import PackageCache
from tidegate.fleet.process import MACHINE_VARIABLE, Backoff
from tidegate.fleet.processes import ProcessSpec, SupervisedProcess

log = logging.getLogger(__name__)

SERVICE_VARIABLE = "TIDEGATE_SERVICE"
INSTANCE_VARIABLE = "TIDEGATE_INSTANCE"
_BACKOFF_S = (0.5, 30.0)
# Seconds between two probes, before and after the first response.
_INSTANCE_POLL_S = 0.02
_ASK_EVERY_S = 1.0
# Seconds after which a start is reported as slow, and as failed.
_LATE_S = 10.0
_TOO_LATE_S = 60.0
# Seconds without a response after which an instance hangs.
_HANGS_S = 10.0
# Seconds after which a failure is not a failed start, so that the backoff begins again.
_GOT_SOMEWHERE_S = 10.0
# Seconds that it may need after its drain before it is killed.
_INSTANCE_EXIT_S = 10.0


class AppOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that all instances of a machine share."""

    machine_id: int
    host: str = "127.0.0.1"
    # The host under which others reach it; None means `host`.
    advertise: str | None = None
    drain_s: float = 30.0


class AppInstance:
    """An instance that runs on this machine."""

    def __init__(
        self,
        instance: Instance,
        spec: ServiceSpec,
        options: AppOptions,
        node: str,
        packages: PackageCache,
        news: Callable[[], None],
    ) -> None:
        self.instance_id = instance.instance_id
        self.spec = spec
        self.state = InstanceState.STARTING
        # Why it is not ready; empty if it is ready, or still starting.
        self.detail = ""
        self._version = instance.version
        self._options = options
        self._node = node
        self._packages = packages
        self._news = news
        self._process: AppProcess | None = None
        self._backoff = Backoff(*_BACKOFF_S)
        self._has_failed = False
        self._is_leaving = False
        self._life = asyncio.create_task(self._live())

    @property
    def address(self) -> str | None:
        return None if self._process is None else self._process.address or None

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def is_leaving(self) -> bool:
        return self._is_leaving

    @property
    def is_gone(self) -> bool:
        return self._life.done()

    def drain(self) -> None:
        """Ask it to finish its requests and end."""
        if self._is_leaving:
            return
        self._is_leaving = True
        log.info("instance is let go", extra=self._where)
        if self._process is None:
            self._life.cancel()
        else:
            self._process.terminate()

    async def stop(self) -> None:
        """Ask it to end and wait until it has ended."""
        self.drain()
        await asyncio.wait({self._life})

    async def _live(self) -> None:
        while True:
            try:
                folder = await self._code()
                why = await self._run(folder)
            except (TidegateError, OSError) as failure:
                why = str(failure)
            except Exception as failure:
                log.exception("a bug in the life of an instance", extra=self._where)
                why = f"a bug of the machine: {failure!r}"
            self._process = None
            if self._is_leaving:
                return
            wait_s = self._backoff.failed(time.monotonic())
            log.error(
                "an instance failed and is started again: %s",
                why,
                extra={**self._where, "in_s": round(wait_s, 1)},
            )
            self._has_failed = True
            self._become(InstanceState.FAILED, why)
            await asyncio.sleep(wait_s)

    async def _code(self) -> Path | None:
        if self.spec.package is not None:
            return await self._packages.folder_of(self.spec.package)
        if self.spec.folder is None:
            return None
        folder = Path(self.spec.folder)
        if not await asyncio.to_thread(folder.is_dir):
            raise Unavailable(
                f"there is no folder {folder} on this machine: ship the code, or have it there"
            )
        return folder

    async def _run(self, folder: Path | None) -> str:
        """Run one process from start to end; return why it ended."""
        process = AppProcess(
            self.spec.target,
            host=self._options.host,
            advertise=self._options.advertise,
            health_path=self.spec.health_path,
            environment={
                URL_VARIABLE: self._node,
                **self.spec.environment,
                SERVICE_VARIABLE: self.spec.name,
                INSTANCE_VARIABLE: str(self.instance_id),
                MACHINE_VARIABLE: str(self._options.machine_id),
            },
            folder=folder,
            drain_s=self._options.drain_s,
        )
        process.start()
        crash_point("after-instance-started")
        self._process = process
        if self._is_leaving:
            process.terminate()
        log.info("instance started", extra={**self._where, "pid": process.pid})
        hangs = await self._watch(process)
        if hangs is not None:
            process.kill()
        await process.ended()
        return hangs or f"{self.spec.target} {process.exit_text}"

    async def _watch(self, process: AppProcess) -> str | None:
        """Probe the process until it ends; return the reason if it must be killed, else None."""
        answered_at: float | None = None
        while not await process.ends_within(
            _INSTANCE_POLL_S if answered_at is None else _ASK_EVERY_S
        ):
            if process.asked_at is not None:
                if time.monotonic() - process.asked_at > process.spec.stop_s:
                    return f"{self.spec.target} did not end when told to, and is killed"
                continue
            trouble = await process.trouble()
            now = time.monotonic()
            if trouble is None:
                answered_at = now
                self._answers(now - process.started_at)
            elif answered_at is None:
                self._is_late(process, now - process.started_at, trouble)
            elif now - answered_at >= _HANGS_S and process.exit_code is None:
                silent = format_duration(round(now - answered_at, 1))
                return f"{self.spec.target} has not answered for {silent} and is killed: {trouble}"
        return None

    def _answers(self, age_s: float) -> None:
        if age_s >= _GOT_SOMEWHERE_S:
            self._backoff.succeeded()
        self._has_failed = False
        self._become(InstanceState.READY, "")

    def _is_late(self, process: AppProcess, age_s: float, trouble: str) -> None:
        if age_s < _LATE_S:
            if not self._has_failed:
                self._become(InstanceState.STARTING, "")
            return
        self._has_failed |= age_s >= _TOO_LATE_S
        state = InstanceState.FAILED if self._has_failed else InstanceState.STARTING
        self._become(state, process.late(_TOO_LATE_S if age_s >= _TOO_LATE_S else _LATE_S, trouble))

    def _become(self, state: InstanceState, detail: str) -> None:
        if (state, detail) != (self.state, self.detail):
            self.state, self.detail = state, detail
            self._news()

    @property
    def _where(self) -> dict[str, object]:
        return {
            "machine": self._options.machine_id,
            "service": self.spec.name,
            "instance": self.instance_id,
            "version": self._version,
        }


# One uvicorn process of an ASGI application: start, probe, drain, end.
#
# The child announces its port through a pipe (`fleet/app_server.py`). Its health is checked over
# HTTP, as a client would use it.


# Addresses to probe for hosts that mean all addresses.
_ASK_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_STATUS_LINE_BYTES_MAX = 1 << 10


class AppProcess(SupervisedProcess):
    """The process of one application, with its address and the probe of its health."""

    def __init__(
        self,
        target: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        # The host under which others reach it; None means where it listens.
        advertise: str | None = None,
        health_path: str = "/",
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        drain_s: float = 30.0,
    ) -> None:
        self.target = target
        self._host = host
        # A host that means all addresses is not an address to connect to.
        self._advertise = advertise or (socket.gethostname() if host in _ASK_AT else host)
        self._health_path = health_path
        # Start with -P: modules in the working directory must not hide installed ones.
        command = [sys.executable, "-P", "-m", "tidegate.fleet.app_server", target]
        command += ["--host", host, "--port", str(port), "--drain-s", f"{drain_s:g}"]
        super().__init__(
            ProcessSpec(
                name=target,
                command=command,
                environment=environment or {},
                folder=folder,
                keeps_output=True,
                stop_s=drain_s + _INSTANCE_EXIT_S,
            )
        )

    @property
    def address(self) -> str:
        """Its host:port for other programs; empty while it does not listen."""
        port = self.ready_message
        return f"{self._bracketed(self._advertise)}:{port}" if port else ""

    @staticmethod
    def _bracketed(host: str) -> str:
        return f"[{host}]" if ":" in host else host

    async def trouble(self) -> str | None:
        """Probe it; return why it does not answer, or None if it does."""
        if not self.ready_message:
            return "it does not listen yet"
        try:
            async with asyncio.timeout(HEALTH_ANSWER_S):
                status = await self._status(int(self.ready_message))
        except TimeoutError:
            within = format_duration(HEALTH_ANSWER_S)
            return f"no answer to GET {self._health_path} within {within}"
        except (OSError, ValueError, asyncio.LimitOverrunError) as failure:
            return f"GET {self._health_path} fails: {failure}"
        return None if status < 500 else f"GET {self._health_path} is answered {status}"

    async def _status(self, port: int) -> int:
        host = _ASK_AT.get(self._host, self._host)
        reader, writer = await asyncio.open_connection(host, port, limit=_STATUS_LINE_BYTES_MAX)
        try:
            request = (
                f"GET {self._health_path} HTTP/1.1\r\nHost: {self._bracketed(host)}:{port}\r\n"
                "User-Agent: tidegate-machine\r\nConnection: close\r\n\r\n"
            )
            writer.write(request.encode())
            line = await reader.readline()
            if not line:
                raise ConnectionError("it hung up")
            return int(line.split()[1])
        except IndexError:
            raise ValueError("its answer is no HTTP") from None
        finally:
            writer.close()

    def late(self, after_s: float, why: str | None) -> str:
        """Return a text that says how long it has taken and at which step it is."""
        after = format_duration(after_s)
        if self.ready_message is None:
            return f"{self.target} still imports or starts up after {after}: it may hang there"
        return f"{self.target} is not ready after {after}: {why}"


# The instances of one machine: starts the wanted ones, ends the others, reports all.
#
# An instance is started, and restarted, with what was deployed under its own version. While a new
# version comes or fails to start, instances of the old version continue unchanged, here or on
# another machine.


# Seconds between two reports of an unchanged instance.
_REPORT_S = 1.0
# Doors read draining states four times a second; until then they send requests.
_FOLLOW_S = 0.5
# A report: state, address, detail.
_InstanceReport = tuple[InstanceState, str | None, str]


class HostedInstances:
    """All instances of one machine."""

    def __init__(
        self,
        store: HostingStore,
        options: AppOptions,
        data: Path,
        news: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._options = options
        self._packages = PackageCache(data, options.machine_id, store)
        self._news = news
        self._running: dict[int, AppInstance] = {}
        # Instances that cannot be started, with the reason.
        self._refused: dict[int, str] = {}
        # The last report of each instance, and when it was sent.
        self._reported: dict[int, tuple[_InstanceReport, float]] = {}

    @property
    def ids(self) -> set[int]:
        """Ids of instances that run here and were not asked to end."""
        return {number for number, one in self._running.items() if not one.is_leaving}

    @property
    def trouble(self) -> str:
        """Problems of all instances as one text; empty if there are none."""
        troubles = {
            number: one.detail for number, one in self._running.items() if not one.is_leaving
        }
        troubles |= self._refused
        return "; ".join(
            f"instance {number}: {text}" for number, text in sorted(troubles.items()) if text
        )

    async def adjust(self, wanted: Sequence[Instance], node: str) -> None:
        """Start and end instances one step towards `wanted`, then report all of them."""
        await self._begin([one for one in wanted if one.instance_id not in self._running], node)
        ids = {one.instance_id for one in wanted}
        for number, running in list(self._running.items()):
            if number not in ids:
                running.drain()
            if running.is_gone:
                del self._running[number]
        for number in self._reported.keys() - ids:
            del self._reported[number]
        await self._report()

    async def _begin(self, new: Sequence[Instance], node: str) -> None:
        self._refused = {}
        # A draining instance that does not run here has ended already.
        new = [one for one in new if one.state is not InstanceState.DRAINING]
        if not new:
            return
        in_use = {one.spec.package for one in self._running.values()}
        for instance in new:
            spec = await self._store.spec_of(instance.service, instance.version)
            if spec is None:
                words = f"version {instance.version} of {instance.service} is deployed no more"
                self._refused[instance.instance_id] = words
                continue
            in_use.add(spec.package)
            self._running[instance.instance_id] = AppInstance(
                instance, spec, self._options, node, self._packages, self._news
            )
        self._packages.forget_all_but({digest for digest in in_use if digest is not None})

    async def _report(self) -> None:
        now = asyncio.get_running_loop().time()
        words: dict[int, _InstanceReport] = {
            number: (one.state, one.address, one.detail)
            for number, one in self._running.items()
            if not one.is_leaving
        }
        words |= {
            number: (InstanceState.FAILED, None, why) for number, why in self._refused.items()
        }
        for number, word in words.items():
            said, at = self._reported.get(number, (None, 0.0))
            if said == word and now - at < _REPORT_S:
                continue
            state, address, detail = word
            memory = self._memory(number)
            is_wanted = await self._store.report_instance(
                number,
                self._options.machine_id,
                state,
                address if state is InstanceState.READY else None,
                memory.free_bytes,
                detail,
                memory.resident_bytes,
            )
            self._reported[number] = (word, now)
            if not is_wanted and number in self._running:
                self._running[number].drain()

    def _memory(self, number: int) -> InstanceMemory:
        """Return the memory of an instance; unknown without a process."""
        running = self._running.get(number)
        if running is None or not running.pid:
            return InstanceMemory(None, None)
        return instance_memory(running.pid)

    async def stop(self) -> None:
        """End all instances, each with its drain; doors learn of it first."""
        if await self._say_that_they_go():
            await asyncio.sleep(_FOLLOW_S)
        await asyncio.gather(*(one.stop() for one in self._running.values()))
        self._packages.close()

    async def _say_that_they_go(self) -> bool:
        """Report ready instances as draining; return whether doors must have time to react."""
        ready = [one for one in self._running.values() if one.state is InstanceState.READY]
        try:
            for one in ready:
                await self._store.report_instance(
                    one.instance_id,
                    self._options.machine_id,
                    InstanceState.DRAINING,
                    one.address,
                    None,
                    "its machine ends",
                )
        except TidegateError as failure:
            log.warning("the store was not told: %s", failure)
            return False
        return bool(ready)


# Free memory of a machine, and of one instance, which may be allowed less.
#
#     free of an instance = the least of    the available memory of its computer
#                                           what each of its control groups has left, up to the root
#                                           what its own limits (ulimit -v, -d) leave
#
# All values are rounded down to whole MiB, so that small changes do not show.


_MEBIBYTE = 1024 * 1024
_GROUPS = "sys/fs/cgroup"
# A limit of a process, and the field of its status that counts against it.
_LIMITS = {"Max address space": "VmSize", "Max data size": "VmData"}


@dataclass(frozen=True)
class InstanceMemory:
    """Memory of one process; None if it cannot be read."""

    # What it may still allocate, and what it uses.
    free_bytes: float | None
    resident_bytes: float | None


def free_memory_bytes(root: Path = Path("/")) -> float | None:
    """Return the free memory of this machine; None if it cannot be read."""
    return _least((_computers(root), _left_in_group(root / _GROUPS)))


def instance_memory(process_id: int, root: Path = Path("/")) -> InstanceMemory:
    """Return the memory that a process uses and may still allocate."""
    status = _status(root, process_id)
    free = _least(
        (
            _computers(root),
            *(_left_in_group(group) for group in _groups(root, process_id)),
            *_left_by_limits(root, process_id, status),
        )
    )
    resident = status.get("VmRSS")
    return InstanceMemory(free, None if resident is None else _whole(resident))


def _least(known: Iterable[int | None]) -> float | None:
    return min((_whole(one) for one in known if one is not None), default=None)


def _whole(count: int) -> float:
    return float(count // _MEBIBYTE * _MEBIBYTE)


def _computers(root: Path) -> int | None:
    return _kilobytes(root / "proc/meminfo").get("MemAvailable")


def _status(root: Path, process_id: int) -> dict[str, int]:
    return _kilobytes(root / f"proc/{process_id}/status")


def _kilobytes(file: Path) -> dict[str, int]:
    """Parse lines such as `VmRSS:  5130 kB` into bytes."""
    found = {}
    for line in _lines(file):
        name, _, rest = line.partition(":")
        number, _, unit = rest.strip().partition(" ")
        if unit == "kB":
            found[name] = int(number) * 1024
    return found


def _lines(file: Path) -> list[str]:
    """Return the lines of a file; empty if it is gone with its process."""
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def _groups(root: Path, process_id: int) -> Iterator[Path]:
    """Yield the control group of a process and its ancestors, as far as they are visible."""
    own = next(
        (line[3:] for line in _lines(root / f"proc/{process_id}/cgroup") if line.startswith("0::")),
        "/",
    )
    parts = PurePosixPath(own).parts[1:]
    # A group above the visible root is written with dots.
    if ".." in parts:
        parts = ()
    for count in range(len(parts), -1, -1):
        yield root.joinpath(_GROUPS, *parts[:count])


def _left_in_group(folder: Path) -> int | None:
    """Return what a control group has left, with its page cache; None without a limit."""
    try:
        most = int((folder / "memory.max").read_text())
        used = int((folder / "memory.current").read_text())
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        # The file is missing, or contains "max".
        return None
    return max(most - used + int(counts.get("inactive_file", 0)), 0)


def _left_by_limits(root: Path, process_id: int, status: dict[str, int]) -> Iterator[int]:
    for line in _lines(root / f"proc/{process_id}/limits"):
        for name, counted in _LIMITS.items():
            if line.startswith(name) and counted in status:
                soft = line[len(name) :].split()[0]
                if soft.isdecimal():
                    yield max(int(soft) - status[counted], 0)
