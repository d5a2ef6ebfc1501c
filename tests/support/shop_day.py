"""Six hours of an HTTP service: calm, a rush that it meets with more instances, one violation."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

from knowledge_of import NOON, KnowledgeOf

from tidegate.agreements.document import Agreement, parse_agreement

SHOP = """
name = "shop agreement"
http = "shop"
window = "10s"
warning = "learned"
[metrics.response_p99]
breach = "1s"
[metrics.throughput]
breach = 100
"""
RUSH = range(180, 240)


def shop_agreement() -> Agreement:
    return parse_agreement(SHOP, "shop.toml")


def with_shop(knowledge: KnowledgeOf) -> KnowledgeOf:
    """What `learn` leaves of it."""
    minutes = range(360)
    knowledge.add("http_windows", [_window("shop", m) for m in minutes] + [_idle()])
    knowledge.add(
        "violations",
        [
            _turn(178, "shop agreement", "warned", 0.86),
            _turn(181, "shop agreement", "breached", 1.4),
            _turn(186, "shop agreement", "kept", 1.9),
            _turn(355, "shop agreement", "breached", 1.1),
            _turn(20, "orders", "breached", 7.0, "wait_p99"),
            _turn(22, "orders", "eased", 8.0, "wait_p99"),
        ],
    )
    phases = {"wait_door_us": 30e3, "connect_us": 5e3, "server_us": 65e3, "total_us": 100e3}
    knowledge.add("http_phases", [{"service": "shop", "requests": 1e6, "sampled": 812, **phases}])
    knowledge.add_model(
        "http_capacity",
        "shop",
        reason="63 requests/s by the median of 3 instances with all the requests that it may have",
        parameters={"throughput_per_s": 63.0, "concurrency": 10.0},
    )
    knowledge.add(
        "learned_warnings",
        [
            {
                "agreement": "shop agreement",
                "metric": "response_p99",
                "slope_per_s": 0.05,
                "windows": 300,
                "reconfiguration_s": 4.0,
                "breach": 1.0,
                "warning": 0.8,
                "learned": 0.75,
                "says": "as seen",
            }
        ],
    )
    return knowledge


def _window(service: str, minute: int) -> dict[str, Any]:
    rush = minute in RUSH
    calm = 60.0 + 20.0 * math.sin(minute / 40)
    slow = 4.0 if rush and minute < 187 else 1.3 if rush else 1.0
    return {
        "service": service,
        "window": NOON + timedelta(minutes=minute),
        "window_s": 60.0,
        "answered_per_s": 3.0 * calm if rush else calm,
        "came": 3612,
        "missed": 12 if rush and minute < 184 else 0,
        "responses": 3600,
        "response_s_p50": 0.12 * slow,
        "response_s_p95": 0.3 * slow,
        "response_s_p99": 0.45 * slow,
        "waiting": 0,
        "serving": (4.0 if minute > 183 else 1.0) if rush else 1.0,
        "spare": 1.0,
        "free_memory_bytes": 5e8,
    }


def _idle() -> dict[str, Any]:
    """A service of one window that nobody asked anything."""
    times = dict.fromkeys(("response_s_p50", "response_s_p95", "response_s_p99"))
    quiet = {
        "answered_per_s": 0.0,
        "came": 0,
        "responses": 0,
        "spare": 0.0,
        "free_memory_bytes": None,
    }
    return _window("idle <b>", 0) | quiet | times


def _turn(
    minute: int, agreement: str, turn: str, worst: float, metric: str = "response_p99"
) -> dict[str, Any]:
    return {
        "agreement": agreement,
        "at": NOON + timedelta(minutes=minute),
        "metric": metric,
        "turn": turn,
        "worst": worst,
        "evidence": f"{metric} was {worst} s (warns at 750 ms, breaches at 1 s)",
    }
