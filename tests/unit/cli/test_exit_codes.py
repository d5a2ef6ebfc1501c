"""Commands and what is wrong with them: one rule says how each ends."""

from __future__ import annotations

import pytest
from command_line import CommandLine
from places import DOCS
from reference import names

from tidegate.cli import command_line as exit_codes
from tidegate.cli.command_line import FAILED, USAGE_ERROR, exit_code_of
from tidegate.core.errors import InvalidValue, QueueNotExisting, Unavailable
from tidegate.fleet.processes import StartRefused

NOBODY = "tidegate://127.0.0.1:1"
ENGINE = "amqp://127.0.0.1:1/"
BAD_SETTINGS = {"TIDEGATE_NODE__PORT": "many"}
# Those that read the settings: what was written wrongly is found before anybody is asked.
SETTLED = {
    *("up", "node", "worker", "config", "host", "deploy", "undeploy", "services", "door"),
    *("sla", "learn", "watch", "report", "override", "console", "top", "user list"),
    *("user add", "user passwd", "user grant", "user remove"),
}
ASKS_A_NODE = [
    ["ping"],
    ["status"],
    ["nodes"],
    ["queues"],
    ["create", "orders"],
    ["delete", "orders"],
    ["purge", "orders"],
    ["put", "orders", "x"],
    ["get", "orders"],
    ["peek", "orders"],
    ["policy", "orders"],
    ["pause", "orders"],
    ["resume", "orders"],
    ["dead", "orders"],
    ["redrive", "orders"],
    ["topics"],
    ["topic", "create", "news"],
    ["publish", "news", "x"],
    ["subscribe", "news", "orders"],
    ["unsubscribe", "news", "orders"],
    ["move", "orders", "1"],
    ["prefetch", "orders", "5"],
    ["scale", "orders"],
    ["queue", "set", "orders", "lease=5s"],
    ["explain", "orders"],
]


@pytest.mark.parametrize("command", ASKS_A_NODE, ids=lambda words: words[0])
def test_missing_node_exits_1_and_wrong_engine_exits_2(
    command_line: CommandLine, command: list[str]
) -> None:
    nobody = command_line(*command, "--url", NOBODY)
    engine = command_line(*command, "--url", ENGINE)

    assert (nobody.returncode, nobody.stdout) == (FAILED, b""), nobody.stderr
    assert (engine.returncode, engine.stdout) == (USAGE_ERROR, b""), engine.stderr


@pytest.mark.parametrize("name", names())
def test_an_option_that_there_is_not_was_asked_wrongly(
    command_line: CommandLine, name: str
) -> None:
    assert command_line(*name.split(), "--no-such-option").returncode == USAGE_ERROR


@pytest.mark.parametrize("former", ["members", "hold"])
def test_a_former_command_name_is_unknown(command_line: CommandLine, former: str) -> None:
    finished = command_line(former)

    assert (finished.returncode, finished.stdout) == (USAGE_ERROR, b""), finished.stderr
    assert f"No such command '{former}'".encode() in finished.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["create", "q", "--set", "lease=5"],
        ["create", "q", "--set", "overflow=explode"],
        ["create", "q", "--prefetch-rate", "fast"],
        ["policy", "q", "--set", "lease"],
        ["queue", "set", "q", "no_such_key=1"],
        ["queue", "set", "q"],
        ["scale", "q", "--to", "1", "--auto"],
        ["scale", "q", "--from-settings"],
        ["explain", "--prefetch"],
        ["worker", "no_such_module:app"],
        ["worker", "shop-1"],
        ["worker", "x", "--prefetch", "3", "--keep-up"],
        ["tune", "prefetch", "http://x", "-q", "q", "--target", "9/s"],
        ["steer", NOBODY, "-q", "q"],
        ["steer", ENGINE, "-q", "q", "--once", "--off"],
        ["node"],
        ["machine", "--id", "1", "--join-file", "/no/such/file"],
        ["queues", "--url", "tidegate://me:password@127.0.0.1:1"],
        ["services", "--store", "postgresql://x/y", "--data", "folder"],
        ["simulate", "/no/such/trace.csv"],
        ["agreement", "plan", "/no/such.toml"],
        ["agreement", "plan", "/no/such.toml", "--load", "many"],
        ["host", "shop:app", "--agreement", "/no/such.toml"],
        ["deploy", "shop:app", "--agreement", "/no/such.toml"],
        ["bench", "run", "--size", "big"],
        ["lab", "run", "tapas", "--only", "no-such-part"],
    ],
    ids=lambda words: " ".join(words),
)
def test_nonsense_arguments_exit_2_without_traceback(
    command_line: CommandLine, arguments: list[str]
) -> None:
    finished = command_line(*arguments)

    assert (finished.returncode, finished.stdout) == (USAGE_ERROR, b""), finished.stderr
    assert b"Traceback" not in finished.stderr


@pytest.mark.parametrize("name", sorted(SETTLED & set(names())))
def test_settings_that_cannot_be_used_were_written_wrongly(
    command_line: CommandLine, name: str
) -> None:
    words = {
        "worker": ["shop:app"],
        "host": ["shop:app", "--agreement", "shop.toml"],
        "deploy": ["shop:app", "--agreement", "shop.toml"],
        "undeploy": ["shop"],
        "door": ["shop"],
        "override": ["shop"],
        "user add": ["ann"],
        "user passwd": ["ann"],
        "user grant": ["ann"],
        "user remove": ["ann"],
    }
    arguments = [*name.split(), *words.get(name, [])]
    finished = command_line(*arguments, stdin=b"long enough\n", environment=BAD_SETTINGS)

    assert finished.returncode == USAGE_ERROR, finished.stderr
    assert b"TIDEGATE_NODE__PORT" in finished.stderr


def test_an_error_says_by_its_kind_how_a_command_ends() -> None:
    assert exit_code_of(InvalidValue("x")) == USAGE_ERROR
    assert exit_code_of(StartRefused("x")) == USAGE_ERROR
    assert exit_code_of(Unavailable("x")) == FAILED
    assert exit_code_of(QueueNotExisting("x")) == FAILED


def test_the_reference_has_the_rule() -> None:
    page = DOCS / "reference" / "commands.md"
    assert exit_codes.exit_code_table() in page.read_text()
