"""Six hours of four queues: one floods for a while, one is called like a script."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path
from typing import Any

from knowledge_of import EVENING, NOON, KnowledgeOf

SCRIPT = '<script>alert("x")</script>'
QUEUES = {"orders": 400.0, SCRIPT: 100.0, "$mail$ #1c2228 0.12345": 20.0, "quiet\x1b\u202e": 0.5}
FLOOD = range(200, 240)


def afternoon(folder: Path) -> KnowledgeOf:
    """All tables with some rows each."""
    knowledge = KnowledgeOf(folder)
    knowledge.add(
        "stability", [_balance(q, size, m) for q, size in QUEUES.items() for m in _MINUTES]
    )
    knowledge.add("capacity", [_operation(clients) for clients in range(2, 32, 3)])
    knowledge.add_model(
        "capacity",
        "orders",
        reason="17 clients reach 95 % of the plateau",
        parameters={
            "clients": 17.0,
            "throughput_per_s": 1234.5,
            "best_producers": 6.0,
            "best_consumers": 11.0,
            "rate_per_s": 120.0,
            "contention": 0.04,
            "coherency": 0.0005,
        },
        quality={"r2": 0.987},
    )
    knowledge.add("identification", [_model("orders/billing", True), _model(f"{SCRIPT}/x", False)])
    knowledge.add(
        "prefetch_levels",
        [_level(group, u) for group in ("orders/billing", f"{SCRIPT}/x") for u in range(1, 31)],
    )
    knowledge.add("forecast", [_ahead(minute) for minute in range(60)])
    knowledge.add("forecast_history", [_past(minute) for minute in _MINUTES])
    knowledge.add_model(
        "forecast",
        "orders",
        parameters={"expected_per_s": 432.1},
        quality={"skill": 0.234, "coverage": 0.912},
    )
    knowledge.add("provisioning", _INGREDIENTS)
    knowledge.add_model(
        "provisioning",
        "fleet",
        reason="while a machine boots the load grows by 387.6 msg/s, and one does 200: 2 warm",
        parameters={"warm_machines": 2.0},
    )
    knowledge.add_model(
        "prefetch", f"{SCRIPT}/x", accepted=False, reason="R² of 0.31 on held-out data is below 0.8"
    )
    return knowledge


_MINUTES = range(360)
_INGREDIENTS = [
    {"ingredient": name, "value": value, "unit": unit, "seen": 7, "says": "as seen"}
    for name, value, unit in (
        ("sla_delta", 4.0, "msg/s²"),
        ("boot_s", 96.9, "s"),
        ("machine_capacity_per_s", 200.0, "msg/s"),
    )
]


def _balance(queue: str, size: float, minute: int) -> dict[str, Any]:
    produced = size * (1.0 + 0.3 * math.sin(minute / 60))
    flooded = queue == "orders" and minute in FLOOD
    consumed = produced * 0.7 if flooded else produced
    return {
        "queue": queue,
        "window": NOON + timedelta(minutes=minute),
        "seconds": 60.0,
        "produced_per_s": produced,
        "consumed_per_s": consumed,
        "growth_per_s": produced - consumed,
        "waiting": 98765.0 if queue == "orders" and minute == FLOOD[-1] else 5.0,
        "replicas": 1,
        "stability": "flooded" if flooded else "stable",
        "every_replica_stable": not flooded,
    }


def _operation(clients: int) -> dict[str, Any]:
    throughput = 120.0 * clients / (1 + 0.04 * (clients - 1) + 0.0005 * clients * (clients - 1))
    return {
        "queue": "orders",
        "producers": max(clients // 3, 1),
        "consumers": clients - max(clients // 3, 1),
        "clients": clients,
        "throughput_per_s": throughput,
        "produced_per_s": throughput,
        "consumed_per_s": throughput,
        "seconds": 100.0 + clients,
        "windows": 10,
        "stable": clients != 5,
        "fitted_per_s": throughput,
        "best": clients == 17,
    }


def _model(group: str, accepted: bool) -> dict[str, Any]:
    nothing = math.nan
    return {
        "group": group,
        "accepted": accepted,
        "reason": "good" if accepted else "R² of 0.31 on held-out data is below 0.8",
        "a": 0.2631 if accepted else nothing,
        "b": 59.73 if accepted else nothing,
        "offset_per_s": 3.0 if accepted else nothing,
        "shape": "knee" if accepted else "unknown",
        "prefetch_low": 1.0 if accepted else nothing,
        "prefetch_high": 18.0 if accepted else nothing,
        "r2_train": 0.95 if accepted else nothing,
        "r2_test": 0.931 if accepted else 0.31,
        "rmse_train_per_s": 50.0 if accepted else nothing,
        "rmse_test_per_s": 61.26 if accepted else nothing,
        "rows_train": 2700,
        "rows_test": 900,
        "interval_s": 1.0,
        "first_at": NOON,
        "last_at": EVENING,
    }


def _level(group: str, prefetch: int) -> dict[str, Any]:
    mean = 81.0 * min(prefetch, 18)
    return {
        "group": group,
        "prefetch": prefetch,
        "rows": 120,
        "arrival_per_s": mean,
        "arrival_per_s_stddev": 60.0,
        "settled_per_s": None if "script" in group else 81.0 * prefetch,
        "in_linear_range": prefetch <= 18 and "script" not in group,
    }


def _past(minute: int) -> dict[str, Any]:
    return {
        "queue": "orders",
        "at": NOON + timedelta(minutes=minute),
        "arrived_per_s": 400.0 + 100.0 * math.sin(minute / 60),
    }


def _ahead(minute: int) -> dict[str, Any]:
    return {
        "queue": "orders",
        "at": EVENING + timedelta(minutes=minute),
        "expected_per_s": 432.1,
        "low_per_s": 400.0 - minute,
        "high_per_s": 460.0 + minute,
        "baseline_per_s": 380.0,
        "accepted": True,
    }
