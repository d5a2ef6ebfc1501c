"""`tidegate up`: what it prints, who holds a folder, and that it leaves nothing behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from command_line import CommandLine, Up, node_mark, processes_with, wait_until_gone
from waiting import LIMIT_S, eventually

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
    command_line: CommandLine, up: Up, store_folder: Path
) -> None:
    port = up.url.rpartition(":")[2]

    failed = command_line(
        *("up", "--data", str(store_folder / "data"), "--port", port),
        environment={"TIDEGATE_LOG__LEVEL": "error"},
    )

    assert failed.returncode == 1
    (sentence,) = failed.stderr.decode().splitlines()
    assert sentence == (
        f"tidegate: cannot listen on 127.0.0.1:{port}: Address already in use; choose another with "
        "--port, or end what listens there"
    )
    wait_until_gone(str(store_folder))


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
    eventually(lambda: list(lake.glob("node_samples/date=*/hour=*/*.parquet")))


def test_a_node_wants_a_store(command_line: CommandLine) -> None:
    failed = command_line("node")

    assert failed.returncode == 2
    assert failed.stderr == b"tidegate: which store? give --join URL, or set store.url\n"


def test_told_to_stop_it_drains_and_leaves_nothing_running(store_folder: Path, queue: str) -> None:
    up = Up(store_folder, "--nodes", "2")
    assert len(set(up.addresses)) == 2
    with client.connect(up.url) as mq:
        mq.create_queue(queue)
        mq.put_many(queue, [b"%d" % n for n in range(1000)])

    code, rest = up.stop(signal.SIGTERM)

    assert (code, rest) == (0, b""), "addresses are all it prints"
    assert processes_with(str(store_folder), node_mark(up)) == []

    again = Up(store_folder)
    try:
        with client.connect(again.url) as mq:
            assert mq.purge(queue) == 1000
    finally:
        code, rest = again.stop(signal.SIGINT)
    assert (code, rest) == (0, b"")
    assert processes_with(str(store_folder), node_mark(again)) == []
    assert "Traceback" not in up.log + again.log


def test_killed_it_takes_everything_along(store_folder: Path) -> None:
    up = Up(store_folder, "--nodes", "2")
    # A process that a node starts looks like it for a moment.
    eventually(lambda: len(processes_with(node_mark(up))) == 2)

    up.stop(signal.SIGKILL)

    wait_until_gone(str(store_folder), node_mark(up))
    again = Up(store_folder)
    code, _ = again.stop()
    assert code == 0


def test_a_node_that_dies_comes_back_where_it_was(up: Up, queue: str) -> None:
    said = "a node died and is started again"
    before = up.log.count(said)
    with client.connect(up.url, reconnect_s=LIMIT_S) as mq:
        mq.create_queue(queue)
        mq.put(queue, b"x")
        (node,) = processes_with(node_mark(up))
        os.kill(int(node.partition(":")[0]), signal.SIGKILL)
        assert mq.get(queue, wait=LIMIT_S).payload == b"x"
    assert up.log.count(said) == before + 1
