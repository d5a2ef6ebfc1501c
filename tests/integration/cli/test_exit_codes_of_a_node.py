"""Commands that ask a node or a store for what is not there: one rule says how each ends."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from command_line import CommandLine, Script
from served_node import ServedNode

from tidegate.cli.exit_codes import FAILED, NOTHING_THERE


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["get", "nonesuch"], {}),
        (["policy", "nonesuch"], {}),
        (["scale", "nonesuch", "--max", "2"], {}),
        (["move", "nonesuch", "77"], {}),
        (["sla", "nonesuch"], {}),
        (["undeploy", "nonesuch"], {}),
        (["door", "nonesuch"], {}),
        (["hold", "nonesuch", "--instances", "2"], {}),
        (["user", "remove", "nonesuch"], {}),
        (["learn", "--lake", "/no/such/lake"], {}),
        (["up", "--port", "0"], {"TIDEGATE_STORE__URL": "postgresql://me@127.0.0.1:1/x"}),
        (["node", "--port", "0"], {"TIDEGATE_STORE__URL": "postgresql://me@127.0.0.1:1/x"}),
        (["agreement", "check", "/no/such.toml"], {}),
        (["agreement", "check", "/no/such.toml", "--json"], {}),
        (["report", "--out", "/"], {}),
    ],
    ids=lambda words: " ".join(words),
)
def test_what_is_not_there_or_cannot_be_reached_is_a_failure(
    command_line: CommandLine,
    served: ServedNode,
    arguments: list[str],
    environment: Mapping[str, str],
) -> None:
    here = {"TIDEGATE_URL": served.url, "TIDEGATE_STORE__URL": served.store_url}
    finished = command_line(*arguments, environment=here | environment)

    assert finished.returncode == FAILED, finished.stderr
    assert b"Traceback" not in finished.stderr


def test_nothing_there_is_no_failure(script: Script, queue: str) -> None:
    assert script("create", queue).returncode == 0
    for command in ("get", "peek"):
        assert script(command, queue).returncode == NOTHING_THERE
