"""How a queue scales, and why it does, as a script asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from command_line import Script
from waiting import eventually

QUICK = ("--set", "polling_interval=200ms", "--set", "inhibition=200ms")


def serving(script: Script, queue: str, count: int) -> list[dict[str, Any]]:
    """Its replicas, when there are so many and all serve."""

    def found() -> list[dict[str, Any]]:
        replicas = script.json("scale", queue)["replicas"]
        return replicas if [one["state"] for one in replicas] == ["serving"] * count else []

    return eventually(found, f"{count} replicas of {queue} serve")


def test_a_queue_scales_by_hand_is_explained_and_becomes_plain_again(
    script: Script, queue: str
) -> None:
    script("create", queue)
    assert b"does not scale" in script("scale", queue).stdout
    assert script.json("scale", queue)["scaling"] is None

    shown = script.json("scale", queue, "--min", "1", "--max", "3", *QUICK)["scaling"]
    assert (shown["replicas"], shown["polling_interval"]) == ({"min": 1, "max": 3}, "200ms")
    serving(script, queue, 1)
    assert script.json("scale", queue, "--to", "2")["scaling"]["steering"] == "manual"
    serving(script, queue, 2)

    script("put", queue, "kept")
    listed = {one["queue"]: one for one in script.json("queues")}
    assert (listed[queue]["replicas"], listed[queue]["waiting"]) == (2, 1)
    assert f"{queue}#2" not in listed
    assert f"{queue}, replica 2" in script("status").stdout.decode()

    decisions = script.json("explain", queue)
    assert decisions[0]["rule"] == "manual"
    assert decisions[0]["outcome"] == "replica 2 serves now"
    assert all(decision["reason"] and decision["otherwise"] for decision in decisions)
    told = script("explain", queue).stdout.decode()
    for words in (
        "because\tA person has set the number of replicas to 2",
        "done\t1 replica more",
        "otherwise\t",
    ):
        assert words in told
    changes = [one for one in reversed(decisions) if one["law"] == "person"]
    assert all(one["rule"].startswith("changed by ") for one in changes)
    assert [one["reason"] for one in changes] == [
        "It scales from now on: 1 to 3 replicas, policy load.",
        "steering auto → manual, replicas_wanted none → 2.",
    ]

    ended = script("scale", queue, "--off")
    assert ended.returncode == 0, ended.stderr
    assert script("get", queue).stdout == b"kept\n"


def test_bounds_that_were_said_are_not_moved_by_others(script: Script, queue: str) -> None:
    script("create", queue)
    assert script.json("scale", queue, "--min", "2")["scaling"]["replicas"] == {"min": 2, "max": 2}
    refused = script("queue", "set", queue, "min=9")
    assert refused.returncode == 2
    assert "replicas min 9, max 2: must be 0 ≤ min ≤ max" in refused.stderr.decode()
    refused = script("queue", "set", queue, "min=many")
    assert "min = 'many': must be a whole number" in refused.stderr.decode()


def test_keys_of_the_policy_and_of_the_scaling_are_set_together(script: Script, queue: str) -> None:
    script("create", queue)
    assert script("queue", "set", queue, "lease=20s", "max=4", "max_wait=2s").returncode == 0
    assert script.json("policy", queue)["lease_s"] == 20.0
    scaling = script.json("scale", queue)["scaling"]
    assert (scaling["replicas"]["max"], scaling["max_wait"]) == (4, "2s")
    assert script.json("scale", queue, "--recommend-only")["scaling"]["steering"] == (
        "recommend-only"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["scale", "QUEUE", "--min", "5", "--max", "2"], "0 ≤ min ≤ max"),
        (["scale", "QUEUE", "--max", "2", "--to", "3"], "between min 1 and max 2"),
        (["scale", "QUEUE", "--to", "99"], "between min 1 and max 1 of queue QUEUE"),
        (["scale", "QUEUE", "--to", "99"], "`tidegate scale QUEUE --to 99 --max 99` moves it"),
        (["scale", "QUEUE", "--to", "0"], "`tidegate scale QUEUE --to 0 --min 0` moves it"),
        (["scale", "QUEUE", "--to", "10001"], "no queue has more than 10000 replicas"),
        (["scale", "QUEUE", "--to", "1", "--auto"], "one of them"),
        (["scale", "QUEUE", "--max-wait", "soon"], "a duration"),
        (["scale", "QUEUE", "--worker", "shop"], "module:app"),
        (["scale", "QUEUE", "--from-settings"], "no section [queues.QUEUE]"),
        (["queue", "set", "QUEUE", "max_lod=3"], "did you mean max_load?"),
        (["queue", "set", "QUEUE", "max"], "write max=VALUE"),
        (["scale", "nonesuch", "--max", "2"], "no queue named 'nonesuch'"),
        (["explain", "nonesuch"], "no queue named 'nonesuch'"),
    ],
)
def test_scale_refuses_invalid_options_with_a_sentence(
    script: Script, queue: str, arguments: list[str], says: str
) -> None:
    script("create", queue, "--exist-ok")
    refused = script(*(one.replace("QUEUE", queue) for one in arguments))
    assert refused.returncode == (1 if "nonesuch" in arguments else 2)
    assert says.replace("QUEUE", queue) in refused.stderr.decode()


def test_advice_of_a_refused_scale_command_works(script: Script, queue: str) -> None:
    script("create", queue)
    script("scale", queue, "--min", "1", "--max", "2", "--to", "2", *QUICK)
    refused = script("scale", queue, "--to", "3")
    assert refused.returncode == 2
    *_, advice = refused.stderr.decode().split("`tidegate ")
    moved = script.json(*advice.partition("`")[0].split())["scaling"]
    assert (moved["replicas"]["max"], moved["replicas_wanted"]) == (3, 3)


def judged(script: Script, queue: str) -> dict[str, Any]:
    """What `sla` says of a queue, once there is something."""

    def found() -> dict[str, Any]:
        said = script("sla", "--json")
        # 3: there is none yet.
        assert said.returncode in (0, 3), said.stderr
        rows = msgspec.json.decode(said.stdout)
        return next((row for row in rows if row["governs"] == f"queue {queue}"), {})

    return eventually(found, f"`sla` knows queue {queue}")


def test_a_queue_obeys_the_agreement_of_a_file_and_says_what_it_asked(
    script: Script, queue: str, tmp_path: Path
) -> None:
    script("create", queue)
    file = tmp_path / "orders.toml"
    promise = (
        f'name = "shop"\nqueue = "{queue}"\nwindow = "1s"\n[metrics.wait_p99]\nbreach = "6s"\n'
    )
    file.write_text(promise)
    agreed = ("queue", "set", queue, "--policy", "agreement", "--agreement", str(file))
    refused = script(*agreed).stderr.decode()
    assert "does not say how many replicas there may be" in refused
    file.write_text("replicas = { min = 2, max = 4 }\n" + promise.replace("6s", "soon"))
    refused = script(*agreed).stderr.decode()
    assert f"{file}:6: metrics.wait_p99.breach" in refused
    more = "[metrics.throughput]\nbreach = 130\n"
    file.write_text("replicas = { min = 2, max = 4 }\ncapacity = 30\n" + promise + more)
    refused = script(*agreed).stderr.decode()
    assert "6 replicas are needed, and replicas.max is 4" in refused
    file.write_text(
        'insufficient = "reduce"\nreplicas = { min = 2, max = 4 }\ncapacity = 30\n' + promise + more
    )
    reduced = script(*agreed)
    assert reduced.returncode == 0
    assert "offered are 4 replica(s)" in reduced.stderr.decode()
    assert "kept up to 114/s" in judged(script, queue)["reduced"]
    file.write_text("replicas = { min = 2, max = 4 }\n" + promise)
    assert script(*agreed).returncode == 0
    scaling = script.json("scale", queue)["scaling"]
    assert (scaling["policy"], scaling["replicas"]) == ("agreement", {"min": 2, "max": 4})
    assert scaling["agreement"].startswith("shop (")
    serving(script, queue, 2)
    assert any(one["law"] == "agreement" for one in script.json("explain", queue))
    standing = judged(script, queue)
    assert (standing["agreement"], standing["budget_left"]) == ("shop", 1.0)
    refused = script("scale", queue, "--agreement", "none").stderr.decode()
    assert "must have an agreement to obey" in refused
    assert script("scale", queue, "--policy", "load", "--agreement", "none").returncode == 0
    assert script.json("scale", queue)["scaling"]["agreement"] is None


def test_explain_of_a_plain_queue_has_no_decisions(script: Script, queue: str) -> None:
    script("create", queue)
    assert script.json("explain", queue) == []
    assert b"nothing was decided" in script("explain", queue).stdout
