"""`tidegate host` with bad input: one clear sentence, its exit code, and nothing was started."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from command_line import CommandLine, processes_with
from typer.testing import CliRunner

from tidegate.cli.app import app
from tidegate.cli.command_line import FAILED, USAGE_ERROR

SHOP = 'name = "shop"\nhttp = "shop"\n[metrics.response_p95]\nbreach = "1s"\n'
QUEUE = 'name = "orders"\nqueue = "orders"\n[metrics.wait_p95]\nbreach = "1s"\n'
APP = "async def app(scope, receive, send): ...\n"

Refused = Callable[..., str]


@pytest.fixture
def refused(command_line: CommandLine, folder: Path) -> Refused:
    """Runs `tidegate host`; what it says when it refuses."""

    def run(
        *options: str,
        agreement: str = SHOP,
        code: str = APP,
        environment: Sequence[str] = (),
        ends_with: int = USAGE_ERROR,
    ) -> str:
        (folder / "shop.toml").write_text(agreement)
        (folder / "code").mkdir(exist_ok=True)
        (folder / "code" / "shop.py").write_text(code)
        finished = command_line(
            *("host", "shop:app", "--agreement", str(folder / "shop.toml")),
            *("--data", str(folder / "data"), "--ship", str(folder / "code")),
            *("--port", "0", *options),
            environment=dict(one.split("=", 1) for one in environment),
        )
        assert finished.returncode == ends_with, finished.stderr.decode()
        assert finished.stdout == b""
        assert not (folder / "data").exists(), "nothing was started"
        assert processes_with(str(folder / "data")) == []
        return finished.stderr.decode().splitlines()[-1]

    return run


def test_a_bad_agreement_names_file_line_key_and_reason(refused: Refused, folder: Path) -> None:
    said = refused(agreement=SHOP + 'warning = "2s"\n')

    assert f"{folder}/shop.toml:5: metrics.response_p95.warning" in said


def test_an_agreement_of_a_queue_is_told_so(refused: Refused, folder: Path) -> None:
    said = refused(agreement=QUEUE)

    assert f"{folder}/shop.toml:2: queue = 'orders': it governs a queue" in said
    assert said.endswith('write http = "orders"')


def test_a_port_that_is_taken_is_one_sentence(refused: Refused) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in refused(
            "--port", str(port), ends_with=FAILED
        )


def test_the_port_of_the_node_is_said_and_can_be_chosen(refused: Refused) -> None:
    shown = " ".join(CliRunner().invoke(app, ["host", "--help"]).output.split())
    assert "a node that listens on port 7411" in shown
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        said = refused("--node-port", str(port), ends_with=FAILED)

    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in said
    assert "choose another with --node-port, or end what listens there" in said


def test_an_unknown_policy_names_those_that_there_are(refused: Refused) -> None:
    said = refused("--balancing", "fairest")

    assert "no policy is called 'fairest'; there are random, round-robin" in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--health-path", "/café"), "is no path, such as /healthz"),
        (("--health-path", "/a'b", "--engine", "haproxy"), "is no path, such as /healthz"),
        (("--port", "65535", "--doors", "2"), "65535 is the last: choose a lower --port"),
        (("--deadline", "5s", "--engine", "haproxy"), "HAProxy knows no deadline"),
        (("--host", "a" * 64), f"--host '{'a' * 64}' is no address, nor the name"),
    ],
)
def test_invalid_door_options_are_refused_before_deployment(
    refused: Refused, options: tuple[str, ...], says: str
) -> None:
    assert says in refused(*options)


def test_no_slot_left_for_what_is_agreed_is_refused_with_what_is_missing(refused: Refused) -> None:
    said = refused(
        agreement="replicas = { min = 9, max = 9 }\n" + SHOP,
        environment=["TIDEGATE_FLEET__PROVIDER=process", "TIDEGATE_FLEET__MACHINES_MAX=2"],
        ends_with=FAILED,
    )

    assert "shop cannot be kept: 9 replicas are needed, and 8 slot(s) are there for it" in said
    assert "add machines" in said


def test_without_haproxy_it_says_what_to_install(refused: Refused) -> None:
    said = refused("--engine", "haproxy", environment=["TIDEGATE_HAPROXY=/none"], ends_with=FAILED)

    assert "haproxy" in said.lower()
    assert "install" in said


def test_commands_about_services_say_when_no_store_runs(
    command_line: CommandLine, folder: Path
) -> None:
    for command in (["sla"], ["services"], ["undeploy", "shop"], ["door", "shop"]):
        finished = command_line(*command, "--data", str(folder / "data"))

        assert finished.returncode == FAILED
        assert finished.stderr.decode().startswith(f"tidegate: no store runs in {folder}/data:")
