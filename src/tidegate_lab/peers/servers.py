"""Servers that run for one measurement.

Every server has its own temporary folder and listens on free loopback ports, so that an installed
service is neither used nor disturbed. It runs in its own session: Ctrl-C reaches only this process,
which ends the server's process group, first with SIGTERM and then with SIGKILL. A server is ready
when it answers a request; no fixed time is waited.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
ASK_AGAIN_S = 0.02
LOG_TAIL_BYTES = 2000
_PORT_FIRST, _PORT_LAST = 20_000, 30_000
# A generator of its own, because repeatable experiments seed the global one.
_DICE = random.Random()


class ServerMissing(RuntimeError):
    """The server is not installed; the message names its Debian package."""

    def __init__(self, program: str, debian_package: str) -> None:
        super().__init__(f"{program} is not installed: apt-get install {debian_package}")
        self.debian_package = debian_package


class ServerFailed(RuntimeError):
    """The server did not start; the message has the end of its log."""


class PeerServer(Protocol):
    """A running server, as a contender uses it."""

    @property
    def port(self) -> int:
        """The loopback port that clients connect to."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Remarks on the server's setup that the report must contain."""
        ...


def find_program(names: Sequence[str], debian_package: str) -> str:
    """Return the path of the first program that exists, or raise `ServerMissing`."""
    # Debian installs servers in sbin, which is not in the search path of an ordinary user.
    search_path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    for name in names:
        found = shutil.which(name, path=search_path)
        if found is not None:
            return found
    raise ServerMissing(names[0], debian_package)


def free_loopback_ports(count: int) -> list[int]:
    """Return different free loopback ports.

    They are below the ports that the kernel assigns to outgoing connections. An outgoing
    connection could take a port while a server still starts for seconds.
    """
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            candidate = held.enter_context(socket.socket())
            port = _DICE.randrange(_PORT_FIRST, _PORT_LAST)
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(port)
        return ports


