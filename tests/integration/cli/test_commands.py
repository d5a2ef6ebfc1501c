"""Every client command, as a script uses it: output, JSON and exit codes."""

from __future__ import annotations

import base64

import pytest
from command_line import CommandLine, Script, lines
from served_node import ServedNode

import tidegate as client
from tidegate.broker.node import Node
from tidegate.client.blocking import LoopThread
from tidegate.storage.postgres.store import PostgresStore

BOX = set("╭╮╰╯│─┏┓┗┛┃━┡┩└┘├┤")


def test_a_message_goes_in_and_comes_out(script: Script, queue: str) -> None:
    assert script("create", queue).returncode == 0

    put = script("put", queue, "hello")
    got = script("get", queue)

    assert put.returncode == 0
    assert put.stdout.strip().isdigit(), "a lone put prints the id of its message"
    assert (got.returncode, got.stdout) == (0, b"hello\n")
    assert script("get", queue).returncode == 3, "taken for good"


def test_lines_of_stdin_are_messages_in_order(script: Script, queue: str) -> None:
    put = script.json("put", queue, "-", "--create", stdin=b"one\ntwo\n\nfour")
    got = script("get", queue, "--count", "0")

    assert put == {"queue": queue, "messages": 4}
    assert got.stdout == b"one\ntwo\n\nfour\n"


def test_bytes_that_are_no_text_survive(script: Script, queue: str) -> None:
    payload = b"\xff\x00\x01\n\xfe"
    for _ in range(2):
        script("put", queue, "--whole", "--create", stdin=payload)

    shown = script.json("get", queue)
    raw = script("get", queue, "--raw")

    assert base64.b64decode(shown["payload_base64"]) == payload
    assert "payload" not in shown
    assert raw.stdout == payload


def test_a_message_shows_all_it_carries(script: Script, queue: str) -> None:
    script("create", queue)
    options = ["--priority", "9", "--context", "7", "--content-type", "text/plain"]
    message_id = script.json("put", queue, "ä", *options, "--header", "k=v=w")["message_id"]

    (peeked,) = script.json("peek", queue)

    assert peeked["message_id"] == message_id
    assert peeked["payload"] == "ä"
    assert (peeked["priority"], peeked["context"]) == (9, 7)
    assert (peeked["content_type"], peeked["headers"]) == ("text/plain", {"k": "v=w"})
    assert script.json("get", queue, "--context", "7")["message_id"] == message_id


def test_order_and_giving_back(script: Script, queue: str) -> None:
    script("create", queue)
    script("put", queue, "first")
    script("put", queue, "urgent", "--priority", "10")

    shown = script("get", queue, "--order", "priority", "--no-ack")
    again = script.json("get", queue, "--order", "priority")
    oldest = script("get", queue)

    assert shown.stdout == b"urgent\n"
    assert (again["payload"], again["redelivered"]) == ("urgent", True)
    assert oldest.stdout == b"first\n"


def test_a_message_for_a_client_is_for_no_other(
    script: Script, served: ServedNode, queue: str
) -> None:
    script("create", queue)
    script("put", queue, "for bob", "--receiver", "bob")

    assert script("get", queue).returncode == 3
    with client.connect(served.url, name="bob") as bob:
        assert bob.get(queue).payload == b"for bob"


def test_empty_queue_exits_3(script: Script, queue: str) -> None:
    script("create", queue)

    for command in (["get", queue], ["get", queue, "--wait", "10ms"], ["peek", queue]):
        finished = script(*command)
        assert finished.returncode == 3, command
        assert finished.stdout == b""
        assert finished.stderr.startswith(b"tidegate: queue")
    assert script("peek", queue, "--json").stdout.strip() == b"[]"


def test_queues_are_listed_purged_and_deleted(script: Script, queue: str) -> None:
    created = script.json("create", queue, "--transient")
    script("put", queue, "--", "a")
    script("put", queue, "-", stdin=b"b\nc\n")

    listed = {entry["queue"]: entry for entry in script.json("queues")}
    purged = script.json("purge", f"#{created['queue_id']}")
    deleted = script("delete", queue)

    assert created["durable"] is False
    assert listed[queue]["waiting"] == 3
    assert purged["dropped"] == 3
    assert deleted.returncode == 0
    assert queue not in {entry["queue"] for entry in script.json("queues")}


def test_creating_twice_is_an_error_unless_it_is_fine(script: Script, queue: str) -> None:
    script("create", queue)

    again = script("create", queue)

    assert again.returncode == 1
    assert again.stderr == f"tidegate: a queue named {queue!r} exists\n".encode()
    assert script("create", queue, "--exist-ok").returncode == 0


def test_status_and_nodes_know_the_node(script: Script, served: ServedNode, queue: str) -> None:
    script("create", queue)
    script("put", queue, "x")

    status = script.json("status", "--queue", queue)
    (listed,) = [one for one in script.json("nodes") if one["alive"]]

    (node,) = status["nodes"]
    assert node["address"] == listed["address"] == served.url
    (numbers,) = node["queues"]
    assert (numbers["name"], numbers["put"], numbers["waiting"]) == (queue, 1, 1)
    assert served.url in [line.split("\t")[2] for line in lines(script("nodes"))]


def test_ping_measures(script: Script, served: ServedNode) -> None:
    answer = script.json("ping", "--count", "3")

    assert answer["url"] == served.url
    assert len(answer["round_trip_ms"]) == 3
    assert served.url in script("ping").stdout.decode()


