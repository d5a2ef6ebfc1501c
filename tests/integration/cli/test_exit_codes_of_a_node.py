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
def test_what_is_not_there_or_cannot_be_reached_is_a_failure(
    script: Script, arguments: list[str]
) -> None:
    finished = script(*arguments)

    assert finished.returncode == FAILED, finished.stderr
    assert b"Traceback" not in finished.stderr