@contextlib.contextmanager
def temporary_folder(label: str) -> Iterator[Path]:
    """Yield a temporary folder and remove it when the block ends."""
    folder = Path(tempfile.mkdtemp(prefix=f"tidegate-bench-{label}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def running(
    command: Sequence[str],
    *,
    folder: Path,
    is_ready: Callable[[], bool],
    environment: Mapping[str, str] | None = None,
    ready_timeout_s: float = READY_TIMEOUT_S,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command until the block ends; the block begins when `is_ready` returns True.

    `ServerFailed` means that the command ended, or was not ready within `ready_timeout_s`.
    """
    log_path = folder / f"{Path(command[0]).name}.out"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=None if environment is None else dict(environment),
            start_new_session=True,
        )
    try:
        _wait_until_ready(process, is_ready, log_path, ready_timeout_s)
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and all its descendants, in its session or outside of it."""
    spawned = _spawned_by(process)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
    # The process has its own session (start_new_session), so its group has no other processes.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_TIMEOUT_S)
    for leftover in spawned:
        # psutil compares start times, so that it never kills another process with a reused id.
        with contextlib.suppress(psutil.NoSuchProcess):
            leftover.kill()
    psutil.wait_procs(spawned, STOP_TIMEOUT_S)


def _spawned_by(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def answers(port: int, question: bytes, expected: bytes) -> bool:
    """Return whether the server on a loopback port answers `question` with `expected` in it."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2.0) as connection:
            if question:
                connection.sendall(question)
            return expected in connection.recv(4096)
    except OSError:
        return False


def _wait_until_ready(
    process: subprocess.Popen[bytes],
    is_ready: Callable[[], bool],
    log_path: Path,
    ready_timeout_s: float,
) -> None:
    deadline = time.monotonic() + ready_timeout_s
    while not is_ready():
        if process.poll() is not None:
            raise ServerFailed(f"{log_path.stem} ended while starting:\n{_tail(log_path)}")
        if time.monotonic() > deadline:
            raise ServerFailed(
                f"{log_path.stem} was not ready after {ready_timeout_s:.0f} s:\n{_tail(log_path)}"
            )
        time.sleep(ASK_AGAIN_S)


def _tail(log_path: Path) -> str:
    return log_path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")


# Redis with an append-only file that it flushes to disk before any answer.


REDIS_PACKAGE = "redis-server"


@dataclass(frozen=True)
class RedisServer:
    """A running Redis that answers a write after the write is on disk."""

    port: int
    notes: Sequence[str] = ()


@contextlib.contextmanager
def redis_server() -> Iterator[RedisServer]:
    """Run a durable Redis without snapshots until the block ends."""
    program = find_program(["redis-server"], REDIS_PACKAGE)
    (port,) = free_loopback_ports(1)
    with temporary_folder("redis") as folder:
        command = [
            *(program, "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)),
            *("--appendonly", "yes", "--appendfsync", "always", "--save", ""),
            *("--daemonize", "no"),
        ]
        with running(command, folder=folder, is_ready=lambda: answers(port, b"PING\r\n", b"+PONG")):
            yield RedisServer(port=port)


# NATS with JetStream, which flushes every write to disk if the version can.
#
# Version 2.10 introduced `sync_interval: always`. An older server (Debian 12 has 2.9) rejects the
# setting and flushes every two minutes. Its confirmations then promise less than those of the other
# systems, and a note in the report says so. `nats-server -t` tells whether the server accepts the
# setting.


NATS_PACKAGE = "nats-server"
NOT_FLUSHED = (
    "NATS: this version has no sync_interval, so JetStream confirms before the disk has the "
    "message (it flushes every two minutes); the figures flatter it"
)


@dataclass(frozen=True)
class NatsServer:
    """A running NATS server with JetStream on files."""

    port: int
    notes: Sequence[str] = ()


@contextlib.contextmanager
def nats_server() -> Iterator[NatsServer]:
    """Run a NATS server with an empty JetStream store until the block ends."""
    program = find_program(["nats-server"], NATS_PACKAGE)
    (port,) = free_loopback_ports(1)
    with temporary_folder("nats") as folder:
        flushed = _configuration(folder, port, sync_always=True)
        notes: Sequence[str] = ()
        if not _accepts(program, flushed):
            flushed = _configuration(folder, port, sync_always=False)
            notes = (NOT_FLUSHED,)
        with running(
            [program, "-c", str(flushed)],
            folder=folder,
            # The greeting names JetStream only after its store is recovered.
            is_ready=lambda: answers(port, b"", b'"jetstream":true'),
        ):
            yield NatsServer(port=port, notes=notes)


def _configuration(folder: Path, port: int, *, sync_always: bool) -> Path:
    path = folder / "nats.conf"
    path.write_text(
        f"listen: 127.0.0.1:{port}\n"
        "jetstream {\n"
        f"  store_dir: {json.dumps(str(folder / 'jetstream'))}\n"
        + ("  sync_interval: always\n" if sync_always else "")
        + "}\n"
    )
    return path


def _accepts(program: str, configuration: Path) -> bool:
    check = subprocess.run(
        [program, "-t", "-c", str(configuration)], capture_output=True, check=False
    )
    return check.returncode == 0


# Tidegate, started with `tidegate up` as a user would.


_ADDRESS = re.compile(rb"tidegate://127\.0\.0\.1:(\d+)")


@dataclass(frozen=True)
class TidegateServer:
    """Running nodes with an embedded PostgreSQL; `port` is the port of the first node."""

    port: int
    ports: Sequence[int] = ()
    notes: Sequence[str] = ()


@contextlib.contextmanager
def tidegate_server(
    *, nodes: int = 1, settings: Mapping[str, str] | None = None
) -> Iterator[TidegateServer]:
    """Run nodes with an empty store until the block ends.

    The keys of `settings` are names of environment variables.
    """
    with temporary_folder("tidegate") as folder:
        command = [
            *(sys.executable, "-m", "tidegate", "up"),
            *("--data", str(folder / "data"), "--port", "0", "--nodes", str(nodes)),
        ]
        output = folder / f"{Path(sys.executable).name}.out"

        def ports() -> list[int]:
            """Return the nodes' ports, which `up` prints after all nodes are ready."""
            return [int(port) for port in _ADDRESS.findall(output.read_bytes())]

        with running(
            command,
            folder=folder,
            is_ready=lambda: output.exists() and len(ports()) == nodes,
            environment=os.environ | (settings or {}),
        ):
            yield TidegateServer(port=ports()[0], ports=ports())


# RabbitMQ from the Debian package, without use of the installed service.
#
# Debian's wrapper in sbin would switch to the service's user and data. This module therefore runs
# the script behind it, which works as any user if home, data, logs, node name and all ports are
# given.
#
# The node would start the Erlang port mapper as a daemon that outlives it. This module therefore
# starts a port mapper on its own port first. The node finds it running, and the module can stop it.
#
# The node can be killed and started again. Data, name and ports stay the same, so that clients can
# reconnect.


RABBITMQ_PACKAGE = "rabbitmq-server"
# The first is the script that Debian's wrapper calls, the second that of other packages.
SERVER_SCRIPTS = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server")
CONTROL_SCRIPTS = ("/usr/lib/rabbitmq/bin/rabbitmqctl", "rabbitmqctl")
CONTROL_S_MAX = 60.0
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
MANAGEMENT = "rabbitmq_management"
CONSISTENT_HASH_EXCHANGE = "rabbitmq_consistent_hash_exchange"
# One scheduler of each kind without busy waiting, so that the node leaves the cores to others.
FRUGAL_ERLANG = "+S 1:1 +SDcpu 1:1 +SDio 2 +sbwt none +sbwtdcpu none +sbwtdio none"


class RabbitmqServer:
    """A RabbitMQ node with user guest on the default virtual host; it can be killed."""

    notes: Sequence[str] = ()

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        environment: Mapping[str, str],
        port: int,
        management_port: int | None,
    ) -> None:
        self.port = port
        # None without the management plugin.
        self.management_port = management_port
        self._folder = folder
        self._command = command
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._running = contextlib.ExitStack()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @property
    def management_url(self) -> str:
        """The URL of the management plugin's HTTP API; `ValueError` without the plugin."""
        if self.management_port is None:
            raise ValueError(f"it runs without its HTTP API: plugins=({MANAGEMENT!r},)")
        return f"http://guest:guest@127.0.0.1:{self.management_port}/api"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Kill the node with SIGKILL: it closes no connection and flushes nothing."""
        assert self._process is not None, "the broker is not running"
        self._process.kill()
        self._process.wait()
        self.stop()

    def start_again(self) -> None:
        """Start the node on the same data and ports; return when it accepts connections."""
        assert self._process is None, "the broker is running"
        self._process = self._running.enter_context(
            running(
                self._command,
                folder=self._folder,
                environment=self._environment,
                is_ready=self._is_ready,
            )
        )

    def stop(self) -> None:
        self._running.close()
        self._process = None

    def control(self, *words: str) -> None:
        """Run a command of rabbitmqctl and wait for it."""
        subprocess.run(
            [find_program(CONTROL_SCRIPTS, RABBITMQ_PACKAGE), *words],
            env=self._environment,
            check=True,
            capture_output=True,
            timeout=CONTROL_S_MAX,
        )

    def keeps_quorum_queue(self, name: str) -> bool:
        """Return whether a quorum queue would survive a kill of the node.

        RabbitMQ syncs the queue's log, but version 3.10 writes the name of a new queue half a
        second later (to Ra's names.dets). Without the name, the queue never gets a leader again.
        """
        tables = self._folder.glob("mnesia/*/quorum/*/names.dets")
        return any(f"_{name}".encode() in table.read_bytes() for table in tables)

    def _is_ready(self) -> bool:
        # The AMQP listener opens after all plugins, so Connection.Start means that all is ready.
        return answers(self.port, PROTOCOL_HEADER, b"\x00\x0a\x00\x0a") and (
            self.management_port is None
            or answers(self.management_port, b"GET / HTTP/1.0\r\n\r\n", b"HTTP/1.")
        )


@contextlib.contextmanager
def rabbitmq_server(
    plugins: Sequence[str] = (), *, settings: Mapping[str, str] | None = None, frugal: bool = False
) -> Iterator[RabbitmqServer]:
    """Run a fresh broker until the block ends.

    `settings` are lines of rabbitmq.conf. A `frugal` broker uses at most one core, and none while
    it is idle; it is meant for tests, not for measurements.
    """
    server_script = find_program(SERVER_SCRIPTS, RABBITMQ_PACKAGE)
    epmd = find_program(["epmd"], "erlang-base")
    amqp_port, epmd_port, distribution_port, management_port = free_loopback_ports(4)
    lines = dict(settings or {})
    if MANAGEMENT in plugins:
        lines["management.tcp.ip"] = "127.0.0.1"
        lines["management.tcp.port"] = str(management_port)
    with temporary_folder("rabbitmq") as folder, contextlib.ExitStack() as stack:
        environment = _environment(folder, amqp_port, epmd_port, distribution_port)
        if frugal:
            environment["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"] += f" {FRUGAL_ERLANG}"
        (folder / "enabled_plugins").write_text(f"[{','.join(plugins)}].\n")
        (folder / "rabbitmq.conf").write_text(
            "".join(f"{name} = {value}\n" for name, value in lines.items())
        )
        stack.enter_context(
            running(
                [epmd, "-port", str(epmd_port), "-address", "127.0.0.1"],
                folder=folder,
                environment=environment,
                # The answer to a names request (110) begins with the mapper's own port number.
                is_ready=lambda: answers(epmd_port, b"\x00\x01n", epmd_port.to_bytes(4, "big")),
            )
        )
        server = RabbitmqServer(
            folder,
            [server_script],
            environment,
            amqp_port,
            management_port if MANAGEMENT in plugins else None,
        )
        stack.callback(server.stop)
        server.start_again()
        yield server


def _environment(
    folder: Path, amqp_port: int, epmd_port: int, distribution_port: int
) -> dict[str, str]:
    for name in ("home", "mnesia", "log"):
        (folder / name).mkdir()
    (folder / "rabbitmq-env.conf").touch()
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": "C.UTF-8",
        "HOME": str(folder / "home"),
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"tidegate-bench-{amqp_port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(amqp_port),
        "RABBITMQ_DIST_PORT": str(distribution_port),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_LOGS": str(folder / "log" / "node.log"),
        "RABBITMQ_PID_FILE": str(folder / "node.pid"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
        # With this the script replaces itself by the node instead of waiting for it as a shell,
        # so that `kill` hits the node.
        "RUNNING_UNDER_SYSTEMD": "true",
    }
