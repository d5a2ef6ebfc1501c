"""The command `steer`: the control loop of an elastic queue on RabbitMQ, in the foreground."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from tidegate.cli.explain import print_decision
from tidegate.cli.options import (
    AnyKeyOption,
    MaxLoadOption,
    MaxWaitOption,
    MinLoadOption,
    PolicyOption,
    RecommendOnlyOption,
    assignments,
    without_password,
)
from tidegate.cli.output import Column, JsonOption, Output, terminated_like_interrupted
from tidegate.cli.worker import load_app
from tidegate.core.decisions import Decision
from tidegate.core.errors import InvalidValue, Unavailable
from tidegate.core.text import count as counted
from tidegate.core.topology import (
    DEFAULT_SCALING,
    ControlMode,
    ReplicaState,
    Scaling,
    ScalingPolicy,
    with_scaling_keys,
)

if TYPE_CHECKING:
    from tidegate.control.queues.rabbitmq import RabbitmqController
    from tidegate.engines.rabbitmq.client import RabbitmqAddress
    from tidegate.engines.rabbitmq.management import ManagementApi
    from tidegate.engines.rabbitmq.sensor import RabbitmqSample
    from tidegate.engines.rabbitmq.topology import ElasticTopology
    from tidegate.telemetry.recorder import Recorder

_REPLICAS = [
    Column("replica", style="bold"),
    Column("state"),
    Column("share", shown=lambda share: f"{100 * share:.0f} %", right=True),
    Column("waiting", shown=counted, right=True),
    Column("unacknowledged", shown=counted, right=True, spare=True),
    Column("consumers", shown=counted, right=True),
    Column("put/s", shown=lambda rate: f"{rate:.1f}", right=True),
    Column("acked/s", shown=lambda rate: f"{rate:.1f}", right=True),
]
# The time between two progress lines while the replicas do not change.
PROGRESS_S = 10.0


def register(app: typer.Typer) -> None:
    app.command("steer")(steer)


def steer(
    url: Annotated[
        str,
        typer.Argument(
            envvar="TIDEGATE_URL",
            callback=without_password,
            help="URL of the RabbitMQ virtual host: amqp://user@host:port/vhost.",
        ),
    ],
    queue: Annotated[str, typer.Option("--queue", "-q", help="The queue to spread over replicas.")],
    replicas: Annotated[
        str | None,
        typer.Option(
            metavar="MIN..MAX", help="Smallest and largest number of replicas, such as 1..4."
        ),
    ] = None,
    policy: PolicyOption = None,
    min_load: MinLoadOption = None,
    max_load: MaxLoadOption = None,
    max_wait: MaxWaitOption = None,
    settings: AnyKeyOption = None,
    to: Annotated[
        int | None, typer.Option(min=0, help="Override the law with this number of replicas.")
    ] = None,
    recommend_only: RecommendOnlyOption = False,
    worker: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:APP",
            help="Start workers of this application for each replica on this computer.",
        ),
    ] = None,
    management: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="URL of the management API; `none` disables requests to it. [default: "
            "port 15672 of the host]",
        ),
    ] = None,
    telemetry: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Record the decisions in this lake.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Run one control period, then exit.")
    ] = False,
    off: Annotated[
        bool,
        typer.Option(
            "--off", help="Drain all replicas, then turn the queue back into a plain queue."
        ),
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Show replicas, shares and loads, then exit.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Spread a RabbitMQ queue over as many replicas as its load needs, while this command runs.

    Only one process controls a queue; another one waits for it to end. Ctrl-C keeps the present
    replicas.

    Example: `tidegate steer amqp://localhost --queue orders --replicas 1..4`
    """
    output = Output(json)
    named = {"policy": policy, "min_load": min_load, "max_load": max_load, "max_wait": max_wait}
    changes: dict[str, Any] = {key: value for key, value in named.items() if value is not None}
    changes |= _replicas(replicas) | {"worker": worker} | assignments(settings or [])
    scaling = with_scaling_keys(DEFAULT_SCALING, changes)
    if to is not None and off:
        raise InvalidValue("--to and --off: one of them")
    least, most = scaling.replicas.min, scaling.replicas.max
    if to is not None and not least <= to <= most and changes.keys() & {"min", "max"}:
        raise InvalidValue(
            f"--to {to} is not within --replicas {least}..{most}: change one of them, or leave "
            "--to out and the policy decides"
        )
    if to is not None and not changes.keys() & {"min", "max"}:
        # Without --replicas, the number given by --to is the bound.
        changes |= {"min": 0, "max": max(to, 1)}
    scaling = with_scaling_keys(scaling, changes | _steering(to, recommend_only))
    if sum((once, off, status)) > 1:
        raise InvalidValue("--once, --off and --status: one of them")
    if off and scaling.steering is ControlMode.RECOMMEND:
        raise InvalidValue("--off and --recommend-only: one of them")
    if "#" in queue:
        raise InvalidValue(
            f"{queue} is part of the elastic queue {queue.partition('#')[0]!r}, whose replicas, "
            "documents and locks have a # in their names: steer that one"
        )
    if not (off or status) and not changes.keys() & {"min", "max"}:
        raise InvalidValue(
            "say how many replicas there may be, such as --replicas 1..4: all beyond that are "
            "drained"
        )
    if scaling.policy is ScalingPolicy.AGREEMENT:
        raise InvalidValue(
            "--policy agreement goes by how long messages have waited, which RabbitMQ does not "
            "tell: --policy feed-forward with max_wait comes nearest"
        )
    address = _address(url)
    api = _api(address, management)
    if api is None and scaling.policy is ScalingPolicy.FEED_FORWARD and not (off or status):
        raise InvalidValue(
            "--policy feed-forward goes by rates, which only the management API tells: it cannot "
            "act with --management none; --policy load and --policy length can"
        )
    # The library logs a refused operation, too. This command reports it in one sentence.
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)
    if scaling.worker is not None and not (
        off or status or scaling.steering is ControlMode.RECOMMEND
    ):
        # Check the import first. Otherwise worker processes would start and fail for ever.
        load_app(scaling.worker)
    with _recording(telemetry, queue) as recorder, terminated_like_interrupted():
        run = _Run(output, address, queue, scaling, api, recorder)
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(run.do(once=once, off=off, status=status))


