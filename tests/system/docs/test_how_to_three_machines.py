"""The how-to about three machines is done with three nodes on three addresses of this computer.

Files of /etc are files of a folder, names are addresses, and who stands in for systemd reads the
unit's line. PostgreSQL is Debian's.
"""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from free_ports import free_ports
from places import DOCS
from reader import Block, Reader, parts_of
from waiting import eventually

PAGE = DOCS / "how-to" / "three-machines.md"
MACHINES = ("mq1", "mq2", "mq3")
ALL_OF_THEM = ",".join(f"{name}.example" for name in MACHINES)
PREFIX = "ExecStart=/opt/tidegate/.venv/bin/"


def address_of(machine: str) -> str:
    return f"127.0.0.{machine.removeprefix('mq')}"


def free_on_all_of_them() -> int:
    """One port, as on three computers, for messages; nobody else takes any of these addresses."""
    while True:
        port = free_ports(1000)
        with contextlib.ExitStack() as held:
            try:
                for name in MACHINES:
                    for one in (port, port + 1000):
                        held.enter_context(socket.create_server((address_of(name), one)))
            except OSError:
                continue
            return port


class ThreeMachines:
    """What the page comes to here."""

    def __init__(self, folder: Path, database: str, port: int) -> None:
        self.etc = folder / "etc"
        self.etc.mkdir()
        for user in ("root", "shop"):
            (self.etc / f"{user}.password").write_text(f"password of {user}\n")
        self._port = port
        self._settings = ""
        self._nodes: dict[str, str] = {}
        names = {
            "/etc/tidegate": str(self.etc),
            "/run/secrets/mq": str(self.etc / "shop.password"),
            "tidegate:secret@db.example/tidegate": database,
            ALL_OF_THEM: ",".join(f"{address_of(name)}:{port}" for name in MACHINES),
            "DNS:$name.example": "IP:127.0.0.${name#mq}",
        }
        for user in ("root", "shop"):
            # At a terminal it would ask.
            adding = f"tidegate user add {user}"
            names[adding] = f"{adding} --password-file {self.etc / f'{user}.password'}"
        unset = {"TIDEGATE_URL": None, "TIDEGATE_METRICS__PORT": None}
        self.reader = Reader(folder, names=names, environment=unset)
        self._names = names

    def do(self, part: Block) -> None:
        text = self._as_here(part.text)
        if part.language == "toml":
            self._settings = text
            self._write("tidegate.toml", "mq1")
        elif part.language == "ini" and PREFIX in text:
            (command,) = (
                line.removeprefix(PREFIX) for line in text.splitlines() if line.startswith(PREFIX)
            )
            for name in MACHINES:
                self._start(name, command)
        elif part.language == "ini":
            (self.etc / "env").write_text(text)
        else:
            self.reader.do(part)

    def kill(self, name: str) -> None:
        self.reader.kill(self._nodes.pop(name))

    def _as_here(self, text: str) -> str:
        for name, here in self._names.items():
            text = text.replace(name, here)
        return text

    def _write(self, file: str, name: str) -> None:
        """The settings of one of them."""
        settings = self._settings.replace(f"{self.etc}/mq1", f"{self.etc}/{name}")
        for said in ("mq1.example", "0.0.0.0"):
            settings = settings.replace(said, address_of(name))
        (self.etc / file).write_text(settings)

    def _start(self, name: str, command: str) -> None:
        mine = address_of(name)
        self._write(f"{name}.toml", name)
        self._nodes[name] = (
            f"env TIDEGATE_CONFIG={self.etc / f'{name}.toml'} TIDEGATE_METRICS__HOST={mine}"
            f" TIDEGATE_NODE__PORT={self._port} TIDEGATE_STORE__DATA={name} {command}"
        )
        self.reader.stay(self._nodes[name], self.at(name))

    def at(self, name: str) -> str:
        return f"{address_of(name)}:{self._port}"


@pytest.mark.timeout(900)
def test_a_reader_has_three_machines_and_loses_one(external_url: str, folder: Path) -> None:
    with psycopg.connect(external_url, autocommit=True) as connection:
        connection.execute("create database three_machines")
    place = urlsplit(external_url)
    database = f"tidegate:secret@127.0.0.1:{place.port}/three_machines"
    three = ThreeMachines(folder, database, free_on_all_of_them())
    parts = [part for part in parts_of(PAGE) if isinstance(part, Block)]
    try:
        for part in parts:
            three.do(part)
        three.kill("mq1")
        # The client knows all three.
        (client,) = (part for part in parts if part.language == "python")
        three.do(client)
        nodes = Block("sh", "tidegate nodes\n", 0)
        eventually(lambda: three.at("mq1") not in three.reader.do(nodes), "it is known to be dead")
    finally:
        three.reader.end()
        with psycopg.connect(external_url, autocommit=True) as connection:
            connection.execute("drop database three_machines with (force)")
