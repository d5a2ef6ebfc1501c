"""What `host` and `deploy` say of deadlines, silence and bodies is what both engines do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import typer
from http_client import ask
from missing_peer import skipped_where_missing
from stall import Stall, stalls
from typer.testing import CliRunner

from tidegate.cli.door import make_door
from tidegate.cli.options import flatten_options
from tidegate.cli.service_options import DEFAULT_SERVICE_OPTIONS, ServiceOptions, checked_request
from tidegate.cli.services import read_at_door_start
from tidegate.core.errors import InvalidValue, Unavailable
from tidegate.core.services import Engine, Service, ServiceSpec
from tidegate.doors.haproxy.door import haproxy_program

SHOP = 'name = "shop"\nhttp = "shop"\n[metrics.response_p95]\nbreach = "1s"\n'
APP = "async def app(scope, receive, send): ...\n"

Asks = Callable[..., ServiceSpec]


@pytest.fixture
def asks(tmp_path: Path) -> Asks:
    """What becomes of the options of a command line."""
    (tmp_path / "shop.toml").write_text(SHOP)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "shop.py").write_text(APP)

    def asking(*options: str) -> ServiceSpec:
        said: list[ServiceOptions] = []
        app = typer.Typer()

        @app.command()
        @flatten_options()
        def take(options: ServiceOptions = DEFAULT_SERVICE_OPTIONS) -> None:
            said.append(options)

        result = CliRunner().invoke(app, [*options, "--ship", str(tmp_path / "code")])
        assert result.exit_code == 0, result.output
        return checked_request("shop:app", tmp_path / "shop.toml", said[0]).spec

    return asking


@asynccontextmanager
async def opened(spec: ServiceSpec, stall: Stall) -> AsyncIterator[int]:
    """A door as `tidegate door` opens it; its port."""
    if spec.engine is Engine.HAPROXY:
        with skipped_where_missing(Unavailable):
            haproxy_program()
    door = make_door(Service(spec=spec, version=1, secret="s" * 32), "127.0.0.1", 0, None)
    await door.start()
    try:
        await door.set_backends([stall.backend()])
        yield int(door.address.rpartition(":")[2])
    finally:
        await door.stop(timeout_s=0.0)


@pytest.mark.parametrize("engine", ["gateway", "haproxy"])
async def test_an_instance_that_is_silent_is_given_up_after_the_time_that_was_asked_for(
    asks: Asks, engine: str
) -> None:
    spec = asks("--engine", engine, "--answer-timeout", "300ms")
    async with stalls(1) as (stall,), opened(spec, stall) as port:
        stall.gate.clear()
        # By itself a door waits for a minute, which is longer than `ask` does.
        assert (await ask(port, "/held")).status == 504


@pytest.mark.parametrize("engine", ["gateway", "haproxy"])
async def test_a_body_that_is_longer_than_was_asked_for_is_refused(asks: Asks, engine: str) -> None:
    spec = asks("--engine", engine, "--body-max", "1kB")
    async with stalls(1) as (stall,), opened(spec, stall) as port:
        assert (await ask(port, "/", "POST", b"x" * 1001)).status == 413
        assert (await ask(port, "/", "POST", b"x" * 1000)).status == 200


async def test_a_request_has_the_deadline_that_was_asked_for(asks: Asks) -> None:
    async with stalls(1) as (stall,), opened(asks("--deadline", "300ms"), stall) as port:
        stall.gate.clear()
        answer = await asyncio.wait_for(ask(port, "/held"), 60)
        assert (answer.status, answer.body[-24:]) == (504, b"not answered within 0.3 s\n"[-24:])


async def test_a_door_of_haproxy_before_a_service_with_a_deadline_says_what_to_do(
    asks: Asks,
) -> None:
    service = Service(spec=asks("--deadline", "1s"), version=1, secret="s" * 32)
    with skipped_where_missing(Unavailable):
        haproxy_program()
    door = make_door(service, "127.0.0.1", 0, Engine.HAPROXY)
    with pytest.raises(InvalidValue, match="take the engine gateway"):
        await door.start()


def test_doors_that_are_open_are_said_to_keep_what_they_have(asks: Asks) -> None:
    other = asks("--deadline", "9s", "--answer-timeout", "2m", "--body-max", "1MiB")
    assert (other.deadline_s, other.answer_timeout_s, other.body_bytes_max) == (9, 120, 1 << 20)
    assert read_at_door_start(asks(), other) == "deadline, answer timeout, longest body"