def _replicas(text: str | None) -> dict[str, str]:
    if text is None:
        return {}
    least, dots, most = text.partition("..")
    if not dots:
        least, most = text, text
    return {"min": least.strip(), "max": most.strip()}


def _steering(to: int | None, recommend_only: bool) -> dict[str, Any]:
    if to is not None and recommend_only:
        raise InvalidValue("--to and --recommend-only: one of them")
    if to is not None:
        return {"steering": ControlMode.MANUAL, "replicas_wanted": to}
    return {"steering": ControlMode.RECOMMEND} if recommend_only else {}


def _address(url: str) -> RabbitmqAddress:
    if not url.startswith(("amqp://", "amqps://")):
        raise InvalidValue(
            "steer is for RabbitMQ, amqp://…: Tidegate's own nodes steer by themselves, "
            "`tidegate scale QUEUE` says how"
        )
    try:
        from tidegate.engines.rabbitmq.client import parse_address
    except ModuleNotFoundError as missing:
        raise Unavailable(
            f"this needs the package {missing.name}: pip install 'tidegate[rabbitmq]'"
        ) from None
    return parse_address(url)


def _api(address: RabbitmqAddress, management: str | None) -> ManagementApi | None:
    from tidegate.engines.rabbitmq.management import ManagementApi, usual_address

    if management is not None and management.lower() == "none":
        return None
    url = address.url
    where = management or usual_address(url.host)
    vhost = url.path.removeprefix("/") or "/"
    return ManagementApi(where, url.user or "guest", url.password or "guest", vhost)


@contextlib.contextmanager
def _recording(folder: Path | None, queue: str) -> Iterator[Recorder | None]:
    if folder is None:
        yield None
        return
    from tidegate.telemetry.recorder import Recorder, RecorderOptions

    recorder = Recorder(RecorderOptions(lake=str(folder.expanduser().resolve())))
    recorder.start(f"steer-{queue}")
    try:
        yield recorder
    finally:
        recorder.stop()


