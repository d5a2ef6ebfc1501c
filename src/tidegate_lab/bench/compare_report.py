"""The report of a comparison: medians, ratios, and bars.

The report is built from medians over the rounds only. A bar whose systems were not measured has no
figure and is never met.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import msgspec

from tidegate.lab.bench.bars import Bar, BarredReport
from tidegate.lab.bench.measurement import Latency
from tidegate.lab.peers.contenders import CONTENDERS, TIDEGATE, TIDEGATE_BATCH, TIDEGATE_LONE

RAW = ("rabbitmq raw classic", "rabbitmq raw quorum")
AIO_PIKA = ("rabbitmq aio-pika classic", "rabbitmq aio-pika quorum")
PIKA = ("rabbitmq pika classic", "rabbitmq pika quorum")


class CompareReport(BarredReport, frozen=True):
    """The medians of all rounds, with the rounds themselves."""

    throughput: dict[str, float]
    latency_ms_at_2000_per_s: dict[str, Latency]
    ratio: dict[str, float]
    rounds: dict[str, list[float]]
    latency_rounds: dict[str, list[Latency]]
    messages: dict[str, int]
    skipped: dict[str, str]
    failed: dict[str, str]
    notes: list[str]
    environment: dict[str, str]


def build_report(
    *,
    rounds: Mapping[str, Sequence[float]],
    latency_rounds: Mapping[str, Sequence[Latency]],
    messages: Mapping[str, int],
    skipped: Mapping[str, str],
    failed: Mapping[str, str],
    notes: Sequence[str],
    environment: Mapping[str, str],
) -> CompareReport:
    """Build the report of a comparison from the measurements of all rounds."""
    throughput = {name: statistics.median(figures) for name, figures in rounds.items() if figures}
    latency = {name: _median_latency(found) for name, found in latency_rounds.items() if found}
    return CompareReport(
        throughput=throughput,
        latency_ms_at_2000_per_s=latency,
        ratio=_ratios(throughput),
        bars=[*_throughput_bars(throughput), *_latency_bars(latency)],
        rounds={name: list(figures) for name, figures in rounds.items()},
        latency_rounds={name: list(found) for name, found in latency_rounds.items()},
        messages=dict(messages),
        skipped=dict(skipped),
        failed=dict(failed),
        notes=list(notes),
        environment=dict(environment),
    )


def _median_latency(found: Sequence[Latency]) -> Latency:
    return Latency(
        confirm_p50=statistics.median(latency.confirm_p50 for latency in found),
        confirm_p99=statistics.median(latency.confirm_p99 for latency in found),
        handler_p50=statistics.median(latency.handler_p50 for latency in found),
        handler_p99=statistics.median(latency.handler_p99 for latency in found),
    )


def _ratios(throughput: Mapping[str, float]) -> dict[str, float]:
    """Return Tidegate's throughput over that of each peer.

    pika puts one message at a time, so it is compared with Tidegate's single puts.
    """
    ratios: dict[str, float] = {}
    for peer, figure in throughput.items():
        if CONTENDERS[peer].is_ours:
            continue
        ours = throughput.get(TIDEGATE_LONE if peer in PIKA else TIDEGATE)
        if ours is not None:
            ratios[peer] = ours / figure
    return ratios


def _fastest(throughput: Mapping[str, float], names: Sequence[str]) -> float | None:
    # A queue type that was not measured might be the fastest, so None without it.
    if any(name not in throughput for name in names):
        return None
    return max(throughput[name] for name in names)


def _throughput_bars(throughput: Mapping[str, float]) -> list[Bar]:
    def bar(label: str, ours: str, peers: Sequence[str], limit: float) -> Bar:
        fastest = _fastest(throughput, peers)
        figure = throughput[ours] / fastest if fastest and ours in throughput else None
        return Bar(bar=label, figure=figure, limit=limit, unit="×")

    return [
        bar("put per message, over RabbitMQ's raw limit", TIDEGATE, RAW, 5.0),
        bar("put_many and batches, over RabbitMQ's raw limit", TIDEGATE_BATCH, RAW, 10.0),
        bar("put per message, over aio-pika", TIDEGATE, AIO_PIKA, 20.0),
        bar("put per message, over Redis streams", TIDEGATE, ["redis streams"], 1.0),
        bar("put per message, over NATS JetStream", TIDEGATE, ["nats jetstream"], 1.0),
        bar("one put at a time, over pika", TIDEGATE_LONE, PIKA, 1.0),
        msgspec.structs.replace(
            bar("put per message, over Redis's raw limit", TIDEGATE, ["redis streams raw"], 1.0),
            beyond_the_issue=True,
        ),
    ]


def _latency_bars(latency: Mapping[str, Latency]) -> list[Bar]:
    ours = latency.get(TIDEGATE)

    def bar(label: str, peer: str, read: Callable[[Latency], float], beyond: bool) -> Bar:
        theirs = latency.get(peer)
        return Bar(
            bar=f"put to {label}, not above {peer}",
            figure=read(ours) if ours and theirs else None,
            limit=read(theirs) if theirs else None,
            unit="ms",
            at_most=True,
            beyond_the_issue=beyond,
        )

    bars = []
    # The raw client is the stricter comparison; aio-pika is a Python client like ours.
    for (classic, quorum), beyond in ((RAW, False), (AIO_PIKA, True)):
        bars += [
            bar("confirm p50", classic, lambda found: found.confirm_p50, beyond),
            bar("confirm p99", classic, lambda found: found.confirm_p99, beyond),
            bar("handler p50", quorum, lambda found: found.handler_p50, beyond),
            bar("handler p99", quorum, lambda found: found.handler_p99, beyond),
        ]
    return bars
