"""The histories that clients of the demo record, and the checker's result.

During the run the histories are followed for display. At the end they are checked as a whole,
together with the messages still in the store. A message is lost if it was confirmed, never
acknowledged, and is not in the store. The agreement is evaluated once more from the waits in the
histories.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
from rich.table import Table
from rich.text import Text

from tidegate.agreements.document import Agreement, parse_agreement
from tidegate.agreements.evaluation import Verdict as WindowState
from tidegate.cli.agreements import SlaRow, agreement_statuses
from tidegate.cli.learn import progress, requiring_spark, warn
from tidegate.cli.output import Output
from tidegate.cli.status import OverviewRow
from tidegate.cli.wiring import open_store
from tidegate.console.schemas import AgreementState, Kind, Light, ServiceRow
from tidegate.console.snapshot import Snapshot
from tidegate.core.machines import MachineState
from tidegate.core.text import count, escape_control_characters, format_duration, seconds
from tidegate.core.topology import ReplicaState, logical_name
from tidegate.demo.history import (
    CheckResult,
    HistoryEvent,
    HistoryFollower,
    MessageKey,
    Outstanding,
    check,
    judged_waits,
    merged,
    numbered,
    read_history,
)
from tidegate.demo.scenario import AGREEMENT, ARCHIVE, ARCHIVE_AGREEMENT, ORDERS

if TYPE_CHECKING:
    from tidegate.telemetry.models import ModelRegistry, StoredModel


class WindowCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The number of an agreement's windows per verdict."""

    met: int
    warned: int
    breached: int
    # The fraction of windows that may be breached.
    allowed: float

    @property
    def judged(self) -> int:
        return self.met + self.warned + self.breached

    @property
    def are_kept(self) -> bool:
        return self.judged > 0 and self.breached <= self.allowed * self.judged


class DemoHistories:
    """The histories of one run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._followers: dict[Path, HistoryFollower] = {}
        self._outstanding = Outstanding()
        self._delivered: set[MessageKey] = set()
        self.confirmed = 0
        self.again = 0

    @property
    def delivered(self) -> int:
        return len(self._delivered)

    def follow(self) -> int:
        """Read new events, and return the number of confirmed messages not yet acknowledged."""
        for path in self._folder.glob("*.history"):
            self._followers.setdefault(path, HistoryFollower(path))
        for follower in self._followers.values():
            for event in follower.news():
                if event.op == "put" and event.phase == "ok":
                    self.confirmed += 1
                elif event.op == "deliver":
                    self.again += event.key in self._delivered
                    self._delivered.add(event.key)
                self._outstanding.feed(event)
        return len(self._outstanding)

    def verdict(self, store_urls: Sequence[str]) -> CheckResult:
        """Return the checker's result for the histories of all clients and the store."""
        stored = [key for url in store_urls for key in stored_messages(url)]
        return check(self._events(), stored=stored, replicated=[ORDERS])

    def windows(self) -> tuple[WindowCounts, float]:
        """Return the windows of `orders` as clients saw them, and the longest wait in seconds."""
        agreement = agreed()
        found, longest_s = judged_waits(self._events(), agreement, ORDERS)
        states = [one.verdict for one in found]
        counted = WindowCounts(
            met=states.count(WindowState.MET),
            warned=states.count(WindowState.WARNED),
            breached=states.count(WindowState.BREACHED),
            allowed=1.0 - agreement.objective,
        )
        return counted, longest_s

    def _events(self) -> Iterator[HistoryEvent]:
        return merged([read_history(path) for path in sorted(self._folder.glob("*.history"))])


def agreed() -> Agreement:
    """Return the agreement of `orders`."""
    return parse_agreement(AGREEMENT, f"the demo's agreement for {ORDERS}")


# The snapshots of the demo, and the changes between two of them.
#
# A snapshot contains the overview of `tidegate top`, the shares of replicas, and the prefetch of
# each archive worker. The conditions of the scenario use these.


_KEPT = 240


@dataclass(frozen=True)
class ReplicaView:
    """One replica of `orders` in a snapshot."""

    number: int
    state: str
    machine_id: int | None
    # The share of new messages, 0 to 1.
    share: float
    waiting: int
    done_per_s: float
    prefetch: int
    # Whether a node serves it and a consumer is connected.
    is_at_work: bool


@dataclass(frozen=True)
class WorkerView:
    """One worker of `archive` in a snapshot."""

    name: str
    prefetch: int
    rate_per_s: float
    target_per_s: float | None
    service_ms: float


