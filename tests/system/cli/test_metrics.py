"""Nodes as `tidegate up` starts them, seen over HTTP by whoever watches them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from command_line import (
    CommandLine,
    Up,
    node_mark,
    processes_with,
    wait_until_gone,
)
from free_ports import free_ports
from http_get import families, value
from waiting import LIMIT_S, eventually

import tidegate as client

METRICS = re.compile(r"metrics: (http://127\.0\.0\.1:\d+)/metrics")


def page(address: str, path: str) -> bytes:
    with urllib.request.urlopen(address + path, timeout=LIMIT_S) as answer:
        body: bytes = answer.read()
        return body


def page_when_there(address: str, path: str) -> bytes:
    """The page of a node that is being started again."""

    def found() -> bytes:
        try:
            return page(address, path)
        except (urllib.error.URLError, ConnectionError):
            return b""

    return eventually(found, f"{address} answers")


def test_up_says_where_and_the_numbers_are_those_of_its_node(up: Up, queue: str) -> None:
    with client.connect(up.url) as mq:
        mq.create_queue(queue)
        mq.put_many(queue, [b"x"] * 7)
        mq.get(queue)
        [node] = [one for one in mq.stats().nodes if one.address == up.url]
    (address,) = METRICS.findall(up.log)

    found = families(page(address, "/metrics"))

    assert node.metrics_address == address
    assert value(found, "tidegate_queue_confirmed_total", queue=queue, node=node.name) == 7
    assert value(found, "tidegate_queue_waiting_messages", queue=queue) == 6
    assert value(found, "tidegate_node_commit_seconds", le="+Inf") >= 1
    assert page(address, "/healthz") == b"alive\n"
    assert page(address, "/readyz") == b"ready\n"


def test_status_lists_the_address(command_line: CommandLine, up: Up) -> None:
    shown = command_line("status", "--json", "--url", up.url)
    assert json.loads(shown.stdout)["nodes"][0]["metrics_address"] in METRICS.findall(up.log)


def test_a_metrics_port_that_was_asked_for_and_is_taken_is_one_sentence(
    command_line: CommandLine, store_folder: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        failed = command_line(
            *("up", "--data", str(store_folder / "data")),
            *("--port", "0", "--metrics-port", str(port)),
            environment={"TIDEGATE_LOG__LEVEL": "error"},
        )

    assert failed.returncode == 1
    (sentence,) = failed.stderr.decode().splitlines()
    assert sentence.startswith(f"tidegate: cannot show metrics on 127.0.0.1:{port}")
    wait_until_gone(str(store_folder))


def test_two_nodes_have_neighbouring_ports_and_a_dead_one_comes_back_on_its_own(
    store_folder: Path,
) -> None:
    port = free_ports(1)
    up = Up(store_folder, "--nodes", "2", "--metrics-port", str(port))
    try:
        addresses = METRICS.findall(up.log)
        assert addresses == [f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}"]
        names = set()
        for address in addresses:
            (sample,) = families(page(address, "/metrics"))["tidegate_node_uptime_seconds"].samples
            names.add(sample.labels["node"])
        assert len(names) == 2

        for node in processes_with(node_mark(up)):
            os.kill(int(node.partition(":")[0]), signal.SIGKILL)
        for address in addresses:
            assert page_when_there(address, "/readyz") == b"ready\n"
    finally:
        code, rest = up.stop()
    assert (code, rest) == (0, b""), "metrics addresses are for people, on stderr"
    with pytest.raises(urllib.error.URLError):
        page(addresses[0], "/healthz")


def test_without_a_word_the_port_is_a_thousand_above_the_nodes(store_folder: Path) -> None:
    port = free_ports(1000)
    up = Up(store_folder, "--port", str(port))
    try:
        assert METRICS.findall(up.log) == [f"http://127.0.0.1:{port + 1000}"]
    finally:
        up.end()


def test_where_that_port_is_taken_it_is_another(store_folder: Path) -> None:
    port = free_ports(1000)
    with socket.create_server(("127.0.0.1", port + 1000)):
        up = Up(store_folder, "--port", str(port))
        try:
            (elsewhere,) = METRICS.findall(up.log)
            assert page(elsewhere, "/readyz") == b"ready\n", "messages do not wait for metrics"
        finally:
            up.end()


def test_metrics_can_be_turned_off(store_folder: Path) -> None:
    up = Up(store_folder, environment={"TIDEGATE_METRICS__ENABLED": "false"})
    try:
        with client.connect(up.url) as mq:
            assert {node.metrics_address for node in mq.stats().nodes} == {""}
        assert METRICS.findall(up.log) == []
    finally:
        up.end()
