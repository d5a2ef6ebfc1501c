"""Durations are shown as people write them, and those of nothing are refused where they mean it."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from tidegate.cli.app import app


@pytest.mark.parametrize(
    ("command", "defaults", "numbers"),
    [
        ("watch", ("1h", "60s", "5s"), ("3600.0", "60.0", "5.0")),
        ("worker", ("30s",), ("30.0",)),
        ("get", ("no wait", "60s"), ("default: 0", "60.0")),
        ("ping", ("no wait",), ("default: 0",)),
        ("status", ("1s",), ("1.0",)),
        ("top", ("1s",), ("1.0",)),
    ],
)
def test_defaults_have_their_unit(
    command: str, defaults: tuple[str, ...], numbers: tuple[str, ...]
) -> None:
    shown = " ".join(CliRunner().invoke(app, [command, "--help"]).output.split())
    for default in defaults:
        assert f"[default: {default}]" in shown
    for number in numbers:
        assert number not in shown


def test_looking_all_the_time_is_refused() -> None:
    refused = CliRunner().invoke(app, ["watch", "--every", "0s"])
    assert refused.exit_code == 2
    assert "no time at all" in refused.output


def test_a_report_says_that_it_reads_what_was_learned() -> None:
    shown = CliRunner().invoke(app, ["report", "--help"]).output
    assert "Read the learned models" in shown
    assert "Write the learned models" not in shown
