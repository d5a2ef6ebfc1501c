"""RabbitMQ from the Debian package, without use of the installed service.

Debian's wrapper in sbin would switch to the service's user and data. This module therefore runs the
script behind it, which works as any user if home, data, logs, node name and all ports are given.

The node would start the Erlang port mapper as a daemon that outlives it. This module therefore
starts a port mapper on its own port first. The node finds it running, and the module can stop it.

The node can be killed and started again. Data, name and ports stay the same, so that clients can
reconnect.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tidegate.lab.peers.server import (
    answers,
    find_program,
    free_loopback_ports,
    running,
    temporary_folder,
)

DEBIAN_PACKAGE = "rabbitmq-server"
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
            [find_program(CONTROL_SCRIPTS, DEBIAN_PACKAGE), *words],
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
    server_script = find_program(SERVER_SCRIPTS, DEBIAN_PACKAGE)
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
