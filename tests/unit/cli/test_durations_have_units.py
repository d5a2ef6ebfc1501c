"""A duration is written with its unit, wherever one is written."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import typer.main
from command_line import CommandLine

from tidegate.cli.app import app
from tidegate.cli.queues import parse_policy
from tidegate.cli.settings import SettingsInvalid, load_settings
from tidegate.core.errors import InvalidValue

NOBODY = "tidegate://127.0.0.1:1"


def _duration_options() -> list[tuple[str, str]]:
    """Every command with every option of it that takes a duration."""
    found: list[tuple[str, str]] = []

    def walk(command: Any, words: tuple[str, ...]) -> None:
        for name, one in getattr(command, "commands", {}).items():
            walk(one, (*words, name))
        found.extend(
            (" ".join(words), parameter.opts[0])
            for parameter in command.params
            if getattr(parameter, "metavar", None) == "DURATION"
        )

    walk(typer.main.get_command(app), ())
    return found


# What commands cannot do without, so that nothing else is refused first.
_NEEDED = {
    "put": ["q", "x"],
    "get": ["q"],
    "worker": ["shop:app"],
    "door": ["shop"],
    "deploy": ["shop:app", "--agreement", "shop.toml"],
    "host": ["shop:app", "--agreement", "shop.toml"],
    "scale": ["q"],
    "policy": ["q", "--prefetch-rate", "9/s"],
    "create": ["q", "--prefetch-rate", "9/s"],
    "queue set": ["q", "--prefetch-rate", "9/s"],
    "tune prefetch": [NOBODY, "-q", "q", "--target", "9/s"],
    "steer": ["amqp://127.0.0.1:1/", "-q", "q", "--replicas", "1..2"],
}


def test_there_are_some() -> None:
    assert len(_duration_options()) > 20


@pytest.mark.parametrize(("command", "option"), _duration_options())
@pytest.mark.parametrize("bare", ["5", "0", "1.5"])
def test_a_bare_number_says_not_of_what(
    command_line: CommandLine, command: str, option: str, bare: str
) -> None:
    arguments = [*command.split(), *_NEEDED.get(command, []), option, bare]
    refused = command_line(*arguments, environment={"TIDEGATE_URL": NOBODY})

    assert refused.returncode == 2
    said = " ".join(refused.stderr.decode().split())
    assert "a duration: a number and one of us, ms, s, m, h, d" in said


@pytest.mark.parametrize("setting", ["lease=30", "ttl=1.5", "lease_s=30"])
def test_a_policy_wants_units(setting: str) -> None:
    with pytest.raises(InvalidValue, match=r"must be a duration: .* such as 250ms or 30s"):
        parse_policy([setting])


def test_settings_want_units_of_queues_as_of_nodes(tmp_path: Path) -> None:
    file = tmp_path / "tidegate.toml"
    for wrong in ("[queues.orders]\nmax_wait = 2", "[fleet]\ndrain = 30"):
        file.write_text(wrong)
        with pytest.raises(SettingsInvalid, match="must be a duration: "):
            load_settings(file, {})
    for right in ('[queues.orders]\nmax_wait = "2s"', "[queues.orders]\nmax_wait_s = 2"):
        file.write_text(right)
        assert load_settings(file, {}).queues["orders"].max_wait_s == 2.0


def test_options_that_take_a_duration_say_so() -> None:
    # Not those whose name says what they count.
    for command, option in _duration_options():
        assert not option.endswith(("-s", "seconds")), inspect.cleandoc(command)
