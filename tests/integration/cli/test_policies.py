"""What a queue promises and what it gave up, as a script asks for it."""

from __future__ import annotations

import pytest
from command_line import Script
from served_node import ServedNode
from waiting import eventually

import tidegate


def test_a_policy_is_set_shown_and_changed(script: Script, queue: str) -> None:
    assert script("create", queue, "--set", "lease=90s", "--set", "bytes_max=1MiB").returncode == 0
    shown = script.json("policy", queue)
    assert (shown["lease_s"], shown["bytes_max"], shown["deliveries_max"]) == (90.0, 2**20, 10)
    changed = script.json("policy", queue, "--set", "lease=none", "--set", "overflow=drop")
    assert (changed["lease_s"], changed["overflow"], changed["bytes_max"]) == (None, "drop", 2**20)
    assert b"overflow\tdrop\tslow" in script("policy", queue).stdout


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("leese=3s", b"a policy has no 'leese'; it has lease"),
        ("overflow=explode", b"one of slow, refuse, drop"),
        ("lease", b"write lease=VALUE"),
        ("deliveries_max=many", b"deliveries_max"),
        ("lease=0s", b"lease_s runs from"),
    ],
)
def test_a_bad_setting_says_what_is_allowed(
    script: Script, queue: str, setting: str, text: bytes
) -> None:
    script("create", queue)
    refused = script("policy", queue, "--set", setting)
    assert refused.returncode == 2
    assert text in refused.stderr


def test_a_paused_queue_gives_nothing(script: Script, queue: str) -> None:
    script("put", queue, "x", "--create")
    assert script("pause", queue).returncode == 0
    held = script("get", queue)
    assert (held.returncode, b"paused" in held.stderr) == (3, True)
    assert script("resume", queue).returncode == 0
    assert script("get", queue).stdout == b"x\n"


def test_dead_letters_are_looked_at_and_sent_back(
    script: Script, served: ServedNode, queue: str
) -> None:
    script("create", queue)
    assert script.json("dead", queue) == []
    assert script.json("redrive", queue)["redriven"] == 0
    assert script("redrive", "nonesuch").returncode == 1
    for payload in ("1", "2"):
        script("put", queue, payload)
    with tidegate.connect(served.url) as mq:
        for _ in range(2):
            mq.get(queue, lease=30).reject(error="ValueError: no")
        # A rejection does not wait for the dead letters' queue to be made.
        eventually(lambda: len(mq.browse(f"{queue}.dead")) == 2)
    dead = script.json("dead", queue)
    assert [(m["payload"], m["deaths"][0]["error"]) for m in dead] == [
        ("1", "ValueError: no"),
        ("2", "ValueError: no"),
    ]
    assert dead[0]["deaths"][0]["reason"] == "rejected"
    chosen = script.json("redrive", queue, "--id", str(dead[1]["message_id"]))
    assert chosen["redriven"] == 1
    assert script("get", queue).stdout == b"2\n"
    assert script("redrive", f"{queue}.dead").stdout == b"1 message sent back\n"
    assert script("get", queue).stdout == b"1\n"
    assert script("dead", "nonesuch").returncode == 1


def test_a_put_may_say_when_and_how_often(script: Script, queue: str) -> None:
    script("create", queue)
    assert script("put", queue, "later", "--delay", "1h").returncode == 0
    assert script("put", queue, "once", "--dedup-id", "d").stdout.strip() != b"0"
    assert script("put", queue, "twice", "--dedup-id", "d").stdout.strip() == b"0"
    assert script("get", queue, "--count", "0").stdout == b"once\n"
    assert script("put", queue, "x", "--delay", "soon").returncode == 2
