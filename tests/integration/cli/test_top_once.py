"""`tidegate top --once`: one look at a node, with the agreements of its store or without."""

from __future__ import annotations

import json

from command_line import CommandLine, Script
from served_node import ServedNode

import tidegate as library


def test_top_once_shows_queues(served: ServedNode, command_line: CommandLine, queue: str) -> None:
    with library.connect(served.url, mode="admin") as mq:
        mq.create_queue(queue)
        mq.put(queue, b"hello")

    looked = command_line("top", "--once", "--json", "--url", served.url)
    plain = command_line("top", "--once", "--url", served.url)

    assert (looked.returncode, looked.stderr) == (0, b"")
    found = {one["name"]: one for one in json.loads(looked.stdout)["services"]}
    assert found[queue]["waiting"] == 1
    assert found[queue]["light"] == "none"
    assert plain.returncode == 0
    assert any(line.split("\t")[0] == queue for line in plain.stdout.decode().splitlines())
    assert "agreements are not shown" in plain.stdout.decode()


def test_agreements_are_read_from_the_store(script: Script) -> None:
    looked = script("top", "--once", "--json")
    assert (looked.returncode, looked.stderr) == (0, b"")
    assert json.loads(looked.stdout)["complaints"] == []


def test_top_without_a_node_exits_1(command_line: CommandLine) -> None:
    looked = command_line("top", "--url", "tidegate://127.0.0.1:1")
    assert looked.returncode == 1
    assert looked.stderr.startswith(b"tidegate: ")