@dataclass(frozen=True)
class DemoSnapshot:
    """A snapshot of the demo."""

    glance: OverviewRow
    replicas: Sequence[ReplicaView]
    steered: Sequence[WorkerView]
    # Unacknowledged messages by queue.
    unacknowledged: Mapping[str, int]
    # The evidence of the last window of `orders`.
    evidence: str = ""

    def service(self, name: str) -> ServiceRow:
        found = (row for row in self.glance.rows if row.name == name)
        return next(found, ServiceRow(kind=Kind.QUEUE, name=name, light=Light.NONE))

    @property
    def serving(self) -> list[ReplicaView]:
        return [one for one in self.replicas if one.state == "serving"]

    @property
    def at_work(self) -> list[ReplicaView]:
        return [one for one in self.serving if one.is_at_work]

    def share(self, number: int | None) -> float:
        """Return the share of a replica; 0 if it does not exist."""
        return next((one.share for one in self.replicas if one.number == number), 0.0)

    def machines(self, *states: MachineState) -> list[int]:
        """Return the ids of the machines in one of these states."""
        return [one.machine_id for one in self.glance.fleet.machines if one.state in states]


def demo_snapshot(
    glance: OverviewRow, sight: Snapshot, agreement: AgreementState | None
) -> DemoSnapshot:
    """Return a snapshot of the demo from an overview and the console's snapshot."""
    topology = sight.topologies.get(ORDERS)
    replicas = []
    for place in [] if topology is None else topology.replicas:
        found = sight.detailed.get(place.queue_id)
        consumers = [] if found is None else found.consumers
        replicas.append(
            ReplicaView(
                number=place.number,
                state=str(place.state),
                machine_id=place.machine_id,
                share=place.share,
                waiting=0 if found is None else found.waiting,
                done_per_s=0.0 if found is None else found.acked_per_s,
                prefetch=sum(one.prefetch for one in consumers),
                is_at_work=place.address is not None and bool(consumers),
            )
        )
    promises = [] if agreement is None else agreement.promises
    return DemoSnapshot(
        glance=glance,
        replicas=sorted(replicas, key=lambda one: one.number),
        steered=sorted(_steered(sight), key=lambda one: one.name),
        unacknowledged={
            name: sum(part.unacknowledged for part in parts) for name, parts in sight.parts.items()
        },
        evidence=promises[0].evidence if promises else "",
    )


def _steered(sight: Snapshot) -> Iterator[WorkerView]:
    for part in sight.parts.get(ARCHIVE, []):
        detailed = sight.detailed.get(part.queue_id)
        for consumer in [] if detailed is None else detailed.consumers:
            step = consumer.control[-1] if consumer.control else None
            yield WorkerView(
                name=consumer.client_name.partition("@")[0],
                prefetch=consumer.prefetch,
                rate_per_s=consumer.delivered_per_s,
                target_per_s=None if step is None else step.target_per_s,
                service_ms=consumer.service.p50_ms,
            )


@dataclass
class MetricHistory:
    """The history of some metrics, for sparklines and the summary."""

    arrived: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    waiting: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    replicas: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    replicas_most: int = 0
    machines_most: int = 0
    arrived_most_per_s: float = 0.0

    def add(self, moment: DemoSnapshot) -> None:
        orders = moment.service(ORDERS)
        self.arrived.append(orders.in_per_s)
        self.waiting.append(orders.waiting)
        self.replicas.append(len(moment.serving))
        self.replicas_most = max(self.replicas_most, len(moment.serving))
        running = moment.machines(MachineState.UP, MachineState.WARM)
        self.machines_most = max(self.machines_most, len(running))
        self.arrived_most_per_s = max(self.arrived_most_per_s, orders.in_per_s)


def changes(before: DemoSnapshot, now: DemoSnapshot) -> Iterator[str]:
    """Yield a sentence for each change worth printing."""
    was, is_ = len(before.serving), len(now.serving)
    if is_ != was:
        yield f"{is_} {'replica' if is_ == 1 else 'replicas'} of {ORDERS} at work"
    draining = {one.number for one in before.replicas if one.state == ReplicaState.DRAINING}
    for one in now.replicas:
        if one.state == ReplicaState.DRAINING and one.number not in draining:
            yield f"replica {one.number} begins to drain: nothing new, what it has goes first"
    yield from _of_machines(before, now)
    said, says = before.service(ORDERS).light, now.service(ORDERS).light
    if says in (Light.WARNED, Light.BREACHED) and says is not said:
        yield f"the agreement of {ORDERS} is {says}: {now.evidence}"
    elif said in (Light.WARNED, Light.BREACHED) and says is Light.MET:
        yield f"the agreement of {ORDERS} is met again"


