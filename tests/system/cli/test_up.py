"""`tidegate up`: what it prints, who holds a folder, and that it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from command_line import CommandLine, Up, node_mark, processes_with, tidegate, wait_until_gone

import tidegate as client


def test_a_second_up_on_the_same_folder_says_who_holds_it(
    command_line: CommandLine, up: Up
) -> None:
    second = command_line("up", "--data", str(up.folder / "data"), "--port", "0")

    assert second.returncode == 1
    assert second.stdout == b""
    (sentence,) = second.stderr.decode().splitlines()
    assert f"held by process {up.process.pid} (" in sentence
    assert "Stop it, or name another data folder." in sentence
    assert command_line("ping", "--url", up.url).returncode == 0, "the first one is undisturbed"


def test_a_port_that_is_taken_is_one_sentence(
    command_line: CommandLine, up: Up, folder: Path
) -> None:
    port = up.url.rpartition(":")[2]

    failed = command_line(
        *("up", "--data", str(folder / "data"), "--port", port),
        environment={"TIDEGATE_LOG__LEVEL": "error"},
    )

    assert failed.returncode == 1
    (sentence,) = failed.stderr.decode().splitlines()
    assert sentence == (
        f"tidegate: cannot listen on 127.0.0.1:{port}: Address already in use; choose another with "
        "--port, or end what listens there"
    )
    assert wait_until_gone(str(folder)) == []


def test_a_store_that_does_not_answer_is_one_sentence_without_its_password(
    command_line: CommandLine,
) -> None:
    store = "postgresql://me:hush@127.0.0.1:1/db"
    for arguments in (["up", "--port", "0"], ["node", "--port", "0"]):
        failed = command_line(*arguments, environment={"TIDEGATE_STORE__URL": store})

        assert failed.returncode == 1
        (sentence,) = failed.stderr.decode().splitlines()
        assert sentence.startswith("tidegate: the store does not answer")
        assert "hush" not in sentence


def test_its_nodes_record_beside_the_data(up: Up) -> None:
    lake = up.folder / "data" / "lake"
    deadline = time.monotonic() + 30.0
    while not list(lake.glob("node_samples/date=*/hour=*/*.parquet")):
        assert time.monotonic() < deadline, "nothing is recorded"
        time.sleep(0.05)


def test_a_node_wants_a_store(command_line: CommandLine) -> None:
    failed = command_line("node")

    assert failed.returncode == 2
    assert failed.stderr == b"tidegate: which store? give --join URL, or set store.url\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_it_drains_and_leaves_nothing_running(folder: Path, number: int) -> None:
    up = Up(folder, "--nodes", "2")
    assert len(set(up.addresses)) == 2
    with client.connect(up.url) as mq:
        mq.create_queue("kept")
        mq.put_many("kept", [b"%d" % n for n in range(1000)])

    code, rest = up.stop(number)

    assert (code, rest) == (0, b""), "addresses are all it prints"
    assert processes_with(str(folder), node_mark(up)) == []
    assert "Traceback" not in up.log

    again = Up(folder)
    try:
        with client.connect(again.url) as mq:
            assert mq.purge("kept") == 1000
    finally:
        again.end()


def test_killed_it_takes_everything_along(folder: Path) -> None:
    up = Up(folder, "--nodes", "2")
    assert len(processes_with(node_mark(up))) == 2

    up.stop(signal.SIGKILL)

    assert wait_until_gone(str(folder), node_mark(up)) == []
    again = Up(folder)
    code, _ = again.stop()
    assert code == 0


def test_a_node_that_dies_comes_back_where_it_was(folder: Path) -> None:
    up = Up(folder)
    try:
        with client.connect(up.url) as mq:
            mq.create_queue("kept")
            mq.put("kept", b"x")
            (node,) = processes_with(node_mark(up))
            os.kill(int(node.partition(":")[0]), signal.SIGKILL)
            assert mq.get("kept", wait=20.0).payload == b"x"
        assert "a node died and is started again" in up.log
    finally:
        up.end()


def test_a_queue_moves_to_the_node_it_is_given_to(folder: Path) -> None:
    up = Up(folder, "--nodes", "2")
    try:
        first, second = up.addresses
        tidegate("create", "moving", "--url", first)
        moved = tidegate("move", "moving", second, "--url", first)
        assert moved.returncode == 0, moved.stderr
        assert tidegate("put", "moving", "x", "--url", first).returncode == 0
        with client.connect(first) as mq:
            owners = [node.address for node in mq.stats("moving").nodes if node.queues]
            assert owners == [second]
        assert tidegate("get", "moving", "--url", first).stdout == b"x\n"
    finally:
        up.end()