def test_an_admin_changes_the_prefetch_of_a_consumer(
    script: Script, served: ServedNode, queue: str
) -> None:
    script("create", queue)
    lonely = script("prefetch", queue, "50")

    with client.connect(served.url) as mq, mq.subscribe(queue, prefetch=10):
        (changed,) = script.json("prefetch", queue, "50")
        numbers = mq.stats(queue).queue(queue)
        assert numbers is not None
        assert numbers.consumers[0].prefetch == 50
    assert (changed["before"], changed["prefetch"]) == (10, 50)
    assert lonely.returncode == 1
    assert b"no such consumer" in lonely.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ping", "--url", "tidegate://127.0.0.1:1"], "nothing answers at 127.0.0.1:1"),
        (["get", "no-such-queue"], "no queue named 'no-such-queue'"),
        (["put", "no-such-queue", "x"], "no queue named 'no-such-queue'"),
        (["put", "no-such-queue"], "no queue named 'no-such-queue'"),
        (["peek", "no-such-queue"], "no queue named 'no-such-queue'"),
        (["move", "no-such-queue", "77"], "no living node is called 77"),
    ],
)
def test_an_expected_failure_is_one_sentence(
    script: Script, arguments: list[str], says: str
) -> None:
    finished = script(*arguments)

    assert finished.returncode == 1
    assert finished.stdout == b""
    (sentence,) = finished.stderr.decode().splitlines()
    assert sentence.startswith("tidegate: ")
    assert says in sentence


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ping", "--url", "http://x"], "nothing here speaks http"),
        (["status", "--url", "amqp://127.0.0.1/"], "`tidegate steer`"),
        (["config", "--config", "/no/such.toml"], "/no/such.toml: cannot be read"),
    ],
)
def test_nonsense_argument_gives_a_one_line_error(
    command_line: CommandLine, arguments: list[str], says: str
) -> None:
    finished = command_line(*arguments)

    assert (finished.returncode, finished.stdout) == (2, b"")
    (sentence,) = finished.stderr.decode().splitlines()
    assert sentence.startswith("tidegate: ")
    assert says in sentence


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["get"],
        ["get", "q", "--wait", "5 parsecs"],
        ["put", "q", "x", "--priority", "11"],
        ["put", "q", "x", "--header", "nothing"],
        ["put", "q", "x", "--whole"],
        ["bench", "compare", "--only", "no-such-system"],
    ],
)
def test_wrong_usage_is_exit_code_2(command_line: CommandLine, arguments: list[str]) -> None:
    finished = command_line(*arguments)

    assert finished.returncode == 2
    assert b"Error" in finished.stderr
    assert b"Traceback" not in finished.stderr
    assert not BOX & set(finished.stderr.decode()), "boxes are for terminals"


def test_piped_output_has_tabs_and_no_boxes(script: Script, queue: str) -> None:
    script("create", queue)
    script("put", queue, "tab\tin it")

    for command in (["queues"], ["nodes"], ["status"], ["peek", queue], ["--help"]):
        text = script(*command).stdout.decode()
        assert text
        assert not BOX & set(text), command
        assert "\x1b" not in text
    header, row = lines(script("peek", queue))
    assert len(header.split("\t")) == len(row.split("\t"))
    assert row.endswith("tab\\tin it")


def test_config_shows_what_holds_and_no_secret(command_line: CommandLine) -> None:
    finished = command_line(
        "config",
        environment={
            "TIDEGATE_STORE__URL": "postgresql://me:hush@host/db",
            "TIDEGATE_NODE__LEASE": "1500ms",
        },
    )
    shown = finished.stdout.decode()
    assert 'lease = "1.5s"' in shown
    assert 'url = "postgresql://me:***@host/db"' in shown
    assert "hush" not in shown


def test_load_on_a_node_is_counted_and_leaves_no_queue(script: Script) -> None:
    def names() -> list[str]:
        return [entry["queue"] for entry in script.json("queues")]

    before = names()
    report = script.json(
        *("bench", "run", "--rate", "200", "--seconds", "1", "--size", "1KiB"),
        *("--producers", "2", "--consumers", "2", "--prefetch", "10"),
    )

    tally = report["tally"]
    assert report["lost"] == 0
    assert 0 < tally["put"] == tally["confirmed"] == tally["handled"]
    assert tally["repeated"] == 0
    assert tally["confirm"]["p99_ms"] > 0
    assert names() == before


def test_version_option_prints_the_version(command_line: CommandLine) -> None:
    finished = command_line("--version")
    assert (finished.returncode, lines(finished)) == (0, [f"tidegate {client.__version__}"])


def test_a_queue_moves_to_the_node_it_is_given_to(
    script: Script, served: ServedNode, queue: str
) -> None:
    thread = LoopThread()
    other = Node(PostgresStore(served.store_url), name="other")
    thread.wait(other.start())
    try:
        script("create", queue)
        moved = script("move", queue, other.address)
        assert moved.returncode == 0, moved.stderr
        assert script("put", queue, "x").returncode == 0
        owners = [
            node["address"]
            for node in script.json("status", "--queue", queue)["nodes"]
            if node["queues"]
        ]
        assert owners == [other.address]
        assert script("get", queue).stdout == b"x\n"
        script("delete", queue)
    finally:
        thread.wait(other.stop())
        thread.stop()
