"""The scaling and the replicas of a queue as tables or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.cli.output import Column, Output
from tidegate.core.scaling import DEFAULT_SCALING
from tidegate.core.scaling_words import written

if TYPE_CHECKING:
    from tidegate.core.replication import Topology

_COLUMNS = [Column("scaling", style="bold"), Column("value"), Column("default", spare=True)]
_REPLICAS = [
    Column("replica", style="bold"),
    Column("state"),
    Column("share", shown=lambda share: f"{100 * share:.1f} %", right=True),
    Column("machine", right=True),
    Column("served by"),
    Column("store", right=True, spare=True),
]


def show_scaling(output: Output, queue: str, topology: Topology | None) -> None:
    if output.as_json:
        document = None if topology is None else written(topology.scaling)
        replicas = [] if topology is None else [_replica_json(one) for one in topology.replicas]
        output.json({"queue": queue, "scaling": document, "replicas": replicas})
        return
    if topology is None:
        output.line(
            f"queue {queue} does not scale; `tidegate scale {queue} --min 1 --max 8` makes it"
        )
        return
    plain = written(DEFAULT_SCALING)
    output.table(
        _COLUMNS,
        [
            [key, _text(value), _text(plain[key])]
            for key, value in written(topology.scaling).items()
        ],
    )
    output.table(
        _REPLICAS,
        [
            [
                f"{topology.queue}#{place.number}",
                str(place.state),
                place.share,
                place.machine_id,
                place.address,
                place.store_number,
            ]
            for place in topology.replicas
        ],
        title="Replicas",
    )


def _replica_json(place: Any) -> dict[str, Any]:
    return {
        "number": place.number,
        "queue_id": place.queue_id,
        "state": place.state,
        "share": place.share,
        "machine_id": place.machine_id,
        "address": place.address,
    }


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        return f"{value['min']} to {value['max']}"
    return f"{value:g}" if isinstance(value, float) else str(value)
