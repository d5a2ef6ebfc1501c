"""The embedded gateway in a child process, as `tidegate door` runs it, with notes of its state.

Four times a second the process notes the outstanding requests of each server, its total requests,
and whether it is ejected. The gateway itself updates this state as often. The parent reads the
notes at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
import time
from collections.abc import Iterator, Sequence

import msgspec
import uvloop

from tidegate.gateway.gateway import Gateway, GatewayLimits
from tidegate.gateway.http1 import StickySessions
from tidegate.gateway.servers import HealthCheck, ServerAddress
from tidegate.laws.http.balancing import ServerState
from tidegate_lab.loadgen.processes import Child, answer
from tidegate_lab.papers.tapas.shops import WELL_PATH

_NOTE_S = 0.25
_ANSWER_TIMEOUT_S = 60.0


class GatewayOrder(msgspec.Struct, frozen=True):
    """The servers and the settings of the gateway."""

    server_ports: Sequence[int]
    policy: str = "better-of-two"
    sticky: bool = False
    # Seconds after which a request without an answer has failed.
    answer_timeout_s: float = 60.0
    checked: bool = True


class GatewaySample(msgspec.Struct, frozen=True, array_like=True):
    """The state of each server at one time."""

    at: float
    outstanding: list[int]
    sent: list[float]
    ejected: list[bool]


class GatewayProcess:
    """The parent's side of the gateway process."""

    def __init__(self, child: Child, port: int) -> None:
        self._child = child
        self.port = port

    @property
    def pid(self) -> int:
        return self._child.pid

    def notes(self) -> list[GatewaySample]:
        """Return all notes since the start of the process."""
        self._child.say(True)
        return self._child.hear(list[GatewaySample], _ANSWER_TIMEOUT_S)


@contextlib.contextmanager
def gateway_process(order: GatewayOrder) -> Iterator[GatewayProcess]:
    arguments = [msgspec.json.encode(order).decode()]
    with Child("tidegate_lab.papers.tapas.gateway_process", arguments) as child:
        yield GatewayProcess(child, child.hear(int, _ANSWER_TIMEOUT_S))


async def _serve(order: GatewayOrder) -> None:
    loop = asyncio.get_running_loop()
    questions = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(questions), sys.stdin)
    gateway = Gateway(
        [
            ServerAddress(f"i{number}", "127.0.0.1", port)
            for number, port in enumerate(order.server_ports, 1)
        ],
        order.policy,
        GatewayLimits(answer_timeout_s=order.answer_timeout_s),
        sessions=StickySessions(secrets.token_bytes(16)) if order.sticky else None,
        health=HealthCheck(WELL_PATH, interval_s=1.0) if order.checked else None,
    )
    notes: list[GatewaySample] = []
    async with gateway:
        noting = asyncio.ensure_future(_note(gateway, notes))
        answer(gateway.port)
        while await questions.readline():
            answer(notes)
        noting.cancel()


async def _note(gateway: Gateway, notes: list[GatewaySample]) -> None:
    while True:
        servers = gateway.servers
        notes.append(
            GatewaySample(
                time.monotonic(),
                [one.outstanding for one in servers],
                [one.meters.sent.total for one in servers],
                [one.ejection.standing is ServerState.EJECTED for one in servers],
            )
        )
        await asyncio.sleep(_NOTE_S)


if __name__ == "__main__":
    uvloop.run(_serve(msgspec.json.decode(sys.argv[1], type=GatewayOrder)))
