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
    knowledge.agreements = list(_KEPT)
    knowledge.add("service_levels", [_level_of(name) for name in _KEPT])
    knowledge.add("compliance", [_verdict(name, m) for name in _KEPT for m in _MINUTES])
    knowledge.add("promises", [_promise(name, m) for name in _KEPT for m in _MINUTES])
    knowledge.add("lifecycle", [_waits(quarter) for quarter in range(24)])
    knowledge.add("phases", [_phase(verb, phase) for verb in ("all", "put") for phase in _SHARES])
    knowledge.add("idleness", [_IDLE])
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


# Agreements: windows met, warned and breached, and what is left of the budget.
_KEPT = {
    "kept": (360, 0, 0, 1.0),
    "burning": (350, 2, 8, 0.8),
    f"overdrawn {SCRIPT}": (320, 0, 40, -0.25),
    "unheard of": (0, 0, 0, 1.0),
}


def _level_of(name: str) -> dict[str, Any]:
    met, warned, breached, budget_left = _KEPT[name]
    judged = met + warned + breached
    return {
        "agreement": name,
        "from": NOON,
        "to": EVENING,
        "window_s": 60.0,
        "objective": 0.99,
        "met": met,
        "warned": warned,
        "breached": breached,
        "no_data": 360 - judged,
        "budget_left": budget_left,
        "burn_rate": breached / judged / 0.01 if judged else None,
    }


def _verdict(name: str, minute: int) -> dict[str, Any]:
    met, warned, breached, _ = _KEPT[name]
    counts = {"breached": breached, "warned": warned, "met": met, "no_data": 360}
    verdicts = [verdict for verdict, many in counts.items() for _ in range(many)]
    return {
        "agreement": name,
        "window": NOON + timedelta(minutes=minute),
        "window_s": 60.0,
        "verdict": verdicts[minute],
    }


def _promise(name: str, minute: int) -> dict[str, Any]:
    verdict = _verdict(name, minute)["verdict"]
    within = {"breached": 0.9, "warned": 0.99, "met": 1.0, "no_data": None}[verdict]
    return {
        "agreement": name,
        "window": NOON + timedelta(minutes=minute),
        "metric": "wait_p99",
        "value": None,
        "within": 0.8768 if minute == 3 and verdict == "breached" else within,
        "verdict": verdict,
    }


def _waits(quarter: int) -> dict[str, Any]:
    slow = 50.0 if quarter == 14 else 1.0
    figures = {"mean": 0.005, "p50": 0.004, "p95": 0.009, "p99": 0.02468, "max": 0.1}
    return {
        "queue": "orders",
        "window": NOON + timedelta(minutes=15 * quarter),
        "window_s": 900.0,
        "messages": 360_000,
        "sampled": 3_600,
        **{
            f"{what}_s_{name}": figure * slow
            for what in ("wait", "service", "response")
            for name, figure in figures.items()
        },
    }


# Telesto's table 5.3, in parts of the whole.
_SHARES = {"store": 0.988, "wait_client": 0.008, "parse": 0.0015, "respond": 0.0025}
_IDLE = {"node": "node-1", "seconds": 21600.0, "idle": 0.375, "idle_low": 0.36, "idle_high": 0.39}


def _phase(verb: str, phase: str) -> dict[str, Any]:
    mean_us = 9690.0 * _SHARES[phase]
    return {
        "verb": verb,
        "phase": phase,
        "requests": 4000.0,
        "sampled": 40,
        "mean_us": mean_us,
        "low_us": 0.95 * mean_us,
        "high_us": 1.05 * mean_us,
        "share": _SHARES[phase],
        "share_low": _SHARES[phase] - 0.001,
        "share_high": _SHARES[phase] + 0.001,
    }


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
