"""The command line: commands, arguments and options, and the codes that commands end with."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
import typer.main
from command_line import CommandLine
from golden_api import public_names
from golden_files import Golden
from golden_shapes import shape, value_text

import tidegate
from tidegate.cli import command_line as exit_codes
from tidegate.cli import command_line as runner
from tidegate.cli.app import app
from tidegate.core.errors import TidegateError

# These come with the lab.
_OF_THE_LAB = ("bench", "lab")
_NOBODY = "tidegate://127.0.0.1:1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "load.csv").write_text("t_s,rate\n0,10\n5,20\n10,10\n")
    (tmp_path / "wrong.toml").write_text('name = "shop"\n')
    return tmp_path


def test_commands_are_as_they_were(golden: Golden) -> None:
    golden("cli/commands.txt", _commands(is_of_lab=False))


def test_commands_of_the_lab_are_as_they_were(golden: Golden) -> None:
    golden("cli/commands_of_the_lab.txt", _commands(is_of_lab=True))


def test_codes_of_errors_are_as_they_were(golden: Golden) -> None:
    """Which code a command ends with that a public error ends."""
    errors = [
        f"{name}: {exit_codes.exit_code_of(kind('x'))}"
        for name, kind in public_names(tidegate).items()
        if isinstance(kind, type) and issubclass(kind, TidegateError)
    ]
    rows = [row.split("|")[1].strip() for row in exit_codes.exit_code_table().splitlines()[2:]]

    golden("cli/exit_codes.txt", [*(f"code {code}" for code in rows), "", *errors])


def test_runs_end_with_the_codes_they_ended_with(golden: Golden, folder: Path) -> None:
    command_line = CommandLine(folder)
    runs = [
        ["--version"],
        ["simulate", "load.csv"],
        ["agreement", "check", "wrong.toml"],
        ["ping", "--url", _NOBODY],
        ["status", "--url", _NOBODY],
        ["get", "orders", "--url", _NOBODY],
        ["no-such-command"],
        ["put", "orders", "x", "--delay", "5"],
        ["ping", "--url", "amqp://127.0.0.1:1/"],
        ["config", "--config", "no-such.toml"],
        ["report"],
        ["bench", "run", "--size", "big"],
    ]
    ended = [f"{command_line(*one).returncode} tidegate {' '.join(one)}" for one in runs]

    golden("cli/runs.txt", [*ended, f"{_interrupted()} interrupted"])


def _interrupted() -> Any:
    def interrupt() -> None:
        raise KeyboardInterrupt

    one = runner.new_app()
    one.command("wait")(interrupt)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.argv", ["tidegate", "wait"])
        with pytest.raises(SystemExit) as ended:
            runner.run(one)
    return ended.value.code


def _commands(*, is_of_lab: bool) -> Iterator[str]:
    root: Any = typer.main.get_command(app)
    yield "tidegate"
    yield from _parameters(root)
    for name, command in root.commands.items():
        if (name in _OF_THE_LAB) is is_of_lab:
            yield from _described(command, f"tidegate {name}")


def _described(command: Any, path: str) -> Iterator[str]:
    yield ""
    yield f"{path}{' (hidden)' if command.hidden else ''}"
    yield from _parameters(command)
    for name, inner in getattr(command, "commands", {}).items():
        yield from _described(inner, f"{path} {name}")


def _parameters(command: Any) -> Iterator[str]:
    """Arguments and options; their types and defaults are those of the function.

    Typer keeps both in another form in each version.
    """
    function = command.callback and inspect.unwrap(command.callback, stop=_has_its_own_parameters)
    hints = get_type_hints(function, include_extras=True) if function else {}
    defaults = inspect.signature(function).parameters if function else {}
    for one in command.params:
        flags = "/".join([", ".join(one.opts), *one.secondary_opts])
        marks = [
            one.param_type_name,
            _kind(hints[one.name]),
            *(["any number of times"] if getattr(one, "multiple", False) else []),
            *([f"{one.nargs} values"] if one.nargs != 1 else []),
            *(["required"] if one.required else []),
            *([f"environment {one.envvar}"] if one.envvar else []),
            *(["hidden"] if getattr(one, "hidden", False) else []),
        ]
        yield f"    {flags}: {', '.join(marks)}{_default(defaults[one.name].default)}"


def _has_its_own_parameters(function: Any) -> bool:
    return "__signature__" in vars(function)


def _kind(hint: Any) -> str:
    """What it takes, by the annotation of the function's parameter."""
    kind, *notes = get_args(hint) if get_origin(hint) is Annotated else [hint]
    name = "; ".join(line.partition(": ")[2] for line in shape(kind))
    info = next((note for note in notes if hasattr(note, "param_decls")), None)
    least, most = getattr(info, "min", None), getattr(info, "max", None)
    name += "" if least is None else f" from {least}"
    return name if most is None else f"{name} to {most}"


def _default(value: Any) -> str:
    return "" if value is inspect.Parameter.empty else f" = {value_text(value)}"