def _of_machines(before: DemoSnapshot, now: DemoSnapshot) -> Iterator[str]:
    states = {one.machine_id: one.state for one in before.glance.fleet.machines}
    for machine in now.glance.fleet.machines:
        if states.get(machine.machine_id) is machine.state:
            continue
        match machine.state:
            case MachineState.BOOTING:
                yield f"machine {machine.machine_id} boots"
            case MachineState.UP if states.get(machine.machine_id) is MachineState.WARM:
                yield f"machine {machine.machine_id} was warm, and is at work"
            case MachineState.WARM:
                yield f"machine {machine.machine_id} is warm: it waits for work"
            case MachineState.FAILED:
                yield f"machine {machine.machine_id} is given up; its replicas go elsewhere"
            case MachineState.HALTING:
                yield f"machine {machine.machine_id} is not needed, and halts"


@dataclass
class DemoResult:
    """The result, filled in step by step; an empty text means that the step had no effect."""

    course: MetricHistory = field(default_factory=MetricHistory)
    killed: str = ""
    shifted: str = ""
    adapted: str = ""
    # The number of replicas at the end.
    replicas_left: int = 0
    # The leader's totals when the first step began, and when the producers stopped. What happens
    # later is cleanup.
    opened: AgreementTotals | None = None
    closed: AgreementTotals | None = None
    # Whether every confirmed message was handled at the end.
    drained: bool = False

    @property
    def windows_of_leader(self) -> dict[str, tuple[int, int, int]]:
        """The windows met, warned and breached between the two totals, for each agreement."""
        if self.opened is None or self.closed is None:
            return {}
        return self.closed.since(self.opened)


# The learning step of the demo: Spark learns from the run, and writes a report page.


# All recorded data lies within this time.
_BACK = timedelta(hours=1)


class DemoModel(msgspec.Struct, frozen=True, kw_only=True):
    """One learned model, with the reason for accepting or refusing it."""

    kind: str
    subject: str
    accepted: bool
    reason: str


