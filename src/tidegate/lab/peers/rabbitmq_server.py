"""RabbitMQ, as Debian packages it, without touching the installed service.

Strategy: Debian's wrapper in sbin would switch to the service's user and its data, so the script
behind it is run directly; it works as any user once home, data, logs, node name and every port
are given. The Erlang port mapper would be started as a daemon that outlives the node, so we
start one ourselves on a port of our own: the node finds it running, and we can stop it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.lab.peers.server import (
    answers,
    find_program,
    free_loopback_ports,
    running,
    temporary_folder,
)

DEBIAN_PACKAGE = "rabbitmq-server"
# The first is what Debian's wrapper calls; the second is any other packaging's.
SERVER_SCRIPTS = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server")
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"


@dataclass(frozen=True)
class RabbitmqServer:
    """A running broker with the default user guest on the default virtual host."""

    port: int
    notes: Sequence[str] = ()


@contextlib.contextmanager
def rabbitmq_server() -> Iterator[RabbitmqServer]:
    """A fresh broker with no plugins."""
    server_script = find_program(SERVER_SCRIPTS, DEBIAN_PACKAGE)
    epmd = find_program(["epmd"], "erlang-base")
    amqp_port, epmd_port, distribution_port = free_loopback_ports(3)
    with temporary_folder("rabbitmq") as folder, contextlib.ExitStack() as stack:
        environment = _environment(folder, amqp_port, epmd_port, distribution_port)
        stack.enter_context(
            running(
                [epmd, "-port", str(epmd_port), "-address", "127.0.0.1"],
                folder=folder,
                environment=environment,
                # A names request (110) is answered with the mapper's own port number.
                is_ready=lambda: answers(epmd_port, b"\x00\x01n", epmd_port.to_bytes(4, "big")),
            )
        )
        stack.enter_context(
            running(
                [server_script],
                folder=folder,
                environment=environment,
                # The listener opens last, so a Connection.Start frame means that all is up.
                is_ready=lambda: answers(amqp_port, PROTOCOL_HEADER, b"\x00\x0a\x00\x0a"),
            )
        )
        yield RabbitmqServer(port=amqp_port)


def _environment(
    folder: Path, amqp_port: int, epmd_port: int, distribution_port: int
) -> dict[str, str]:
    for name in ("home", "mnesia", "log"):
        (folder / name).mkdir()
    (folder / "enabled_plugins").write_text("[].\n")
    (folder / "rabbitmq.conf").touch()
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
        # Makes the script become the node instead of a shell that waits for it, so that the
        # process we hold is the node itself.
        "RUNNING_UNDER_SYSTEMD": "true",
    }
