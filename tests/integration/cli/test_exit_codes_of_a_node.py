"""Commands that ask a node or a store for what is not there: one rule says how each ends."""

from __future__ import annotations

import pytest
from command_line import Script

from tidegate.cli.command_line import FAILED


@pytest.mark.parametrize(
    "arguments",
    [
        ["sla", "nonesuch"],
        ["undeploy", "nonesuch"],
        ["door", "nonesuch"],
        ["agreement", "check", "/no/such.toml"],
        ["agreement", "check", "/no/such.toml", "--json"],
        ["report", "--out", "/"],
    ],
    ids=" ".join,
)
def test_missing_queue_or_node_exits_1(script: Script, arguments: list[str]) -> None:
    finished = script(*arguments)

    assert finished.returncode == FAILED, finished.stderr
    assert b"Traceback" not in finished.stderr