class _Run:
    """One run of the command, with its output."""

    def __init__(
        self,
        output: Output,
        address: RabbitmqAddress,
        queue: str,
        scaling: Scaling,
        management: ManagementApi | None,
        recorder: Recorder | None,
    ) -> None:
        self._output = output
        self._queue = queue
        self._progress = SteerProgress(self._say)
        self._address = address
        self._scaling = scaling
        self._management = management
        self._recorder = recorder

    async def do(self, *, once: bool, off: bool, status: bool) -> None:
        from tidegate.control.journal import Journal
        from tidegate.control.queues.rabbitmq import LocalWorkers, RabbitmqController

        scaling = self._scaling
        crew = (
            None
            if scaling.worker is None or off or status
            else LocalWorkers(scaling.worker, str(self._address.url), scaling.workers_per_replica)
        )
        steering = RabbitmqController(
            self._address,
            self._queue,
            scaling,
            self._management,
            Journal(self, self._recorder, time.time),
            say=self._say,
            seen=self._seen,
            crew=crew,
        )
        try:
            if status:
                await self._show(steering)
            elif off:
                await self._end(steering)
            else:
                await steering.run(once=once)
                if once and not self._output.as_json:
                    await self._show(steering)
        finally:
            if crew is not None:
                await crew.stop()

    async def note_decision(self, service: str, document: bytes, leader_epoch: int) -> None:
        """Print a decision; the journal calls this instead of a store."""
        decision = msgspec.json.decode(document, type=Decision)
        if self._output.as_json:
            self._output.json(decision, one_line=True)
        else:
            print_decision(self._output, decision)

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def _seen(self, topology: ElasticTopology, look: RabbitmqSample, decision: Decision) -> None:
        self._progress.seen(topology, look, time.monotonic())

    async def _end(self, steering: RabbitmqController) -> None:
        was_elastic = await steering.end()
        if self._output.as_json:
            self._output.json({"queue": self._queue, "replicas": []})
        elif was_elastic:
            self._output.line(
                f"queue {self._queue} is a plain queue again; the exchange {self._queue} leads to "
                "it, for whoever still publishes there"
            )
        else:
            self._output.line(f"queue {self._queue} is a plain queue")

    async def _show(self, steering: RabbitmqController) -> None:
        found = await steering.inspect()
        if self._output.as_json:
            self._output.json(_document(self._queue, found))
            return
        if found is None:
            self._output.line(
                f"queue {self._queue} is a plain queue; `tidegate steer … --queue {self._queue} "
                "--replicas 1..4` spreads it"
            )
            return
        _, look = found
        if look.trouble:
            self._say(look.trouble)
        rates = "consumed_per_s" not in look.unknown
        itself = [self._queue, "itself", None, look.sample.alias_waiting]
        rows: list[list[Any]] = [[*itself, None, look.alias_consumers, None, None]]
        rows += [
            [
                *(f"{self._queue}#{one.number}", str(one.state), one.share, one.waiting),
                *(one.unacknowledged if rates else None, one.consumers),
                *(one.produced_per_s if rates else None, one.consumed_per_s if rates else None),
            ]
            for one in look.sample.replicas
        ]
        self._output.table(_REPLICAS, rows)


class SteerProgress:
    """Prints the state when replicas are added, begin to serve or go, and every PROGRESS_S seconds.

    Decisions are printed by the journal.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said_at = float("-inf")
        self._replicas: list[tuple[int, ReplicaState, bool]] = []
        self._trouble = ""

    def seen(self, topology: ElasticTopology, look: RabbitmqSample, now: float) -> None:
        if look.trouble != self._trouble:
            self._trouble = look.trouble
            self._say(look.trouble or "the management API answers")
        replicas = [(one.number, one.state, one.weight > 0) for one in topology.replicas]
        if replicas != self._replicas or now - self._said_at >= PROGRESS_S:
            self._replicas, self._said_at = replicas, now
            self._say(_in_a_line(topology, look))


def _in_a_line(topology: ElasticTopology, look: RabbitmqSample) -> str:
    sample = look.sample
    waiting = sample.alias_waiting + sum(one.waiting for one in sample.replicas)
    shares = ", ".join(
        f"{one.number}: " + ("coming" if one.state is ReplicaState.STARTING else f"{share:.0%}")
        for one, share in zip(topology.replicas, topology.shares.values(), strict=True)
    )
    parts = [f"{waiting:,} waiting"]
    if "arrived_per_s" not in look.unknown:
        consumed = sum(one.consumed_per_s for one in sample.replicas)
        parts += [f"{sample.arrived_per_s:.0f}/s in", f"{consumed:.0f}/s out"]
    return f"{topology.queue}: replicas {shares or 'none'}; {', '.join(parts)}"


def _document(queue: str, found: tuple[ElasticTopology, RabbitmqSample] | None) -> dict[str, Any]:
    if found is None:
        return {"queue": queue, "elastic": False, "replicas": []}
    _, look = found
    return {
        "queue": queue,
        "elastic": True,
        "waiting": look.sample.alias_waiting,
        "arrived_per_s": look.sample.arrived_per_s,
        "unknown": look.unknown,
        "trouble": look.trouble,
        "replicas": look.sample.replicas,
    }