class DemoModels(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the learning step."""

    lessons: list[DemoModel]
    # The error of each failed job.
    failures: dict[str, str]
    # For each agreement the windows met, warned and breached, from the lake, for the period of the
    # leader's totals.
    compliance: dict[str, tuple[int, int, int]]
    report: str
    seconds: float


def learn_models(data: Path, outcome: DemoResult, page: Path, output: Output) -> DemoModels:
    """Learn from the lake up to the end of the load, and write the report page."""
    knowledge = data / "knowledge"
    until = datetime.now(UTC) if outcome.closed is None else outcome.closed.at
    since = until - _BACK if outcome.opened is None else outcome.opened.at
    with requiring_spark():
        from tidegate.pipeline.lake import LakeFolder
        from tidegate.pipeline.learn import JOBS, LearnTask, learn
        from tidegate.pipeline.session import SparkOptions
        from tidegate.report.page import document_of, write_report
        from tidegate.telemetry.learned import LearnedModels as Shelf
        from tidegate.telemetry.models import ModelRegistry

        promised = agreements()
        assignment = LearnTask(
            lake=LakeFolder.of(str(data / "lake")),
            jobs=JOBS,
            agreements=promised,
            since=until - _BACK,
            until=until,
        )
        store = ModelRegistry(knowledge, warn)
        with progress(output) as steps:
            run = learn(assignment, store, SparkOptions(), steps)
        write_report(document_of(Shelf(knowledge), agreements=promised), page)
    kinds = dict.fromkeys(job.models or job.name for job in JOBS)
    return DemoModels(
        lessons=[
            DemoModel(
                kind=kind, subject=model.subject, accepted=model.accepted, reason=model.reason
            )
            for kind in kinds
            for model in _models(store, kind)
        ],
        failures={job.job: job.failure for job in run.jobs if job.failure},
        compliance=compliance_since(store.run_folder(run.run), since),
        report=str(page),
        seconds=run.seconds,
    )


def _models(store: ModelRegistry, kind: str) -> list[StoredModel]:
    """Return the models of a kind from the last run, accepted or refused."""
    found = store.model_file(kind, store.newest_version(kind))
    return [] if found is None else found.models


def agreements() -> list[Agreement]:
    """Return the agreements of the demo's queues."""
    from tidegate.agreements.document import parse_agreement

    archive = parse_agreement(ARCHIVE_AGREEMENT, f"the demo's agreement for {ARCHIVE}")
    return [agreed(), archive]


def compliance_since(run_folder: Path, since: datetime) -> dict[str, tuple[int, int, int]]:
    """Return the windows met, warned and breached since a time, for each agreement."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    windows = run_folder / "compliance"
    if not windows.is_dir():
        return {}
    table = pq.read_table(windows, columns=["agreement", "window", "verdict"])
    begins_us = table.column("window").cast(pa.timestamp("us", "UTC")).cast("int64").to_pylist()
    verdicts: dict[str, list[str]] = {}
    for row, begins in zip(table.to_pylist(), begins_us, strict=True):
        if begins >= since.timestamp() * 1e6:
            verdicts.setdefault(row["agreement"], []).append(row["verdict"])
    return {
        name: (of_one.count("met"), of_one.count("warned"), of_one.count("breached"))
        for name, of_one in sorted(verdicts.items())
    }


# The summary of the demo: each promise, and whether the recorded histories show it kept.


_MARK_WIDTH = 10


class PromiseResult(msgspec.Struct, frozen=True):
    """One promise, whether it was kept, and the count that decides."""

    promised: str
    kept: bool
    counted: str


class DemoSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The checked result of the demo."""

    seconds: float
    verdict: CheckResult
    # The windows of `orders` as clients saw them; and those of each agreement from the leader's
    # totals: met, warned, breached.
    windows: WindowCounts
    windows_of_leader: dict[str, tuple[int, int, int]]
    longest_wait_s: float
    drained: bool
    replicas_most: int
    replicas_left: int
    machines_most: int
    arrived_most_per_s: float
    killed: str
    shifted: str
    adapted: str

    @property
    def promises(self) -> list[PromiseResult]:
        """The promises, the most important first."""
        found, windows = self.verdict, self.windows
        metric = agreed().metrics[0]
        wait = f"{metric.name} of {ORDERS} under {format_duration(metric.breach)}"
        return [
            PromiseResult(
                "nothing that was confirmed is lost, whoever is killed",
                found.outcome == "pass" and not found.lost,
                f"{count(found.lost)} of {count(found.confirmed)} lost, "
                f"{count(found.undrained)} not handled in the end",
            ),
            PromiseResult(
                "what is delivered again says so",
                not found.unflagged,
                f"{count(found.duplicates_flagged)} came again and said so, "
                f"{count(found.unflagged)} did not",
            ),
            PromiseResult(
                "a customer's orders come in their order",
                not found.out_of_order,
                f"{count(found.out_of_order)} of {count(found.deliveries)} deliveries out of order",
            ),
            PromiseResult(
                "nothing is made up, spoiled or done twice",
                not found.unexpected + found.acked_again + found.stored_twice,
                f"{count(found.unexpected)} unexpected, {count(found.stored_twice)} stored twice, "
                f"{count(found.acked_again)} delivered after their end",
            ),
            PromiseResult(
                f"{wait} in {agreed().objective:.0%} of all windows",
                windows.are_kept,
                f"{windows.met} met, {windows.warned} warned, {windows.breached} breached by what "
                f"customers and workers saw; the longest wait was {seconds(self.longest_wait_s)}",
            ),
            PromiseResult(
                "replicas come with the load, and go with it",
                self.replicas_most > 1 and self.replicas_left == 1,
                f"1 at first, {self.replicas_most} at {self.arrived_most_per_s:.0f}/s, "
                f"{self.replicas_left} in the end, on {self.machines_most} machines at most",
            ),
        ]

    @property
    def good(self) -> bool:
        """Whether every promise was kept."""
        return all(promise.kept for promise in self.promises)

    def as_json(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        plain["verdict"]["outcome"] = self.verdict.outcome
        return plain | {"promises": msgspec.to_builtins(self.promises), "kept": self.good}


def summarize(
    outcome: DemoResult, verdict: CheckResult, seen: tuple[WindowCounts, float], story_s: float
) -> DemoSummary:
    """Return the summary of the results."""
    windows, longest_s = seen
    course = outcome.course
    return DemoSummary(
        seconds=story_s,
        verdict=verdict,
        windows=windows,
        windows_of_leader=outcome.windows_of_leader,
        longest_wait_s=longest_s,
        drained=outcome.drained,
        replicas_most=course.replicas_most,
        replicas_left=outcome.replicas_left,
        machines_most=course.machines_most,
        arrived_most_per_s=course.arrived_most_per_s,
        killed=outcome.killed,
        shifted=outcome.shifted,
        adapted=outcome.adapted,
    )


def show(summary: DemoSummary, learned: DemoModels | None, output: Output) -> None:
    """Print the summary."""
    output.line("")
    output.line("What was promised, and what was kept (counted by the checker)", style="bold")
    for promise in summary.promises:
        mark, style = ("kept", "green") if promise.kept else ("BROKEN", "bold red")
        _line(output, mark, style, f"{promise.promised}: {promise.counted}")
    for example in summary.verdict.examples:
        _line(output, "", "red", example)
    for agreement, counts in summary.windows_of_leader.items():
        _line(output, "leader", "dim", f"windows of {agreement}: {_window_counts(counts)}")
    for label, text in (
        ("killed", summary.killed),
        ("shared", summary.shifted),
        ("steered", summary.adapted),
    ):
        if text:
            _line(output, label, "dim", text)
    if learned is not None:
        show_models(learned, output)
    if not summary.good:
        output.line("")
        output.line(
            "Not everything was kept. If nothing was lost, this computer was too busy or too slow "
            "for it: try again when nothing else runs.",
            style="bold red",
            wrap=True,
        )


def show_models(learned: DemoModels, output: Output) -> None:
    """Print the learned models with reasons, and the windows from the lake."""
    output.line("")
    output.line(f"What Spark learned from it, in {learned.seconds:.0f} s", style="bold")
    for lesson in learned.lessons:
        mark, style = ("accepted", "green") if lesson.accepted else ("refused", "yellow")
        _line(output, mark, style, f"{lesson.kind} of {lesson.subject}: {lesson.reason}")
    for job, failure in learned.failures.items():
        _line(output, "failed", "bold red", f"{job}: {failure}")
    for agreement, counts in learned.compliance.items():
        _line(output, "lake", "dim", f"the same windows of {agreement}: {_window_counts(counts)}")


def _window_counts(windows: tuple[int, int, int]) -> str:
    met, warned, breached = windows
    return f"{met} met, {warned} warned, {breached} breached"


def _line(output: Output, mark: str, style: str, text: str) -> None:
    text = escape_control_characters(text)
    if not output.on_terminal:
        output.line(f"  {mark:<9}{text}" if mark else f"  {text}")
        return
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=_MARK_WIDTH, style=style)
    grid.add_column(overflow="fold")
    grid.add_row(f"  {mark}", Text(text))
    output.console.print(grid)


# The leader's totals for all agreements after the same window.
#
# The difference of two totals gives the windows between them. The lake is queried for the same
# windows, so that both results must be equal.


_TOTALS_POLL_S = 0.2
# The windows of all agreements end at the same time, but their evaluation takes a moment.
_TOTALS_TIMEOUT_S = 12.0


@dataclass(frozen=True)
class AgreementTotals:
    """The totals of every agreement after the same window."""

    # The end of that window.
    at: datetime
    rows: Mapping[str, SlaRow]

    def since(self, before: AgreementTotals) -> dict[str, tuple[int, int, int]]:
        """Return the windows met, warned and breached since then, for each agreement."""
        return {
            name: (
                row.met - before.rows[name].met,
                row.warned - before.rows[name].warned,
                row.breached - before.rows[name].breached,
            )
            for name, row in self.rows.items()
        }


async def agreement_totals(store_urls: Sequence[str]) -> AgreementTotals | None:
    """Return the next totals that include all agreements; None if none come in time."""
    late_at = time.monotonic() + _TOTALS_TIMEOUT_S
    async with open_store(store_urls) as store:
        while time.monotonic() < late_at:
            rows = {row.agreement: row for row in await agreement_statuses(store, time.time())}
            ends = {row.judged_at for row in rows.values()}
            if {ORDERS, ARCHIVE} <= rows.keys() and len(ends) == 1 and (end_s := ends.pop()):
                return AgreementTotals(datetime.fromtimestamp(end_s, UTC), rows)
            await asyncio.sleep(_TOTALS_POLL_S)
    return None


def stored_messages(url: str) -> list[MessageKey]:
    """Return each stored message: its logical queue, its producer and its number."""
    with psycopg.connect(url, connect_timeout=5) as connection:
        rows = connection.execute(
            "select queue_name, message from message order by message_id"
        ).fetchall()
    return [(logical_name(queue), *numbered(bytes(payload))) for queue, payload in rows]
