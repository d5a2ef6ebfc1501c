"""Topics, as a script uses them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from command_line import CommandLine, Up, clean_environment
from test_commands import Script


@pytest.fixture
def script(command_line: CommandLine, up: Up) -> Script:
    return Script(command_line, up)


def test_what_is_published_comes_to_its_subscriptions(script: Script, queue: str) -> None:
    topic = f"topic-of-{queue}"
    assert script("topic", "create", topic).returncode == 0
    assert script.json("topic", "create", topic, "--exist-ok")["topic"] == topic
    assert script("subscribe", topic, f"{queue}-all").returncode == 0
    made = script.json(
        *("subscribe", topic, f"{queue}-eu"),
        *("--filter", "region=eu", "--filter", "kind=a", "--filter", "kind=b"),
    )
    assert made["filter"] == {"region": "eu", "kind": ["a", "b"]}

    both = script.json("publish", topic, "hello", "--header", "region=eu", "--header", "kind=b")
    assert both == {"topic": topic, "messages": 1, "stored": 2}
    lines = script.json("publish", topic, stdin=b"one\ntwo\n")
    assert lines == {"topic": topic, "messages": 2, "stored": 2}

    assert script("get", f"{queue}-all", "--count", "0").stdout == b"hello\none\ntwo\n"
    assert script("get", f"{queue}-eu", "--count", "0").stdout == b"hello\n"
    (listed,) = [each for each in script.json("topics") if each["topic"] == topic]
    assert [each["queue"] for each in listed["subscriptions"]] == [f"{queue}-all", f"{queue}-eu"]
    table = script("topics").stdout.decode()
    assert f"{topic}\t{queue}-eu\tkind=a kind=b region=eu\tyes" in table

    assert script("unsubscribe", topic, f"{queue}-eu").returncode == 0
    assert script("publish", topic, "x", "--header", "region=eu").stdout.startswith(b"1 published")
    assert script.json("topic", "delete", topic) == {"deleted": topic}
    gone = script("publish", topic, "x")
    assert (gone.returncode, b"no topic" in gone.stderr) == (1, True)
    assert script("subscribe", topic, queue, "--filter", "nonsense").returncode == 2


def test_messages_are_printed_as_they_come(script: Script, up: Up, queue: str) -> None:
    topic = f"topic-of-{queue}"
    script("topic", "create", topic)
    with subprocess.Popen(
        [sys.executable, "-m", "tidegate", "subscribe", topic, "--count", "2"],
        env=clean_environment() | {"TIDEGATE_URL": up.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as following:
        assert following.stderr is not None
        assert following.stdout is not None
        assert b"waiting" in following.stderr.readline()
        for text in ("one", "two"):
            assert script.json("publish", topic, text)["stored"] == 1
        assert following.stdout.read() == b"one\ntwo\n"
        assert following.wait(20) == 0
    # Its queue went with it.
    names = [each["queue"] for each in json.loads(script("queues", "--json").stdout)]
    assert not [name for name in names if name.startswith(f"{topic}.")]
