"""Topics, as a script uses them."""

from __future__ import annotations

from command_line import Script


def test_published_message_reaches_its_subscriptions(script: Script, queue: str) -> None:
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
